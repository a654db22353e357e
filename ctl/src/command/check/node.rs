//! Rules of the Node service.

use belay_proto::csi::v1::node_client::NodeClient;
use belay_proto::csi::v1::node_service_capability::Type;
use belay_proto::csi::v1::{
    NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
};
use tonic::Code;

use super::{Check, UNKNOWN};

/// NodeGetInfoResponse.node_id: at most so many bytes.
const NODE_ID_MAX: usize = 256;

impl Check<'_> {
    /// False if the socket has no such service.
    pub(super) async fn node(&mut self) -> bool {
        let mut client = NodeClient::new(self.channel.clone());
        let all = self
            .call(client.node_get_capabilities(NodeGetCapabilitiesRequest {}))
            .await;
        if matches!(&all, Err(status) if status.code() == Code::Unimplemented) {
            return false;
        }
        let Some(all) = self.succeed("node capabilities", all) else {
            return true;
        };
        let name = |Type::Rpc(rpc): &Type| rpc.r#type().as_str_name();
        let names = all
            .capabilities
            .iter()
            .map(|it| it.r#type.as_ref().map(name));
        let has = self.capabilities("node capabilities", &names.collect::<Vec<_>>());

        let info = self.call(client.node_get_info(NodeGetInfoRequest {})).await;
        if let Some(info) = self.succeed("NodeGetInfo", info) {
            let (id, limit) = (info.node_id, info.max_volumes_per_node);
            let fits = !id.is_empty() && id.len() <= NODE_ID_MAX;
            self.rule(
                "NodeGetInfo, node_id",
                fits,
                format!("{id:?}, {} bytes", id.len()),
            );
            self.rule(
                "NodeGetInfo, limit",
                limit >= 0,
                format!("{limit} volumes per node"),
            );
        }

        let stats = |volume_id: &str, volume_path: &str| NodeGetVolumeStatsRequest {
            volume_id: volume_id.to_owned(),
            volume_path: volume_path.to_owned(),
            ..Default::default()
        };
        let name = "NodeGetVolumeStats";
        if has.contains(&"GET_VOLUME_STATS") {
            let path = "/belayctl-check-no-such-path";
            let empty = self
                .call(client.node_get_volume_stats(stats("", path)))
                .await;
            self.expect(name, &empty, Code::InvalidArgument, "without volume_id");
            let empty = self
                .call(client.node_get_volume_stats(stats(UNKNOWN, "")))
                .await;
            self.expect(name, &empty, Code::InvalidArgument, "without volume_path");
            let unknown = self
                .call(client.node_get_volume_stats(stats(UNKNOWN, path)))
                .await;
            self.expect(name, &unknown, Code::NotFound, "for an unknown volume");
        } else {
            let any = self
                .call(client.node_get_volume_stats(stats(UNKNOWN, "/")))
                .await;
            self.expect(name, &any, Code::Unimplemented, "without GET_VOLUME_STATS");
        }
        true
    }
}
