//! Calls that change something: create, delete, publish, unpublish, expand.

use belay_proto::csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use belay_proto::csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    TopologyRequirement, VolumeContentSource,
};

use crate::access::{Access, map, topology};
use crate::command::controller::look::volume;
use crate::command::controller::{Call, Create, Publish};
use crate::failure::Failure;
use crate::render::{Answer, Cell};

impl Call<'_> {
    pub(super) async fn create(mut self, flags: Create) -> Result<Answer, Failure> {
        let places = topology(flags.topology);
        let source = source(flags.from_snapshot, flags.from_volume);
        let request = CreateVolumeRequest {
            name: flags.name,
            capacity_range: range(flags.size, flags.limit),
            volume_capabilities: vec![flags.access.capability()],
            parameters: map(flags.parameters),
            volume_content_source: source,
            accessibility_requirements: places.map(|place| TopologyRequirement {
                requisite: vec![place.clone()],
                preferred: vec![place],
            }),
            ..Default::default()
        };
        let made = self
            .target
            .wait_for(self.client.create_volume(request))
            .await?;
        Ok(volume(made.volume.unwrap_or_default(), None))
    }

    pub(super) async fn delete(mut self, volume_id: String) -> Result<Answer, Failure> {
        let request = DeleteVolumeRequest {
            volume_id,
            ..Default::default()
        };
        self.target
            .wait_for(self.client.delete_volume(request))
            .await?;
        Ok(Answer::Done)
    }

    pub(super) async fn publish(mut self, flags: Publish) -> Result<Answer, Failure> {
        let request = ControllerPublishVolumeRequest {
            volume_id: flags.volume_id,
            node_id: flags.node_id,
            volume_capability: Some(flags.access.capability()),
            readonly: flags.readonly,
            volume_context: map(flags.volume_context),
            ..Default::default()
        };
        let answer = self
            .target
            .wait_for(self.client.controller_publish_volume(request))
            .await?;
        let context = Cell::Pairs(answer.publish_context.into_iter().collect());
        Ok(Answer::Record(vec![("publish_context", context)]))
    }

    pub(super) async fn unpublish(
        mut self,
        volume_id: String,
        node_id: String,
    ) -> Result<Answer, Failure> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id,
            node_id,
            ..Default::default()
        };
        self.target
            .wait_for(self.client.controller_unpublish_volume(request))
            .await?;
        Ok(Answer::Done)
    }

    pub(super) async fn expand(
        mut self,
        volume_id: String,
        capacity_range: Option<CapacityRange>,
        access: Access,
    ) -> Result<Answer, Failure> {
        let request = ControllerExpandVolumeRequest {
            volume_id,
            capacity_range,
            volume_capability: access.capability_if_asked(),
            ..Default::default()
        };
        let grown = self
            .target
            .wait_for(self.client.controller_expand_volume(request))
            .await?;
        Ok(Answer::Record(vec![
            ("capacity_bytes", Cell::Bytes(grown.capacity_bytes)),
            (
                "node_expansion_required",
                Cell::Flag(grown.node_expansion_required),
            ),
        ]))
    }
}

/// At most one of the two is given.
fn source(snapshot: Option<String>, volume: Option<String>) -> Option<VolumeContentSource> {
    let from_snapshot = snapshot.map(|snapshot_id| Type::Snapshot(SnapshotSource { snapshot_id }));
    let from_volume = volume.map(|volume_id| Type::Volume(VolumeSource { volume_id }));
    let source = from_snapshot.or(from_volume)?;
    Some(VolumeContentSource {
        r#type: Some(source),
    })
}

pub(super) fn range(size: Option<i64>, limit: Option<i64>) -> Option<CapacityRange> {
    (size.is_some() || limit.is_some()).then(|| CapacityRange {
        required_bytes: size.unwrap_or(0),
        limit_bytes: limit.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_sent_only_if_one_was_given() {
        assert_eq!(source(None, None), None);
        let sent = source(Some("snap-1".to_owned()), None).and_then(|source| source.r#type);
        let snapshot_id = "snap-1".to_owned();
        assert_eq!(sent, Some(Type::Snapshot(SnapshotSource { snapshot_id })));
        let sent = source(None, Some("vol-1".to_owned())).and_then(|source| source.r#type);
        let volume_id = "vol-1".to_owned();
        assert_eq!(sent, Some(Type::Volume(VolumeSource { volume_id })));
    }

    #[test]
    fn a_range_is_sent_only_if_a_size_was_given() {
        assert_eq!(range(None, None), None);
        let sent = |required_bytes, limit_bytes| {
            Some(CapacityRange {
                required_bytes,
                limit_bytes,
            })
        };
        assert_eq!(range(Some(5), None), sent(5, 0));
        assert_eq!(range(None, Some(9)), sent(0, 9));
    }
}
