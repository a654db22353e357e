//! Checks whether a key belongs to the account of the cluster. With the key of another account, all
//! volumes would be missing: DeleteVolume would succeed, and CreateVolume would create a second
//! volume. Civo shows a cluster only to the keys of its account, so a key that cannot see the
//! cluster is not used.

use super::{Client, Request};
use crate::backend::civo::access::Access;
use crate::backend::civo::wire::{self, Cluster, Object};
use crate::http::{Answer, encoded};
use belay_server::call::Failure;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The result of the check of a key.
enum Judged {
    Ours(Cluster),
    /// Civo refuses the key.
    Refused,
}

impl Client {
    /// Returns the cluster, and confirms the key.
    ///
    /// # Errors
    /// Returns `Precondition` if the account has no such cluster in the region.
    pub(in super::super) async fn cluster(&self) -> Result<Cluster, Failure> {
        let access = self.access();
        let answer = self.answer_with(&access, &about(&access)).await?;
        let refused = match judged(&access, &answer) {
            Ok(Judged::Ours(cluster)) => {
                self.is_confirmed.store(true, Ordering::Release);
                return Ok(cluster);
            }
            Ok(Judged::Refused) => wire::refused(&answer),
            // The key may be of another account.
            Err(failure) => failure,
        };
        let new = self.new_access(&access).await?;
        new.map(|(_, cluster)| cluster).ok_or(refused)
    }

    /// Confirms the key before the first call, if Civo did not respond at the start. If Civo
    /// refuses the key, the call itself fails.
    pub(super) async fn confirm(&self, access: &Access) -> Result<(), Failure> {
        if self.is_confirmed.load(Ordering::Acquire) {
            return Ok(());
        }
        let answer = self.answer_with(access, &about(access)).await?;
        if let Judged::Ours(_) = judged(access, &answer)? {
            self.is_confirmed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Reads the key from the file, and uses it from now on if it differs from the refused one and
    /// Civo accepts it. Returns the new values and the cluster; `None` if Civo refuses the new key,
    /// too. Region and cluster remain, since earlier reads refer to them.
    ///
    /// # Errors
    /// Returns `Precondition` if the key belongs to another account, and the errors of the call to
    /// Civo.
    pub(super) async fn new_access(
        &self,
        refused: &Access,
    ) -> Result<Option<(Arc<Access>, Cluster)>, Failure> {
        let sources = self.sources.clone();
        let read = tokio::task::spawn_blocking(move || sources.key()).await;
        let Some(key) = read.ok().and_then(Result::ok) else {
            return Ok(None);
        };
        if key == refused.key {
            return Ok(None);
        }
        let new = Arc::new(Access {
            key,
            ..refused.clone()
        });
        let answer = self.answer_with(&new, &about(&new)).await?;
        let cluster = match judged(&new, &answer) {
            Ok(Judged::Ours(cluster)) => cluster,
            Ok(Judged::Refused) => return Ok(None),
            Err(failure) => {
                let message = format!("the new key is not used: {failure}");
                return Err(Failure { message, ..failure });
            }
        };
        *self.access.lock() = Arc::clone(&new);
        self.is_confirmed.store(true, Ordering::Release);
        Ok(Some((new, cluster)))
    }
}

/// Returns a call that succeeds only with keys of the account.
fn about(access: &Access) -> Request {
    let path = format!("/v2/kubernetes/clusters/{}", encoded(&access.cluster));
    Request::get("get_cluster", path)
}

fn judged(access: &Access, answer: &Answer) -> Result<Judged, Failure> {
    if wire::refuses_key(answer) {
        return Ok(Judged::Refused);
    }
    let found = wire::found(Object::Cluster, answer)?;
    found
        .map(Judged::Ours)
        .ok_or_else(|| has_no_cluster(access))
}

fn has_no_cluster(access: &Access) -> Failure {
    let Access {
        cluster, region, ..
    } = access;
    Failure::precondition(format!(
        "CIVO_CLUSTER_ID {cluster:?}: region {region} has no such cluster in the account of \
         CIVO_API_KEY; check all three, and restart the controller after a change of account"
    ))
}
