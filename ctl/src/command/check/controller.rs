//! Rules of the Controller service: capabilities, pages, refusals of unknown and empty ids.

use belay_proto::csi::v1::controller_client::ControllerClient;
use belay_proto::csi::v1::controller_service_capability::Type;
use belay_proto::csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest,
    GetCapacityRequest, ListSnapshotsRequest, ListVolumesRequest,
    ValidateVolumeCapabilitiesRequest,
};
use tonic::Code;
use tonic::transport::Channel;

use super::{Check, UNKNOWN};
use crate::access::Access;

type Client = ControllerClient<Channel>;

impl Check<'_> {
    /// False if the socket has no such service: a plugin may serve it on another one.
    pub(super) async fn controller(&mut self) -> bool {
        let mut client = ControllerClient::new(self.channel.clone());
        let request = ControllerGetCapabilitiesRequest {};
        let all = self.call(client.controller_get_capabilities(request)).await;
        if matches!(&all, Err(status) if status.code() == Code::Unimplemented) {
            return false;
        }
        let Some(all) = self.succeed("controller capabilities", all) else {
            return true;
        };
        let name = |Type::Rpc(rpc): &Type| rpc.r#type().as_str_name();
        let names = all
            .capabilities
            .iter()
            .map(|it| it.r#type.as_ref().map(name));
        let has = self.capabilities("controller capabilities", &names.collect::<Vec<_>>());
        self.lists(&mut client, has.contains(&"LIST_VOLUMES")).await;
        self.ids(&mut client, has.contains(&"GET_VOLUME")).await;
        self.snapshots(&mut client, has.contains(&"LIST_SNAPSHOTS"))
            .await;
        if has.contains(&"GET_CAPACITY") {
            let found = self
                .call(client.get_capacity(GetCapacityRequest::default()))
                .await;
            if let Some(found) = self.succeed("GetCapacity", found) {
                let bytes = found.available_capacity;
                self.rule("GetCapacity", bytes >= 0, format!("{bytes} bytes"));
            }
        }
        if has.contains(&"GET_VOLUME_HEALTH") {
            let unknown = self.call(client.controller_get_volume_health(
                ControllerGetVolumeHealthRequest {
                    volume_id: UNKNOWN.to_owned(),
                    ..Default::default()
                },
            ));
            let unknown = unknown.await;
            let why = "for an unknown volume";
            self.expect("ControllerGetVolumeHealth", &unknown, Code::NotFound, why);
        }
        true
    }

    async fn lists(&mut self, client: &mut Client, has: bool) {
        let list = |max_entries, starting_token: &str| ListVolumesRequest {
            max_entries,
            starting_token: starting_token.to_owned(),
        };
        if !has {
            let found = self.call(client.list_volumes(list(0, ""))).await;
            let why = "without LIST_VOLUMES";
            return self.expect("ListVolumes", &found, Code::Unimplemented, why);
        }
        let first = self.call(client.list_volumes(list(1, ""))).await;
        if let Some(first) = self.succeed("ListVolumes", first) {
            let count = first.entries.len();
            self.rule(
                "ListVolumes, page of 1",
                count <= 1,
                format!("{count} entries"),
            );
            let named = first.entries.iter().all(|entry| {
                entry
                    .volume
                    .as_ref()
                    .is_some_and(|volume| !volume.volume_id.is_empty())
            });
            self.rule(
                "ListVolumes, entries",
                named,
                "each must have a volume with an id",
            );
            if !first.next_token.is_empty() {
                let next = self
                    .call(client.list_volumes(list(1, &first.next_token)))
                    .await;
                if let Some(next) = self.succeed("ListVolumes, next page", next) {
                    let moved = next.entries != first.entries;
                    self.rule(
                        "ListVolumes, next page",
                        moved,
                        "must differ from the first",
                    );
                }
            }
        }
        let wrong = self.call(client.list_volumes(list(0, UNKNOWN))).await;
        let why = "for an invalid starting_token";
        self.expect("ListVolumes, token", &wrong, Code::Aborted, why);
    }

    async fn ids(&mut self, client: &mut Client, has_get: bool) {
        let validate = |volume_id: &str| ValidateVolumeCapabilitiesRequest {
            volume_id: volume_id.to_owned(),
            volume_capabilities: vec![Access::default().capability()],
            ..Default::default()
        };
        let name = "ValidateVolumeCapabilities";
        let empty = self
            .call(client.validate_volume_capabilities(validate("")))
            .await;
        self.expect(name, &empty, Code::InvalidArgument, "without volume_id");
        let unknown = self
            .call(client.validate_volume_capabilities(validate(UNKNOWN)))
            .await;
        self.expect(name, &unknown, Code::NotFound, "for an unknown volume");
        let request = ControllerGetVolumeRequest {
            volume_id: UNKNOWN.to_owned(),
        };
        let unknown = self.call(client.controller_get_volume(request)).await;
        let (code, why) = match has_get {
            true => (Code::NotFound, "for an unknown volume"),
            false => (Code::Unimplemented, "without GET_VOLUME"),
        };
        self.expect("ControllerGetVolume", &unknown, code, why);
    }

    async fn snapshots(&mut self, client: &mut Client, has: bool) {
        let list = |snapshot_id: &str, starting_token: &str| ListSnapshotsRequest {
            snapshot_id: snapshot_id.to_owned(),
            starting_token: starting_token.to_owned(),
            ..Default::default()
        };
        if !has {
            let found = self.call(client.list_snapshots(list("", ""))).await;
            let why = "without LIST_SNAPSHOTS";
            return self.expect("ListSnapshots", &found, Code::Unimplemented, why);
        }
        let unknown = self.call(client.list_snapshots(list(UNKNOWN, ""))).await;
        if let Some(unknown) = self.succeed("ListSnapshots", unknown) {
            let count = unknown.entries.len();
            let found = format!("{count} entries for an unknown id");
            self.rule("ListSnapshots", count == 0, found);
        }
        let wrong = self.call(client.list_snapshots(list("", UNKNOWN))).await;
        let why = "for an invalid starting_token";
        self.expect("ListSnapshots, token", &wrong, Code::Aborted, why);
    }
}
