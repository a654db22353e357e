//! Calls that change something: create, delete, attach, detach, expand, modify.

use belay_proto::csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use belay_proto::csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerModifyVolumeRequest,
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest,
    DeleteVolumeRequest, TopologyRequirement, VolumeContentSource,
};

use super::Call;
use super::flags::{Attach, Create, Detach, Expand, Modify, One};
use super::look::volume;
use crate::access::{map, topology};
use crate::failure::Failure;
use crate::render::{Answer, Cell};

impl Call<'_> {
    pub(super) async fn create(mut self, flags: Create) -> Result<Answer, Failure> {
        let segments = topology(flags.topology);
        let request = CreateVolumeRequest {
            name: flags.name,
            capacity_range: range(flags.size, flags.limit),
            volume_capabilities: vec![flags.access.capability()],
            parameters: map(flags.csc.and(flags.parameters)),
            secrets: flags.secrets.load()?,
            volume_content_source: source(flags.from_snapshot, flags.from_volume),
            accessibility_requirements: segments.map(|segments| TopologyRequirement {
                requisite: vec![segments.clone()],
                preferred: vec![segments],
            }),
            mutable_parameters: map(flags.mutable),
        };
        let call = self.client.create_volume(request);
        let made = self.target.wait_for(call).await?.volume;
        let made = made.ok_or(Failure::Answer("has no volume"))?;
        Ok(volume(made, None))
    }

    pub(super) async fn delete(mut self, flags: One) -> Result<Answer, Failure> {
        let request = DeleteVolumeRequest {
            volume_id: flags.volume_id,
            secrets: flags.secrets.load()?,
        };
        let call = self.client.delete_volume(request);
        self.target.wait_for(call).await?;
        Ok(Answer::Done)
    }

    pub(super) async fn attach(mut self, flags: Attach) -> Result<Answer, Failure> {
        let request = ControllerPublishVolumeRequest {
            volume_id: flags.volume_id,
            node_id: flags.node_id,
            volume_capability: Some(flags.access.capability()),
            readonly: flags.readonly,
            secrets: flags.secrets.load()?,
            volume_context: flags.context.load()?,
        };
        let call = self.client.controller_publish_volume(request);
        let answer = self.target.wait_for(call).await?;
        let context = self.target.visibility.context(answer.publish_context);
        Ok(Answer::Record(vec![("publish_context", context)]))
    }

    pub(super) async fn detach(mut self, flags: Detach) -> Result<Answer, Failure> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: flags.volume_id,
            node_id: flags.node_id,
            secrets: flags.secrets.load()?,
        };
        let call = self.client.controller_unpublish_volume(request);
        self.target.wait_for(call).await?;
        Ok(Answer::Done)
    }

    pub(super) async fn modify(mut self, flags: Modify) -> Result<Answer, Failure> {
        let request = ControllerModifyVolumeRequest {
            volume_id: flags.volume_id,
            secrets: flags.secrets.load()?,
            mutable_parameters: map(flags.parameters),
        };
        let call = self.client.controller_modify_volume(request);
        self.target.wait_for(call).await?;
        Ok(Answer::Done)
    }

    pub(super) async fn expand(mut self, flags: Expand) -> Result<Answer, Failure> {
        let request = ControllerExpandVolumeRequest {
            volume_id: flags.volume_id,
            capacity_range: range(Some(flags.size), flags.limit),
            secrets: flags.secrets.load()?,
            volume_capability: flags.access.capability_if_asked(),
        };
        let call = self.client.controller_expand_volume(request);
        let grown = self.target.wait_for(call).await?;
        let node = Cell::Flag(grown.node_expansion_required);
        Ok(Answer::Record(vec![
            ("capacity_bytes", Cell::Bytes(grown.capacity_bytes)),
            ("node_expansion_required", node),
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

fn range(size: Option<i64>, limit: Option<i64>) -> Option<CapacityRange> {
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
