//! Calls about the resources of the project: volume types, zones, the quota and messages.

use super::super::wire::{self, AbsoluteLimits, AvailabilityZones, Message, VolumeType};
use super::{Client, Request, Service};
use crate::http::encoded;
use belay_server::call::Failure;
use belay_server::request::VolumeId;
use http::StatusCode;
use serde_json::json;
use std::collections::BTreeSet;

impl Client {
    /// Begins to change the type of a volume. Cinder refuses the change if it requires a migration.
    pub(in super::super) async fn retype(&self, id: &VolumeId, to: &str) -> Result<(), Failure> {
        let retype = json!({ "new_type": to, "migration_policy": "never" });
        self.act("retype_volume", id, json!({ "os-retype": retype }))
            .await
    }

    /// Returns the volume type with this name or ID, or the default type if `name` is `None`.
    pub(in super::super) async fn volume_type(
        &self,
        name: Option<&str>,
    ) -> Result<Option<VolumeType>, Failure> {
        let path = match name {
            None => "/types/default",
            Some(_) => "/types",
        };
        let answer = self.answer(Request::get("get_type", path)).await?;
        match (answer.status, name) {
            (StatusCode::OK, None) => answer.member("/volume_type").map(Some),
            (StatusCode::NOT_FOUND, None) if wire::is_own(&answer) => Ok(None),
            (StatusCode::OK, Some(name)) => {
                let types: Vec<VolumeType> = answer.member("/volume_types")?;
                Ok(types.into_iter().find(|found| found.is(name)))
            }
            _ => Err(wire::refused(&answer)),
        }
    }

    /// Returns the quota of the project for all volume types together, and the used part of the
    /// quota.
    pub(in super::super) async fn limits(&self) -> Result<AbsoluteLimits, Failure> {
        let request = Request::get("get_limits", "/limits");
        let answer = self.accepted(request, &[StatusCode::OK]).await?;
        answer.member("/limits/absolute")
    }

    /// Returns the zones of volumes or of servers.
    pub(in super::super) async fn zones(
        &self,
        service: Service,
    ) -> Result<BTreeSet<String>, Failure> {
        let request = Request {
            service,
            ..Request::get("list_zones", "/os-availability-zone")
        };
        let answer = self.accepted(request, &[StatusCode::OK]).await?;
        Ok(answer.json::<AvailabilityZones>()?.names())
    }

    /// Returns Cinder's latest messages about a volume or a snapshot. Returns `None` if the
    /// messages cannot be read; this is not an error, since messages only add explanations to other
    /// errors.
    pub(in super::super) async fn messages(&self, id: &str) -> Option<Vec<Message>> {
        let path = format!("/messages?resource_uuid={}&limit=10", encoded(id));
        let request = Request::get("get_message", path);
        let answer = self.accepted(request, &[StatusCode::OK]).await.ok()?;
        answer.member("/messages").ok()
    }
}
