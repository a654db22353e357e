//! Calls about the resources of the project: volume types, zones and the quota.

use super::super::id::path_of;
use super::super::wire::{
    self, AbsoluteLimits, AvailabilityZones, Limits, OneVolumeType, VolumeType, VolumeTypes,
};
use super::{Client, Request, Service};
use belay_server::call::Failure;
use belay_server::request::VolumeId;
use http::{Method, StatusCode};
use serde_json::json;
use std::collections::BTreeSet;

impl Client {
    /// Begins to change the type of a volume, unless that requires a migration.
    pub(in super::super) async fn retype(&self, id: &VolumeId, to: &str) -> Result<(), Failure> {
        let path = format!("{}/action", path_of("volume", id.as_str())?);
        let retype = json!({ "new_type": to, "migration_policy": "never" });
        let request = Request {
            body: Some(json!({ "os-retype": retype })),
            ..Request::new("retype_volume", Service::Volumes, Method::POST, path)
        };
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::ACCEPTED => Ok(()),
            _ => Err(wire::refused(&answer)),
        }
    }

    /// Returns the volume type with this name or ID, or the default type.
    pub(in super::super) async fn volume_type(
        &self,
        name: Option<&str>,
    ) -> Result<Option<VolumeType>, Failure> {
        let path = match name {
            None => "/types/default",
            Some(_) => "/types",
        };
        let request = Request::new("get_type", Service::Volumes, Method::GET, path.to_owned());
        let answer = self.answer(request).await?;
        match (answer.status, name) {
            (StatusCode::OK, None) => Ok(Some(answer.json::<OneVolumeType>()?.volume_type)),
            (StatusCode::NOT_FOUND, None) if wire::is_own(&answer) => Ok(None),
            (StatusCode::OK, Some(name)) => {
                let types = answer.json::<VolumeTypes>()?.volume_types;
                Ok(types.into_iter().find(|found| found.is(name)))
            }
            _ => Err(wire::refused(&answer)),
        }
    }

    /// Returns the quota of the project for all volume types together, and its usage.
    pub(in super::super) async fn limits(&self) -> Result<AbsoluteLimits, Failure> {
        let path = "/limits".to_owned();
        let request = Request::new("get_limits", Service::Volumes, Method::GET, path);
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::OK => Ok(answer.json::<Limits>()?.limits.absolute),
            _ => Err(wire::refused(&answer)),
        }
    }

    /// Returns the zones of volumes or of servers.
    pub(in super::super) async fn zones(&self, of: Service) -> Result<BTreeSet<String>, Failure> {
        let path = "/os-availability-zone".to_owned();
        let answer = self
            .answer(Request::new("list_zones", of, Method::GET, path))
            .await?;
        match answer.status {
            StatusCode::OK => Ok(answer.json::<AvailabilityZones>()?.names()),
            _ => Err(wire::refused(&answer)),
        }
    }
}
