//! The requests for the health of volumes and storage.

use super::context::Secrets;
use super::controller::{given, most};
use super::paths::looked_up;
use super::text::{STRING_BYTES_MAX, VolumeId};
use crate::call::Failure;
use belay_proto::csi::v1 as csi;
use std::path::PathBuf;

/// A request to the controller for the health of a volume, as reported by the storage system.
#[derive(Clone, Debug)]
pub struct GetVolumeHealth {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl TryFrom<csi::ControllerGetVolumeHealthRequest> for GetVolumeHealth {
    type Error = Failure;

    fn try_from(request: csi::ControllerGetVolumeHealthRequest) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::new(request.volume_id)?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

/// A request to list unhealthy volumes, page by page.
#[derive(Clone, Debug)]
pub struct ListVolumeHealth {
    /// Maximum number of entries in the response; `None` means no limit.
    pub max_entries: Option<usize>,
    /// The token that was returned with the previous page; `None` requests the first page.
    pub starting_token: Option<String>,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl TryFrom<csi::ControllerListVolumeHealthRequest> for ListVolumeHealth {
    type Error = Failure;

    fn try_from(request: csi::ControllerListVolumeHealthRequest) -> Result<Self, Failure> {
        Ok(Self {
            max_entries: most(request.max_entries)?,
            starting_token: given(request.starting_token),
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

/// A request to the node agent for the health of a volume on this node. The volume need not be
/// staged or published.
#[derive(Clone, Debug)]
pub struct NodeVolumeHealth {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The path where the volume is or should be staged, if known. A relative path is ignored.
    pub staging: Option<PathBuf>,
    /// The path where the volume is or should be published, if known. A relative path is ignored.
    pub target: Option<PathBuf>,
}

impl TryFrom<csi::NodeGetVolumeHealthRequest> for NodeVolumeHealth {
    type Error = Failure;

    fn try_from(request: csi::NodeGetVolumeHealthRequest) -> Result<Self, Failure> {
        Self::read(request, STRING_BYTES_MAX)
    }
}

impl NodeVolumeHealth {
    /// Reads a request whose volume ID may have up to `id_bytes_max` bytes.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
    pub fn read(
        request: csi::NodeGetVolumeHealthRequest,
        id_bytes_max: usize,
    ) -> Result<Self, Failure> {
        let path = |field, path| given(path).map(|path| looked_up(field, path)).transpose();
        Ok(Self {
            id: VolumeId::at_most(id_bytes_max, request.volume_id)?,
            staging: path("staging_target_path", request.staging_target_path)?,
            target: path("volume_publish_path", request.volume_publish_path)?,
        })
    }
}

/// A request to the node agent for the health of the storage behind all volumes on this node.
#[derive(Clone, Debug)]
pub struct StorageHealth {
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl TryFrom<csi::NodeGetStorageHealthRequest> for StorageHealth {
    type Error = Failure;

    fn try_from(request: csi::NodeGetStorageHealthRequest) -> Result<Self, Failure> {
        Ok(Self {
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Kind;
    use std::collections::HashMap;

    #[test]
    fn a_volume_is_required_and_paths_are_not() {
        let missing = "volume_id: is required, but empty";
        let refused = NodeVolumeHealth::try_from(csi::NodeGetVolumeHealthRequest::default());
        assert_eq!(refused.unwrap_err().message, missing);
        let refused = GetVolumeHealth::try_from(csi::ControllerGetVolumeHealthRequest::default());
        assert_eq!(refused.unwrap_err().message, missing);

        let mut request = csi::NodeGetVolumeHealthRequest {
            volume_id: "vol-1".to_owned(),
            ..Default::default()
        };
        let bare = NodeVolumeHealth::try_from(request.clone()).unwrap();
        assert_eq!((bare.staging, bare.target), (None, None));
        request.staging_target_path = "/staging".to_owned();
        request.volume_publish_path = "/a\0b".to_owned();
        let refused = NodeVolumeHealth::try_from(request.clone()).unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid);
        assert!(refused.message.starts_with("volume_publish_path: "));
        request.volume_publish_path = "/target".to_owned();
        let whole = NodeVolumeHealth::try_from(request).unwrap();
        assert_eq!(whole.staging, Some(PathBuf::from("/staging")));
        assert_eq!(whole.target, Some(PathBuf::from("/target")));
    }

    #[test]
    fn a_page_size_is_not_negative_and_zero_means_no_limit() {
        let page = |max_entries, token: &str| {
            ListVolumeHealth::try_from(csi::ControllerListVolumeHealthRequest {
                max_entries,
                starting_token: token.to_owned(),
                ..Default::default()
            })
        };
        let refused = page(-1, "").unwrap_err();
        assert_eq!(refused.message, "max_entries: -1 is negative");
        let all = page(0, "").unwrap();
        assert_eq!((all.max_entries, all.starting_token), (None, None));
        let some = page(3, "vol-1").unwrap();
        assert_eq!(some.max_entries, Some(3));
        assert_eq!(some.starting_token.as_deref(), Some("vol-1"));
    }

    #[test]
    fn secrets_are_kept_and_never_printed() {
        let secrets = HashMap::from([("password".to_owned(), "hunter2".to_owned())]);
        let get = GetVolumeHealth::try_from(csi::ControllerGetVolumeHealthRequest {
            volume_id: "vol-1".to_owned(),
            secrets: secrets.clone(),
        });
        let list = ListVolumeHealth::try_from(csi::ControllerListVolumeHealthRequest {
            secrets: secrets.clone(),
            ..Default::default()
        });
        let storage = StorageHealth::try_from(csi::NodeGetStorageHealthRequest { secrets });
        let (get, list, storage) = (get.unwrap(), list.unwrap(), storage.unwrap());
        assert_eq!(get.secrets.get("password"), Some("hunter2"));
        for printed in [
            format!("{get:?}"),
            format!("{list:?}"),
            format!("{storage:?}"),
        ] {
            assert!(!printed.contains("hunter2"), "{printed}");
        }
    }
}
