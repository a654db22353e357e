//! The moments of a volume's lifecycle at which accidents happen.

/// The use of the volume.
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

/// The state of the volume when the accident happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// The volume was created, and never staged.
    Created,
    /// The volume is staged and holds data, but no pod uses it.
    Staged,
    /// A pod uses the volume, which holds data.
    Published,
    /// The volume holds data and is unstaged again.
    Unstaged,
    /// The volume holds data and is unstaged; the accident affects the file of its snapshot.
    Snapshot,
    /// A pod uses the volume; the controller has expanded it, but the node has not yet.
    Growing,
    /// A snapshot of the unstaged volume is being copied.
    Copying,
}

impl Moment {
    pub(super) const ALL: [Moment; 7] = [
        Moment::Created,
        Moment::Staged,
        Moment::Published,
        Moment::Unstaged,
        Moment::Snapshot,
        Moment::Growing,
        Moment::Copying,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Moment::Created => "created",
            Moment::Staged => "staged",
            Moment::Published => "published",
            Moment::Unstaged => "unstaged",
            Moment::Snapshot => "snapshot",
            Moment::Growing => "growing",
            Moment::Copying => "copying",
        }
    }

    /// Returns the kind of the volume: a filesystem that depends on the moment, or raw block.
    pub(super) fn kind(self, used_as: Use) -> &'static str {
        match (used_as, self) {
            (Use::Raw, _) => "block",
            // Expanding a mounted ext4 requires CAP_SYS_RESOURCE.
            (Use::Filesystem, Moment::Growing | Moment::Unstaged) => "xfs",
            (Use::Filesystem, Moment::Staged) => "btrfs",
            (Use::Filesystem, _) => "ext4",
        }
    }

    /// Returns the filesystem of the state directory. On one that can share blocks, nothing is
    /// copied.
    pub(super) fn filesystem(self) -> &'static str {
        match self {
            Moment::Copying => "ext4",
            _ => "xfs",
        }
    }

    /// Whether the volume was written to before.
    pub(super) fn has_data(self) -> bool {
        self != Moment::Created
    }

    /// Whether the volume has a loop device.
    pub(super) fn is_bound(self) -> bool {
        matches!(self, Moment::Staged | Moment::Published | Moment::Growing)
    }

    /// Whether a pod uses the volume.
    pub(super) fn is_published(self) -> bool {
        matches!(self, Moment::Published | Moment::Growing)
    }

    /// Whether the accident affects the file of a snapshot.
    pub(super) fn has_snapshot(self) -> bool {
        matches!(self, Moment::Snapshot | Moment::Copying)
    }
}
