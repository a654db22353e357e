//! Reads all pages of a list.

use super::Client;
use super::answer::Refusal;
use crate::http::encoded;
use belay_server::call::Failure;
use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Maximum number of times that a list begins again because its pages have expired.
const LISTS_MAX: u32 = 3;

/// A list of objects.
pub(super) struct Listing<'a> {
    /// The path, and the start of the query.
    pub(super) path: &'a str,
    /// The name of the kind in URLs.
    pub(super) plural: &'a str,
    /// The maximum number of objects in a page.
    pub(super) limit: usize,
}

/// The failure of a list.
pub(super) enum Unlisted {
    /// The server does not know the kind.
    UnknownKind(Failure),
    /// Another failure.
    Failed(Failure),
}

impl From<Unlisted> for Failure {
    fn from(unlisted: Unlisted) -> Self {
        match unlisted {
            Unlisted::UnknownKind(failure) | Unlisted::Failed(failure) => failure,
        }
    }
}

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMetadata,
    items: Vec<T>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue", default)]
    next: String,
}

impl Client {
    /// Returns the objects of all pages for which `keep` returns a value, and the version of the
    /// list, which is not older than this call.
    pub(super) async fn pages<T: DeserializeOwned, U>(
        &self,
        listing: &Listing<'_>,
        keep: impl Fn(T) -> Option<U>,
    ) -> Result<(Vec<U>, String), Unlisted> {
        let Listing {
            path,
            plural,
            limit,
        } = listing;
        let (mut items, mut next, mut lists) = (Vec::new(), String::new(), 1);
        loop {
            let path = format!("{path}&limit={limit}&continue={}", encoded(&next));
            let answer = self.read("list", &path).await.map_err(Unlisted::Failed)?;
            if answer.status != StatusCode::OK {
                match Refusal::of(&answer, plural, None) {
                    // The remaining pages would be from a different version of the list.
                    Refusal::Expired if lists < LISTS_MAX => {
                        lists += 1;
                        items.clear();
                        next.clear();
                        continue;
                    }
                    other => {
                        let failure = other.into_failure(&answer).nothing_happened();
                        return Err(match answer.status {
                            StatusCode::NOT_FOUND => Unlisted::UnknownKind(failure),
                            _ => Unlisted::Failed(failure),
                        });
                    }
                }
            }
            let page = answer.json::<Page<T>>();
            let page = page.map_err(|failure| Unlisted::Failed(failure.nothing_happened()))?;
            items.extend(page.items.into_iter().filter_map(&keep));
            next = page.metadata.next;
            if next.is_empty() {
                return Ok((items, page.metadata.resource_version));
            }
        }
    }
}
