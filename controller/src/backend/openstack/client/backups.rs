//! Calls to Cinder for backups. Backups can have metadata since Cinder 3.43, can be restored to new
//! volumes since 3.47, and can have a zone since 3.51.

use super::super::id::{self as ids, path_of};
use super::super::wire::CinderSnapshot;
use super::{CLAIM_DEADLINE, Client, Request};
use crate::backend::SnapshotOrder;
use crate::http::encoded;
use belay_server::call::{Failure, Kind};
use belay_server::request::{Name, SnapshotId};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

const METADATA_VERSION: &str = "volume 3.43";
const ZONE_VERSION: &str = "volume 3.51";

fn request(verb: &'static str, method: Method, path: String) -> Request {
    Request {
        version: Some(METADATA_VERSION),
        ..Request::new(verb, method, path)
    }
}

impl Client {
    /// Returns a backup.
    ///
    /// # Errors
    /// Returns `Denied` if this account must not read backups; the backup may exist.
    pub(in super::super) async fn backup(
        &self,
        id: &SnapshotId,
    ) -> Result<Option<CinderSnapshot>, Failure> {
        let get = |path| request("get_backup", Method::GET, path);
        let found = self.find("backup", id.as_str(), get).await;
        found.map_err(|failure| match failure.kind {
            // Current releases of Cinder look up the backup before they check the policy, so the
            // backup exists.
            Kind::Denied => Failure {
                message: format!(
                    "snapshot {id}: may be a backup, which the credentials of the driver cannot \
                     see: permit backup:get in the policy of Cinder: {}",
                    failure.message
                ),
                ..failure
            },
            _ => failure,
        })
    }

    /// Returns the backups with this name.
    pub(in super::super) async fn backups_named(
        &self,
        name: &Name,
    ) -> Result<Vec<CinderSnapshot>, Failure> {
        let path = format!("/backups/detail?name={}", encoded(name.as_str()));
        let request = request("find_backup", Method::GET, path);
        let answer = self.accepted(request, &[StatusCode::OK]).await?;
        let mut found: Vec<CinderSnapshot> = answer.member("/backups")?;
        // A cloud may also return backups with similar names.
        found.retain(|backup| backup.is_named(name.as_str()));
        Ok(found)
    }

    /// Creates a backup, and returns its ID.
    pub(in super::super) async fn create_backup(
        &self,
        order: &SnapshotOrder,
        basis: &SnapshotId,
        zone: Option<&str>,
        metadata: Value,
    ) -> Result<SnapshotId, Failure> {
        let mut backup = json!({
            "name": order.name.as_str(),
            "volume_id": order.source.as_str(),
            "snapshot_id": basis.as_str(),
            "force": true,
            "description": "Created by Belay",
            "metadata": metadata,
        });
        if let Some(zone) = zone {
            backup["availability_zone"] = zone.into();
        }
        let request = Request {
            version: Some(zone.map_or(METADATA_VERSION, |_| ZONE_VERSION)),
            body: Some(json!({ "backup": backup })),
            ..request("create_backup", Method::POST, "/backups".to_owned())
        };
        let statuses = [StatusCode::ACCEPTED, StatusCode::OK];
        let answer = self.accepted(request, &statuses).await?;
        ids::snapshot(&answer.member::<String>("/backup/id")?)
    }

    /// Sets a key in a backup's metadata to the backup's ID. The call to Cinder replaces all
    /// metadata, but two controllers that claim a backup at the same time write the same metadata.
    pub(in super::super) async fn mark_backup(
        &self,
        id: &SnapshotId,
        key: &str,
    ) -> Result<(), Failure> {
        let marked = async {
            let backup = self.backup(id).await?;
            let gone = || Failure::not_found(format!("backup {id}: not found"));
            let mut metadata = backup.ok_or_else(gone)?.into_metadata();
            metadata.insert(key.to_owned(), id.to_string());
            let request = Request {
                body: Some(json!({ "backup": { "metadata": metadata } })),
                deadline: CLAIM_DEADLINE,
                ..request("mark_backup", Method::PUT, path_of("backup", id.as_str())?)
            };
            self.accepted(request, &[StatusCode::OK]).await.map(drop)
        };
        timeout(CLAIM_DEADLINE, marked).await.unwrap_or_else(|_| {
            let seconds = CLAIM_DEADLINE.as_secs();
            let message = format!("backup {id}: no claim within {seconds} s, with the login");
            Err(Failure::timeout(message).may_be_running())
        })
    }

    /// Deletes a backup; returns whether it existed.
    pub(in super::super) async fn delete_backup(&self, id: &SnapshotId) -> Result<bool, Failure> {
        self.deleted("delete_backup", "backup", id.as_str()).await
    }
}
