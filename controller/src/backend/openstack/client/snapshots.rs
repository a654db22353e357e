//! Calls to Cinder for snapshots.

use super::super::id::path_of;
use super::super::wire::CinderSnapshot;
use super::{Client, Request};
use crate::http::encoded;
use belay_server::call::Failure;
use belay_server::request::{Name, SnapshotId, VolumeId};
use http::StatusCode;
use serde_json::{Value, json};

impl Client {
    pub(in super::super) async fn snapshot(
        &self,
        id: &SnapshotId,
    ) -> Result<Option<CinderSnapshot>, Failure> {
        let request = |path| Request::get("get_snapshot", path);
        self.find("snapshot", id.as_str(), request).await
    }

    /// Returns the snapshots with this name.
    pub(in super::super) async fn snapshots_named(
        &self,
        name: &str,
    ) -> Result<Vec<CinderSnapshot>, Failure> {
        let path = format!("/snapshots/detail?name={}", encoded(name));
        let mut found: Vec<CinderSnapshot> = self.page("find_snapshot", path).await?.items;
        // A cloud may also return snapshots with similar names.
        found.retain(|snapshot| snapshot.is_named(name));
        Ok(found)
    }

    /// Returns a page of the snapshots of one volume, or of all snapshots, and the marker of the
    /// next page.
    pub(in super::super) async fn snapshots(
        &self,
        of: Option<&VolumeId>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<CinderSnapshot>, Option<String>), Failure> {
        let of = of.map(|id| format!("&volume_id={}", encoded(id.as_str())));
        let kind = ("snapshots", &*of.unwrap_or_default());
        let id = |snapshot: &CinderSnapshot| snapshot.id.clone();
        self.list("list_snapshots", kind, (after, limit), id).await
    }

    /// Creates a snapshot. `force` allows a snapshot of a volume in use. Cinder 3.66 and later
    /// always allow snapshots of volumes in use.
    pub(in super::super) async fn create_snapshot(
        &self,
        name: &Name,
        of: &VolumeId,
        force: bool,
        metadata: Value,
    ) -> Result<CinderSnapshot, Failure> {
        let snapshot = json!({
            "name": name.as_str(),
            "volume_id": of.as_str(),
            "force": force,
            "description": "Created by Belay",
            "metadata": metadata,
        });
        let body = json!({ "snapshot": snapshot });
        let request = Request::post("create_snapshot", "/snapshots", body);
        let statuses = [StatusCode::ACCEPTED, StatusCode::OK];
        self.accepted(request, &statuses).await?.member("/snapshot")
    }

    /// Sets a key in a snapshot's metadata to the snapshot's ID.
    pub(in super::super) async fn mark_snapshot(
        &self,
        id: &SnapshotId,
        key: &str,
    ) -> Result<(), Failure> {
        let path = format!("{}/metadata", path_of("snapshot", id.as_str())?);
        self.annotate("mark_snapshot", path, key, id.as_str()).await
    }

    /// Deletes a snapshot; returns whether it existed.
    pub(in super::super) async fn delete_snapshot(&self, id: &SnapshotId) -> Result<bool, Failure> {
        self.deleted("delete_snapshot", "snapshot", id.as_str())
            .await
    }
}
