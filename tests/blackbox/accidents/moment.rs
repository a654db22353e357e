//! The moments of a volume's lifecycle at which accidents happen.

/// What the volume is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Filesystem,
    Raw,
}

impl Use {
    pub(super) const ALL: [Use; 2] = [Use::Filesystem, Use::Raw];

    pub(super) fn name(self) -> &'static str {
        match self {
            Use::Filesystem => "filesystem",
            Use::Raw => "raw",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Use::Filesystem => "Volumes with a filesystem",
            Use::Raw => "Raw block volumes",
        }
    }
}

/// The volume's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Created, and never attached.
    Created,
    /// Attached, and never staged.
    Attached,
    /// Staged, with data, without a pod.
    Staged,
    /// In use by a pod, with data.
    Published,
    /// With data, and detached again.
    Detached,
    /// With data and detached; the accident strikes the file of a snapshot of it.
    Snapshot,
    /// In use by a pod; the controller has grown it, and the node not yet.
    Growing,
    /// Detached; a snapshot of it is being copied.
    Copying,
}

impl Moment {
    pub(super) const ALL: [Moment; 8] = [
        Moment::Created,
        Moment::Attached,
        Moment::Staged,
        Moment::Published,
        Moment::Detached,
        Moment::Snapshot,
        Moment::Growing,
        Moment::Copying,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Moment::Created => "created",
            Moment::Attached => "attached",
            Moment::Staged => "staged",
            Moment::Published => "published",
            Moment::Detached => "detached",
            Moment::Snapshot => "snapshot",
            Moment::Growing => "growing",
            Moment::Copying => "copying",
        }
    }

    /// The kind of the volume: another filesystem at another moment, or raw.
    pub(super) fn kind(self, used_as: Use) -> &'static str {
        match (used_as, self) {
            (Use::Raw, _) => "block",
            // A mounted ext4 is grown only with CAP_SYS_RESOURCE.
            (Use::Filesystem, Moment::Growing | Moment::Detached) => "xfs",
            (Use::Filesystem, Moment::Staged) => "btrfs",
            (Use::Filesystem, _) => "ext4",
        }
    }

    /// The filesystem of the state directory: where blocks can be shared, nothing is copied.
    pub(super) fn filesystem(self) -> &'static str {
        match self {
            Moment::Copying => "ext4",
            _ => "xfs",
        }
    }

    /// The volume was written to before.
    pub(super) fn has_data(self) -> bool {
        !matches!(self, Moment::Created | Moment::Attached)
    }

    /// The volume has a loop device.
    pub(super) fn is_bound(self) -> bool {
        matches!(self, Moment::Staged | Moment::Published | Moment::Growing)
    }

    /// A pod has it.
    pub(super) fn is_published(self) -> bool {
        matches!(self, Moment::Published | Moment::Growing)
    }

    /// The accident affects the file of a snapshot.
    pub(super) fn has_snapshot(self) -> bool {
        matches!(self, Moment::Snapshot | Moment::Copying)
    }
}
