//! The Identity service, which is the same for every driver except for the configured capabilities.

use crate::call::{Failure, Rpc, answer};
use crate::readiness::{Readiness, State};
use belay_proto::csi::v1 as csi;
use csi::plugin_capability::service::Type as ServiceType;
use csi::plugin_capability::volume_expansion::Type as ExpansionType;
use csi::plugin_capability::{Service, Type, VolumeExpansion};
use std::fmt;
use std::str::FromStr;
use tonic::{Request, Response, Status};

/// Maximum length of a driver's name, in bytes (CSI 1.13, `GetPluginInfoResponse.name`).
const NAME_BYTES_MAX: usize = 63;

/// The name of a driver, e.g. `local.csi.belay.dev`: letters, digits, dots and dashes in the form
/// of a domain name (RFC 1035, section 2.3.1), at most 63 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DriverName(String);

/// The reason why a name is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverNameError {
    /// The name is empty, or has more than 63 bytes.
    #[error("a driver name has 1 to {NAME_BYTES_MAX} bytes, not {0}")]
    Length(usize),
    /// The name has a character other than letters, digits, dots and dashes.
    #[error("a driver name may contain only letters, digits, dots and dashes, not {0:?}")]
    Character(char),
    /// A part of the name begins or ends with a dash, or is empty.
    #[error("each part of a driver name must begin and end with a letter or digit")]
    Part,
}

impl DriverName {
    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DriverName {
    type Err = DriverNameError;

    /// # Errors
    /// Returns the rule that the name breaks.
    fn from_str(name: &str) -> Result<Self, DriverNameError> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(DriverNameError::Length(name.len()));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        if let Some(bad) = name.chars().find(|c| !allowed(*c)) {
            return Err(DriverNameError::Character(bad));
        }
        let is_framed =
            |part: &str| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
        if !name.split('.').all(is_framed) {
            return Err(DriverNameError::Part);
        }
        Ok(Self(name.to_owned()))
    }
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A capability of the driver. The controller and the node agent must report the same capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginCapability {
    /// The driver has a controller service.
    Controller,
    /// Some nodes cannot reach some volumes.
    Topology,
    /// Some snapshots can be restored only in their topology.
    SnapshotTopology,
    /// A volume can grow while it is published.
    OnlineExpansion,
    /// A volume can grow while it is attached to no node.
    OfflineExpansion,
}

impl PluginCapability {
    fn wire(self) -> csi::PluginCapability {
        let service = |service: ServiceType| {
            Type::Service(Service {
                r#type: service.into(),
            })
        };
        let expansion = |expansion: ExpansionType| {
            Type::VolumeExpansion(VolumeExpansion {
                r#type: expansion.into(),
            })
        };
        let r#type = match self {
            Self::Controller => service(ServiceType::ControllerService),
            Self::Topology => service(ServiceType::VolumeAccessibilityConstraints),
            Self::SnapshotTopology => service(ServiceType::SnapshotAccessibilityConstraints),
            Self::OnlineExpansion => expansion(ExpansionType::Online),
            Self::OfflineExpansion => expansion(ExpansionType::Offline),
        };
        csi::PluginCapability {
            r#type: Some(r#type),
        }
    }
}

/// The Identity service of one driver.
#[derive(Clone, Debug)]
pub struct Identity {
    name: DriverName,
    version: &'static str,
    capabilities: Vec<PluginCapability>,
    readiness: Readiness,
    /// The name of the service on this socket next to Identity, for the manifest. The capabilities
    /// do not reveal this service, since the controller and the node agent must report the same
    /// capabilities.
    service: Option<&'static str>,
}

impl Identity {
    /// Creates a service that reports this name, version and capabilities, and the current
    /// readiness.
    #[must_use]
    pub fn new(
        name: DriverName,
        version: &'static str,
        capabilities: Vec<PluginCapability>,
        readiness: Readiness,
    ) -> Self {
        Self {
            name,
            version,
            capabilities,
            readiness,
            service: None,
        }
    }

    /// Adds the name of the service that the socket has next to Identity, `controller` or `node`,
    /// to the manifest. Without this entry, tools could find that service only by trying calls.
    #[must_use]
    pub fn of_service(mut self, service: &'static str) -> Self {
        self.service = Some(service);
        self
    }

    /// Reports the state of the program, regardless of its registration with the kubelet.
    /// livenessprobe restarts a program whose Probe fails, but a restart does not make the kubelet
    /// accept a driver.
    fn probe(&self) -> Result<csi::ProbeResponse, Failure> {
        match self.readiness.own() {
            State::Ready => Ok(csi::ProbeResponse { ready: Some(true) }),
            State::Starting(_) => Ok(csi::ProbeResponse { ready: Some(false) }),
            State::Unhealthy(why) => Err(Failure::precondition(why)),
        }
    }
}

#[tonic::async_trait]
impl csi::identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        request: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        answer(Rpc::GetPluginInfo, request, async |_| {
            let service = self.service.iter();
            let manifest = service.map(|service| ("service".to_owned(), (*service).to_owned()));
            Ok(csi::GetPluginInfoResponse {
                name: self.name.to_string(),
                vendor_version: self.version.to_owned(),
                manifest: manifest.collect(),
            })
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        request: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        answer(Rpc::GetPluginCapabilities, request, async |_| {
            let capabilities = self.capabilities.iter().map(|capability| capability.wire());
            Ok(csi::GetPluginCapabilitiesResponse {
                capabilities: capabilities.collect(),
            })
        })
        .await
    }

    async fn probe(
        &self,
        request: Request<csi::ProbeRequest>,
    ) -> Result<Response<csi::ProbeResponse>, Status> {
        answer(Rpc::Probe, request, async |_| self.probe()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_real_drivers_pass() {
        let longest = format!("a.{}", "b".repeat(61));
        for name in [
            "local.csi.belay.dev",
            "cinder.csi.openstack.org",
            "a",
            "A-1.b",
            &longest,
        ] {
            assert_eq!(name.parse::<DriverName>().unwrap().as_str(), name);
        }
    }

    #[test]
    fn names_that_a_sidecar_would_reject_are_refused() {
        use DriverNameError::{Character, Length, Part};
        let long = "b".repeat(64);
        let cases = [
            ("", Length(0)),
            (long.as_str(), Length(64)),
            ("local/csi", Character('/')),
            ("b\u{e9}lay", Character('\u{e9}')),
            ("a..b", Part),
            (".a", Part),
            ("a.", Part),
            ("-a", Part),
            ("a-.b", Part),
        ];
        for (name, why) in cases {
            assert_eq!(name.parse::<DriverName>(), Err(why), "{name:?}");
        }
    }
}
