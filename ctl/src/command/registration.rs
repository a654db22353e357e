//! `belayctl registration`: acts as the kubelet on a registration socket, of Belay or of
//! node-driver-registrar.

use belay_proto::pluginregistration::registration_client::RegistrationClient;
use belay_proto::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus};
use clap::Subcommand;

use crate::failure::Failure;
use crate::render::{Answer, Cell};
use crate::target::Target;

#[derive(Subcommand)]
pub(crate) enum RegistrationCommand {
    /// Show the driver to register, and its CSI socket as the kubelet sees it (GetInfo)
    Info,
    /// Notify the driver that it was registered or refused (NotifyRegistrationStatus)
    ///
    /// The kubelet itself is not informed. When refused, node-driver-registrar exits; belay-node
    /// recreates its socket, so that the kubelet registers it again.
    Notify {
        /// Refuse the driver, with this reason
        #[arg(long, value_name = "REASON")]
        refused: Option<String>,
    },
}

impl RegistrationCommand {
    /// Makes the call.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let mut client = RegistrationClient::new(target.connect().await?);
        match self {
            Self::Info => {
                let info = target.wait_for(client.get_info(InfoRequest {})).await?;
                Ok(shown(info))
            }
            Self::Notify { refused } => {
                let status = status(refused);
                target
                    .wait_for(client.notify_registration_status(status))
                    .await?;
                Ok(Answer::Done)
            }
        }
    }
}

fn shown(info: PluginInfo) -> Answer {
    Answer::Record(vec![
        ("type", Cell::Text(info.r#type)),
        ("name", Cell::Text(info.name)),
        ("endpoint", Cell::Text(info.endpoint)),
        ("supported_versions", Cell::List(info.supported_versions)),
    ])
}

fn status(refused: Option<String>) -> RegistrationStatus {
    RegistrationStatus {
        plugin_registered: refused.is_none(),
        error: refused.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_makes_it_a_refusal() {
        let refused = status(Some("no such endpoint".to_owned()));
        assert!(!refused.plugin_registered);
        assert_eq!(refused.error, "no such endpoint");
        let registered = status(None);
        assert!(registered.plugin_registered);
        assert_eq!(registered.error, "");
    }
}
