//! The requests to change a volume, and the bounds for the size of a volume.

use super::capability::Capability;
use super::context::{Context, Secrets};
use super::text::{STRING_BYTES_MAX, VolumeId};
use crate::call::Failure;
use belay_proto::csi::v1 as csi;

/// Bounds for the size of a volume, in bytes; at least one of the two is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CapacityRange {
    /// Minimum size in bytes; 0 means no lower bound.
    pub required_bytes: u64,
    /// Maximum size in bytes; 0 means no upper bound.
    pub limit_bytes: u64,
}

impl TryFrom<csi::CapacityRange> for CapacityRange {
    type Error = Failure;

    fn try_from(range: csi::CapacityRange) -> Result<Self, Failure> {
        let required_bytes = bytes("capacity_range.required_bytes", range.required_bytes)?;
        let limit_bytes = bytes("capacity_range.limit_bytes", range.limit_bytes)?;
        if required_bytes == 0 && limit_bytes == 0 {
            let why = "required_bytes and limit_bytes are 0; set one of them";
            return Err(Failure::invalid("capacity_range", why));
        }
        if limit_bytes != 0 && limit_bytes < required_bytes {
            let why = format_args!("{limit_bytes} is less than required_bytes {required_bytes}");
            return Err(Failure::invalid("capacity_range.limit_bytes", why));
        }
        Ok(Self {
            required_bytes,
            limit_bytes,
        })
    }
}

fn bytes(field: &str, value: i64) -> Result<u64, Failure> {
    u64::try_from(value).map_err(|_| Failure::invalid(field, format_args!("{value} is negative")))
}

/// A request to grow a volume.
#[derive(Clone, Debug)]
pub struct ControllerExpand {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The bounds for the new size.
    pub range: CapacityRange,
    /// The use of the volume; `None` if unknown.
    pub capability: Option<Capability>,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl ControllerExpand {
    /// Reads a request whose volume ID may have up to `id_bytes_max` bytes: IDs of other drivers
    /// may exceed the limit of the specification.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
    pub fn read(
        request: csi::ControllerExpandVolumeRequest,
        id_bytes_max: usize,
    ) -> Result<Self, Failure> {
        let id = VolumeId::at_most(id_bytes_max, request.volume_id)?;
        let Some(range) = request.capacity_range else {
            return Err(Failure::invalid(
                "capacity_range",
                "is required, but not set",
            ));
        };
        Ok(Self {
            id,
            range: range.try_into()?,
            capability: Capability::optional("volume_capability", request.volume_capability)?,
            secrets: Secrets::new(request.secrets)?,
        })
    }
}

impl TryFrom<csi::ControllerExpandVolumeRequest> for ControllerExpand {
    type Error = Failure;

    fn try_from(request: csi::ControllerExpandVolumeRequest) -> Result<Self, Failure> {
        Self::read(request, STRING_BYTES_MAX)
    }
}

/// A request to change the attributes of a volume.
#[derive(Clone, Debug)]
pub struct ControllerModify {
    /// The ID of the volume.
    pub id: VolumeId,
    /// The parameters of the VolumeAttributesClass. All other parameters of the volume remain
    /// unchanged.
    pub mutable_parameters: Context,
    /// The credentials in the request.
    pub secrets: Secrets,
}

impl ControllerModify {
    /// Reads a request whose volume ID may have up to `id_bytes_max` bytes: IDs of other drivers
    /// may exceed the limit of the specification.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field, if a field is missing or invalid.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradicting_and_negative_sizes_are_refused() {
        let cases = [
            (
                0,
                0,
                "capacity_range: required_bytes and limit_bytes are 0; set one of them",
            ),
            (-1, 0, "capacity_range.required_bytes: -1 is negative"),
            (
                1,
                i64::MIN,
                "capacity_range.limit_bytes: -9223372036854775808 is negative",
            ),
            (
                2,
                1,
                "capacity_range.limit_bytes: 1 is less than required_bytes 2",
            ),
        ];
        for (required_bytes, limit_bytes, why) in cases {
            let range = csi::CapacityRange {
                required_bytes,
                limit_bytes,
            };
            let refused = CapacityRange::try_from(range).unwrap_err();
            assert_eq!(refused.message, why);
        }
    }

    #[test]
    fn one_bound_is_enough_and_equal_bounds_are_fine() {
        for (required_bytes, limit_bytes) in [(1, 0), (0, 1), (7, 7), (7, 8)] {
            let range = csi::CapacityRange {
                required_bytes,
                limit_bytes,
            };
            assert!(CapacityRange::try_from(range).is_ok(), "{range:?}");
        }
    }
}
