//! Error responses of the API. Each error response has a code, which determines the meaning, and a
//! reason. Both are texts, never null. Only the status of a duplicate name has been observed; the
//! other statuses follow convention.

use crate::http::Response;
use serde_json::json;

/// The reason why the API refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key is wrong.
    Authentication,
    /// Too many calls.
    Rate,
    /// The API does not have the path, or the body is not JSON.
    NoSuchPath,
    /// The name of a new volume is already taken.
    DuplicateName,
    /// The call would exceed a limit of the account.
    Quota,
    /// A size is missing.
    NoSize,
    /// No volume can have this size.
    BadSize,
    /// The region has no volume with this ID.
    NoVolume,
    /// No volume can have this ID.
    BadVolumeId,
    /// The volume cannot be attached, since its status is not `available`.
    AttachedElsewhere,
    /// The instance does not exist.
    NoInstance,
    /// The volume is not attached.
    NotAttached,
    /// An attached volume cannot be expanded.
    StillAttached,
    /// A volume cannot shrink.
    NotLarger,
    /// The volume is being changed.
    CannotResize,
    /// The volume is in use.
    DeleteFailed,
    /// The region has no snapshot with this ID.
    NoSnapshot,
    /// Another snapshot of the volume is being created.
    SnapshotInProcess,
    /// A volume is being created from the snapshot.
    SnapshotInUse,
    /// The region has no cluster with this ID.
    NoCluster,
    /// No volume can have this name.
    BadName,
    /// An operation of the twin itself has failed.
    Broken,
}

impl Refusal {
    /// Returns the value of `code` in the body of the response.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Authentication => "authentication_failed",
            Self::Rate => "too_many_requests",
            Self::NoSuchPath => "",
            Self::DuplicateName => "database_volume_duplicate_name",
            Self::Quota => "quota_limit_reached",
            Self::NoSize => "parameter_size_missing",
            Self::BadSize => "volume_invalid_size",
            Self::NoVolume => "database_volume_not_found",
            Self::BadVolumeId => "database_volume_id_invalid",
            Self::AttachedElsewhere => "database_volume_cannot_multiple_attach",
            Self::NoInstance => "database_instance_find",
            Self::NotAttached => "database_volume_not_attached",
            Self::StillAttached => "database_volume_still_attached_cannot_resize",
            Self::NotLarger => "parameter_volume_size_must_increase",
            Self::CannotResize => "cannot_resize_volume",
            Self::DeleteFailed => "database_volume_delete_failed",
            Self::NoSnapshot => "database_snapshot_not_found",
            Self::SnapshotInProcess => "database_snapshot_create_already_in_process",
            Self::SnapshotInUse => "database_snapshot_cannot_delete_in_use",
            Self::NoCluster => "database_kubernetes_cluster_not_found",
            Self::BadName => "parameter_name_invalid",
            Self::Broken => "internal_error",
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::Authentication => 401,
            Self::Rate => 429,
            Self::Quota => 403,
            Self::Broken => 500,
            Self::NoSuchPath
            | Self::NoVolume
            | Self::NoInstance
            | Self::NoSnapshot
            | Self::NoCluster => 404,
            Self::DuplicateName
            | Self::AttachedElsewhere
            | Self::NotAttached
            | Self::StillAttached
            | Self::DeleteFailed
            | Self::SnapshotInProcess
            | Self::SnapshotInUse => 409,
            Self::NoSize
            | Self::BadSize
            | Self::BadVolumeId
            | Self::NotLarger
            | Self::CannotResize
            | Self::BadName => 400,
        }
    }

    /// Returns the error response with this status; `None` means the usual status of the refusal.
    #[must_use]
    pub fn response(self, status: Option<u16>) -> Response {
        let code = self.code();
        let body = match self {
            Self::Authentication => json!({
                "result": "requires_authentication", "status": 401, "code": code,
                "reason": "the key is not known",
            }),
            Self::NoSuchPath => json!("404 page not found"),
            _ => json!({"code": code, "reason": format!("refused by the twin: {code}")}),
        };
        Response::json(status.unwrap_or_else(|| self.status()), &body)
    }
}
