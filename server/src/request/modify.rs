//! The request to change a volume.

use super::context::{Context, Secrets};
use super::ids::VolumeId;
use crate::call::Failure;
use belay_proto::csi::v1 as csi;

/// Change the attributes of a volume.
#[derive(Clone, Debug)]
pub struct ControllerModify {
    /// The volume.
    pub id: VolumeId,
    /// From the attributes class; what it does not name stays as it is.
    pub mutable_parameters: Context,
    /// Credentials.
    pub secrets: Secrets,
}

impl ControllerModify {
    /// Reads a request whose volume ID may have that length: IDs of another driver may exceed the
    /// specification's.
    ///
    /// # Errors
    /// As for other requests, naming the field.
    pub fn read(
        request: csi::ControllerModifyVolumeRequest,
        id_bytes_max: usize,
    ) -> Result<Self, Failure> {
        Ok(Self {
            id: VolumeId::at_most(id_bytes_max, request.volume_id)?,
            mutable_parameters: Context::new("mutable_parameters", request.mutable_parameters)?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}
