//! Calls of Cinder for volume types.

use super::super::wire::{self, OneVolumeType, VolumeType, VolumeTypes};
use super::{Client, Request, Service};
use belay_server::call::Failure;
use http::{Method, StatusCode};

impl Client {
    /// The volume type with that name or ID, or that of volumes without a type.
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
        let Some(name) = name else {
            return match answer.status {
                StatusCode::OK => Ok(Some(answer.json::<OneVolumeType>()?.volume_type)),
                StatusCode::NOT_FOUND => Ok(None),
                _ => Err(wire::refused(&answer)),
            };
        };
        match answer.status {
            StatusCode::OK => {
                let types = answer.json::<VolumeTypes>()?.volume_types;
                Ok(types.into_iter().find(|found| found.is(name)))
            }
            _ => Err(wire::refused(&answer)),
        }
    }
}
