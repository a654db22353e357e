//! The requests to create, delete, get and list snapshots.

use super::context::{Context, Secrets, TopologyRequirement, topology_requirement};
use super::controller::{given, identifying, most};
use super::text::{Name, STRING_BYTES_MAX, SnapshotId, VolumeId, identifying_at_most};
use crate::call::Failure;
use belay_proto::csi::v1 as csi;

/// A request to create a snapshot of a volume.
#[derive(Clone, Debug)]
pub struct CreateSnapshot {
    /// The name of the snapshot. Two calls with the same name request the same snapshot.
    pub name: Name,
    /// The ID of the source volume.
    pub source: VolumeId,
    /// The parameters of the VolumeSnapshotClass.
    pub parameters: Context,
    /// The topology in which it must be possible to restore the snapshot, if any.
    pub topology: Option<TopologyRequirement>,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl CreateSnapshot {
    /// Reads a request whose volume ID may have up to `id_bytes_max` bytes: IDs of other drivers
    /// may exceed the limit of the specification.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
    pub fn read(request: csi::CreateSnapshotRequest, id_bytes_max: usize) -> Result<Self, Failure> {
        let id = &request.source_volume_id;
        identifying_at_most("source_volume_id", id, id_bytes_max)?;
        Ok(Self {
            name: Name::new(request.name)?,
            source: VolumeId::at_most(id_bytes_max, request.source_volume_id)?,
            parameters: Context::new("parameters", request.parameters)?,
            topology: topology_requirement(request.accessibility_requirements)?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

impl TryFrom<csi::CreateSnapshotRequest> for CreateSnapshot {
    type Error = Failure;

    fn try_from(request: csi::CreateSnapshotRequest) -> Result<Self, Failure> {
        Self::read(request, STRING_BYTES_MAX)
    }
}

/// A request to delete a snapshot.
#[derive(Clone, Debug)]
pub struct DeleteSnapshot {
    /// The ID of the snapshot.
    pub id: SnapshotId,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl DeleteSnapshot {
    /// Reads a request whose snapshot ID may have up to `id_bytes_max` bytes.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
    pub fn read(request: csi::DeleteSnapshotRequest, id_bytes_max: usize) -> Result<Self, Failure> {
        Ok(Self {
            id: SnapshotId::at_most(id_bytes_max, request.snapshot_id)?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

impl TryFrom<csi::DeleteSnapshotRequest> for DeleteSnapshot {
    type Error = Failure;

    fn try_from(request: csi::DeleteSnapshotRequest) -> Result<Self, Failure> {
        Self::read(request, STRING_BYTES_MAX)
    }
}

/// A request to get a snapshot.
#[derive(Clone, Debug)]
pub struct GetSnapshot {
    /// The ID of the snapshot.
    pub id: SnapshotId,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl TryFrom<csi::GetSnapshotRequest> for GetSnapshot {
    type Error = Failure;

    fn try_from(request: csi::GetSnapshotRequest) -> Result<Self, Failure> {
        Ok(Self {
            id: SnapshotId::new(request.snapshot_id)?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

/// A request to list snapshots, page by page.
#[derive(Clone, Debug)]
pub struct ListSnapshots {
    /// Maximum number of entries in the response; `None` means no limit.
    pub max_entries: Option<usize>,
    /// The token that was returned with the previous page; `None` requests the first page.
    pub starting_token: Option<String>,
    /// The volume whose snapshots are listed; `None` means all volumes.
    pub source: Option<VolumeId>,
    /// The only snapshot to list; `None` means all snapshots.
    pub id: Option<SnapshotId>,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl TryFrom<csi::ListSnapshotsRequest> for ListSnapshots {
    type Error = Failure;

    fn try_from(request: csi::ListSnapshotsRequest) -> Result<Self, Failure> {
        let source = given(request.source_volume_id);
        if let Some(id) = &source {
            identifying("source_volume_id", id)?;
        }
        Ok(Self {
            max_entries: most(request.max_entries)?,
            starting_token: given(request.starting_token),
            source: source.map(VolumeId::new).transpose()?,
            id: given(request.snapshot_id)
                .map(SnapshotId::new)
                .transpose()?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_invalid_field_is_named() {
        let create = |name: &str, source_volume_id: &str| {
            let request = csi::CreateSnapshotRequest {
                name: name.to_owned(),
                source_volume_id: source_volume_id.to_owned(),
                ..Default::default()
            };
            CreateSnapshot::try_from(request).unwrap_err().message
        };
        assert_eq!(create("", "vol-1"), "name: is required, but empty");
        assert_eq!(
            create("snap", ""),
            "source_volume_id: is required, but empty"
        );
        assert!(create("snap", "a\nb").starts_with("source_volume_id: "));
        let deletion = DeleteSnapshot::try_from(csi::DeleteSnapshotRequest::default());
        let lookup = GetSnapshot::try_from(csi::GetSnapshotRequest::default());
        let missing = "snapshot_id: is required, but empty";
        assert_eq!(deletion.unwrap_err().message, missing);
        assert_eq!(lookup.unwrap_err().message, missing);
    }

    #[test]
    fn empty_filters_are_absent() {
        let all = ListSnapshots::try_from(csi::ListSnapshotsRequest::default()).unwrap();
        assert_eq!((all.max_entries, all.starting_token), (None, None));
        assert_eq!((all.source, all.id), (None, None));
        let some = csi::ListSnapshotsRequest {
            max_entries: 2,
            starting_token: "snap-0".to_owned(),
            source_volume_id: "vol-1".to_owned(),
            snapshot_id: "snap-1".to_owned(),
            ..Default::default()
        };
        let some = ListSnapshots::try_from(some).unwrap();
        assert_eq!(some.max_entries, Some(2));
        assert_eq!(some.starting_token.as_deref(), Some("snap-0"));
        assert_eq!(some.source.unwrap().as_str(), "vol-1");
        assert_eq!(some.id.unwrap().as_str(), "snap-1");
        let negative = csi::ListSnapshotsRequest {
            max_entries: -1,
            ..Default::default()
        };
        let refused = ListSnapshots::try_from(negative).unwrap_err();
        assert_eq!(refused.message, "max_entries: -1 is negative");
    }
}
