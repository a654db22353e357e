//! Calls of Cinder for the quota of the project.

use super::super::wire::{self, AbsoluteLimits, Limits};
use super::{Client, Request, Service};
use belay_server::call::Failure;
use http::{Method, StatusCode};

impl Client {
    /// The quota of the project for all volume types, and what is used of it.
    pub(in super::super) async fn limits(&self) -> Result<AbsoluteLimits, Failure> {
        let path = "/limits".to_owned();
        let request = Request::new("get_limits", Service::Volumes, Method::GET, path);
        let answer = self.answer(request).await?;
        match answer.status {
            StatusCode::OK => Ok(answer.json::<Limits>()?.limits.absolute),
            _ => Err(wire::refused(&answer)),
        }
    }
}
