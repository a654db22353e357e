//! How a volume becomes a block device. Nothing here mounts.

mod loops;

pub(crate) use loops::{
    Attached, Backing, FileName, Leftover, LoopDir, Orphan, Remnant, Unread, file_name_of,
    is_claimed, loop_path,
};
