//! Whether the kernel has stopped all writes to the filesystem of the files, after an error of it.
//! Since Linux 6.15, statvfs(3) does not report that of an ext4; its options in
//! proc_pid_mountinfo(5) do.

use super::Files;
use rustix::fs::{AtFlags, StatxFlags};

/// `EXT4_SUPER_MAGIC` of statfs(2).
const EXT4: u64 = 0xef53;

/// The option of a filesystem that was stopped.
const STOPPED: &[u8] = b"emergency_ro";

const MOUNTS: &str = "/proc/self/mountinfo";

impl Files {
    /// Whether it is an ext4 that was stopped. False if that is not known: writing will show.
    pub(in crate::backend::local) fn is_stopped(&self) -> bool {
        let magic = rustix::fs::fstatfs(&self.dir).map(|stat| u64::try_from(stat.f_type));
        if magic != Ok(Ok(EXT4)) {
            return false;
        }
        let stat = rustix::fs::statx(&self.dir, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        let (Ok(stat), Ok(mounts)) = (stat, std::fs::read(MOUNTS)) else {
            return false;
        };
        is_stopped(&mounts, stat.stx_mnt_id)
    }
}

/// Whether the options of that mount's filesystem, the last field of its line, have the word.
fn is_stopped(mounts: &[u8], id: u64) -> bool {
    let id = id.to_string();
    let mut lines = mounts.split(|&byte| byte == b'\n');
    let line = lines.find(|line| line.split(|&byte| byte == b' ').next() == Some(id.as_bytes()));
    let options = line.and_then(|line| line.rsplit(|&byte| byte == b' ').next());
    options.is_some_and(|options| options.split(|&byte| byte == b',').any(|it| it == STOPPED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_counts_among_the_options_of_that_mounts_filesystem_alone() {
        let mounts = b"\
            32 1 7:1 / /a rw,emergency_ro shared:1 - ext4 /dev/emergency_ro rw,errors=remount-ro\n\
            3 1 7:2 / /b rw - ext4 /dev/loop2 rw,errors=remount-ro,emergency_ro\n\
            33 1 7:3 / /c rw - ext4 /dev/loop3 emergency_ro,rw\n\
            333 1 7:4 / /d rw - ext4 /dev/loop4 rw,emergency_ro_not\n";
        let stopped = [3, 32, 33, 333, 2].map(|id| is_stopped(mounts, id));
        assert_eq!(stopped, [true, false, true, false, false]);
        assert!(!is_stopped(b"", 3));
    }
}
