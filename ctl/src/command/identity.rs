//! `belayctl identity`: name, capabilities and readiness of the driver.

use belay_proto::csi::v1::identity_client::IdentityClient;
use belay_proto::csi::v1::plugin_capability::Type;
use belay_proto::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginInfoRequest, PluginCapability, ProbeRequest,
};
use clap::Subcommand;

use crate::failure::Failure;
use crate::render::{Answer, Cell, Rows};
use crate::target::Target;

#[derive(Subcommand)]
pub(crate) enum IdentityCommand {
    /// Show name, version and manifest (GetPluginInfo)
    #[command(alias = "plugin-info")]
    Info,
    /// List the capabilities of the plugin (GetPluginCapabilities)
    #[command(aliases = ["plugin-capabilities", "caps"])]
    Capabilities,
    /// Show whether the driver is ready (Probe); exits with 2 if it is not
    Probe,
}

impl IdentityCommand {
    /// Makes the call.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let mut client = IdentityClient::new(target.connect().await?);
        match self {
            Self::Info => {
                let info = target
                    .wait_for(client.get_plugin_info(GetPluginInfoRequest {}))
                    .await?;
                Ok(Answer::Record(vec![
                    ("name", Cell::Text(info.name)),
                    ("vendor_version", Cell::Text(info.vendor_version)),
                    ("manifest", Cell::Pairs(info.manifest.into_iter().collect())),
                ]))
            }
            Self::Capabilities => {
                let request = GetPluginCapabilitiesRequest {};
                let answer = target
                    .wait_for(client.get_plugin_capabilities(request))
                    .await?;
                Ok(named(answer.capabilities.iter().map(name_of)))
            }
            Self::Probe => {
                let probe = target.wait_for(client.probe(ProbeRequest {})).await?;
                // The specification: absent means ready.
                let ready = probe.ready.unwrap_or(true);
                Ok(Answer::Record(vec![("ready", Cell::Flag(ready))]).verdict(ready))
            }
        }
    }
}

/// A list of capability names.
pub(super) fn named(names: impl Iterator<Item = String>) -> Answer {
    let rows = names.map(|name| vec![Cell::Text(name)]);
    Answer::Rows(Rows::new("capabilities", &["capability"], rows))
}

fn name_of(capability: &PluginCapability) -> String {
    match &capability.r#type {
        Some(Type::Service(service)) => service.r#type().as_str_name().to_owned(),
        Some(Type::VolumeExpansion(how)) => {
            format!("VOLUME_EXPANSION_{}", how.r#type().as_str_name())
        }
        None => "UNKNOWN".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use belay_proto::csi::v1::plugin_capability::volume_expansion;
    use belay_proto::csi::v1::plugin_capability::{Service, VolumeExpansion, service};

    use super::*;

    #[test]
    fn capabilities_have_the_names_of_the_specification() {
        let service = Service {
            r#type: service::Type::ControllerService.into(),
        };
        let online = VolumeExpansion {
            r#type: volume_expansion::Type::Online.into(),
        };
        for (kind, name) in [
            (Some(Type::Service(service)), "CONTROLLER_SERVICE"),
            (
                Some(Type::VolumeExpansion(online)),
                "VOLUME_EXPANSION_ONLINE",
            ),
            (None, "UNKNOWN"),
        ] {
            assert_eq!(name_of(&PluginCapability { r#type: kind }), name);
        }
    }
}
