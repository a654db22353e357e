//! Calls to Cinder for snapshots.

use super::super::id::{path, path_of};
use super::super::wire::{self, CinderSnapshot, CinderSnapshots, OneSnapshot};
use super::{CLAIM_DEADLINE, Client, Request, Service};
use crate::backend::cloud::ids::same;
use crate::http::encoded;
use belay_server::call::Failure;
use belay_server::request::{Name, SnapshotId, VolumeId};
use http::{Method, StatusCode};
use serde_json::{Value, json};

impl Client {
    pub(in super::super) async fn snapshot(
        &self,
        id: &SnapshotId,
    ) -> Result<Option<CinderSnapshot>, Failure> {
        let Some(path) = path("snapshot", id.as_str())? else {
            return Ok(None);
        };
        let request = Request::new("get_snapshot", Service::Volumes, Method::GET, path);
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::OK => {
                let snapshot = answer.json::<OneSnapshot>()?.snapshot;
                same("snapshot", id.as_str(), &snapshot.id)?;
                Ok(Some(snapshot))
            }
            _ if wire::is_missing(&answer, id.as_str()) => Ok(None),
            _ => Err(wire::refused_for(&answer)),
        }
    }

    /// Returns the snapshots with this name.
    pub(in super::super) async fn snapshots_named(
        &self,
        name: &str,
    ) -> Result<Vec<CinderSnapshot>, Failure> {
        let path = format!("/snapshots/detail?name={}", encoded(name));
        let page: CinderSnapshots = self.page("find_snapshot", path).await?;
        let mut found = page.snapshots;
        // A cloud may also return snapshots with similar names.
        found.retain(|snapshot| snapshot.is_named(name));
        Ok(found)
    }

    /// Returns a page of snapshots, of one volume or of all, and the marker of the next page.
    pub(in super::super) async fn snapshots(
        &self,
        of: Option<&VolumeId>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<CinderSnapshot>, Option<String>), Failure> {
        let of = of.map(|id| format!("&volume_id={}", encoded(id.as_str())));
        let marker = after.map(|after| format!("&marker={}", encoded(after)));
        let path = format!(
            "/snapshots/detail?limit={limit}{}{}",
            of.unwrap_or_default(),
            marker.unwrap_or_default()
        );
        let page: CinderSnapshots = self.page("list_snapshots", path).await?;
        let last = page.snapshots.last().map(|snapshot| snapshot.id.clone());
        let next = last.filter(|_| !page.snapshots_links.is_empty());
        Ok((page.snapshots, next))
    }

    /// Creates a snapshot. `force` allows a snapshot of a volume in use, which Cinder 3.66 always
    /// allows.
    pub(in super::super) async fn create_snapshot(
        &self,
        name: &Name,
        of: &VolumeId,
        force: bool,
        metadata: Value,
    ) -> Result<CinderSnapshot, Failure> {
        let path = "/snapshots".to_owned();
        let snapshot = json!({
            "name": name.as_str(),
            "volume_id": of.as_str(),
            "force": force,
            "description": "Created by Belay",
            "metadata": metadata,
        });
        let request = Request {
            body: Some(json!({ "snapshot": snapshot })),
            ..Request::new("create_snapshot", Service::Volumes, Method::POST, path)
        };
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::ACCEPTED | StatusCode::OK => Ok(answer.json::<OneSnapshot>()?.snapshot),
            _ => Err(wire::refused(&answer)),
        }
    }

    /// Adds entries to the metadata of a snapshot.
    pub(in super::super) async fn mark_snapshot(
        &self,
        id: &SnapshotId,
        key: &str,
    ) -> Result<(), Failure> {
        let path = format!("{}/metadata", path_of("snapshot", id.as_str())?);
        let request = Request {
            body: Some(json!({ "metadata": { key: id.as_str() } })),
            deadline: CLAIM_DEADLINE,
            ..Request::new("mark_snapshot", Service::Volumes, Method::POST, path)
        };
        let answer = self.answer_soon(request).await?;
        match answer.status {
            StatusCode::OK => Ok(()),
            _ => Err(wire::refused(&answer)),
        }
    }

    /// Deletes a snapshot; returns whether it existed.
    pub(in super::super) async fn delete_snapshot(&self, id: &SnapshotId) -> Result<bool, Failure> {
        self.deleted("delete_snapshot", "snapshot", id.as_str())
            .await
    }
}
