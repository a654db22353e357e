//! Rules of the Identity service.

use belay_proto::csi::v1::identity_client::IdentityClient;
use belay_proto::csi::v1::plugin_capability::Type;
use belay_proto::csi::v1::{GetPluginCapabilitiesRequest, GetPluginInfoRequest, ProbeRequest};
use tonic::Code;

use super::Check;
use crate::failure::Failure;
use crate::report::Verdict;

/// GetPluginInfoResponse.name: at most so many characters.
const NAME_MAX: usize = 63;

impl Check<'_> {
    /// # Errors
    /// GetPluginInfo fails: it is no CSI driver.
    pub(super) async fn identity(&mut self) -> Result<(), Failure> {
        let mut client = IdentityClient::new(self.channel.clone());
        let info = self
            .target
            .wait_for(client.get_plugin_info(GetPluginInfoRequest {}))
            .await?;
        self.rule(
            "plugin name",
            is_name(&info.name),
            format!("{:?}", info.name),
        );
        let version = format!("{:?}", info.vendor_version);
        self.rule("vendor version", !info.vendor_version.is_empty(), version);

        let probe = self.call(client.probe(ProbeRequest {})).await;
        let (verdict, found) = match &probe {
            Ok(answer) if answer.ready.unwrap_or(true) => (Verdict::Ok, "ready".to_owned()),
            Ok(_) => (Verdict::Warn, "not ready".to_owned()),
            Err(status) if status.code() == Code::FailedPrecondition => {
                (Verdict::Warn, format!("not ready: {}", status.message()))
            }
            Err(status) => (Verdict::No, belay_proto::code::describe(status)),
        };
        self.report.add(verdict, "Probe", found);

        let call = client.get_plugin_capabilities(GetPluginCapabilitiesRequest {});
        let all = self.call(call).await;
        let all = self.succeed("plugin capabilities", all).unwrap_or_default();
        let mut names = Vec::new();
        for capability in &all.capabilities {
            names.push(match &capability.r#type {
                Some(Type::Service(it)) => Some(it.r#type().as_str_name()),
                Some(Type::VolumeExpansion(it)) => Some(it.r#type().as_str_name()),
                None => None,
            });
        }
        self.capabilities("plugin capabilities", &names);
        Ok(())
    }
}

/// A domain name in reverse or not, as RFC 1035 section 2.3.1 has them, with upper case too.
fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let ends = |at: Option<char>| at.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= NAME_MAX
        && name.chars().all(is_plain)
        && ends(name.chars().next())
        && ends(name.chars().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_domain_name_of_at_most_63_characters() {
        assert!(is_name("local.csi.belay.dev") && is_name("a"));
        for wrong in ["", "-a", "a.", "a_b", "a b", &"a".repeat(64)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
