//! Calls to Cinder for lists of objects, page by page.

use super::super::wire::{self, CinderVolume, Listed};
use super::{Client, Request};
use crate::http::encoded;
use belay_server::call::{Failure, Kind};
use belay_server::request::Name;
use http::StatusCode;
use serde::de::DeserializeOwned;

impl Client {
    /// Returns the volumes with this name.
    pub(in super::super) async fn named(&self, name: &Name) -> Result<Vec<CinderVolume>, Failure> {
        let path = format!("/volumes/detail?name={}", encoded(name.as_str()));
        let mut found: Vec<CinderVolume> = self.page("find_volume", path).await?.items;
        // A cloud may also return volumes with similar names.
        found.retain(|volume| volume.is_named(name));
        Ok(found)
    }

    /// Returns a page of volumes, and the marker of the next page.
    pub(in super::super) async fn volumes(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<CinderVolume>, Option<String>), Failure> {
        let id = |volume: &CinderVolume| volume.id.clone();
        self.list("list_volumes", ("volumes", ""), (after, limit), id)
            .await
    }

    /// Returns a page of objects of a kind, and the marker of the next page. `filter` contains
    /// further query parameters.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        verb: &'static str,
        (kind, filter): (&str, &str),
        (after, limit): (Option<&str>, usize),
        id: impl FnOnce(&T) -> String,
    ) -> Result<(Vec<T>, Option<String>), Failure> {
        let marker = after.map(|after| format!("&marker={}", encoded(after)));
        let marker = marker.unwrap_or_default();
        let path = format!("/{kind}/detail?limit={limit}{filter}{marker}");
        let page = self.page(verb, path).await?;
        let next = page.items.last().filter(|_| !page.links.is_empty()).map(id);
        Ok((page.items, next))
    }

    /// Returns a page of volumes or snapshots.
    pub(super) async fn page<T: DeserializeOwned>(
        &self,
        verb: &'static str,
        path: String,
    ) -> Result<Listed<T>, Failure> {
        let has_marker = path.contains("&marker=");
        let answer = self.answer(Request::get(verb, path)).await?;
        match answer.status {
            StatusCode::OK => answer.json(),
            // The marker (the ID of the previous page's last object) is invalid, since the object
            // was deleted.
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST
                if has_marker && wire::is_own(&answer) =>
            {
                let message = format!("{}; begin again at the first page", answer.refusal());
                Err(Failure::new(Kind::BadToken, message))
            }
            _ => Err(wire::refused(&answer)),
        }
    }
}
