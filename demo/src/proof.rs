//! Checks of the kernel's state, independent of responses: data that reads back, writes that fail,
//! sizes that grew, mounts and loop devices that are removed.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belay_bed::devices;
use belay_bed::mounts::{Mount, mounts_of};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::demo_dir::DemoDir;
use crate::kind::Kind;
use crate::pattern;
use crate::trouble::Trouble;

/// How many bytes are written and read back.
pub(crate) const DATA_BYTES: usize = 4 << 20;
/// Alignment that satisfies O_DIRECT on any block device.
const ALIGNMENT: usize = 4096;
/// Bit of CAP_SYS_RESOURCE (capability.h).
const CAP_SYS_RESOURCE: u32 = 24;

/// The path of a volume's data: a file in a filesystem, or the device node itself.
pub(crate) fn data_path(kind: Kind, target: &Path) -> PathBuf {
    if kind.is_block() {
        target.to_owned()
    } else {
        target.join("data")
    }
}

/// Writes the pattern of `seed` and makes it durable.
///
/// # Errors
/// A system call fails.
pub(crate) fn write(kind: Kind, target: &Path, seed: u64) -> Result<Duration, Trouble> {
    let path = data_path(kind, target);
    let mut buffer = Aligned::new(DATA_BYTES);
    pattern::fill(buffer.bytes(), seed);
    let started = Instant::now();
    open(
        kind,
        &path,
        OpenOptions::new().write(true).create(!kind.is_block()),
    )
    .and_then(|mut file| {
        file.write_all(buffer.bytes())?;
        file.sync_all()
    })
    .map_err(|e| Trouble::own(format!("write {}", path.display()), e))?;
    Ok(started.elapsed())
}

/// Reads back and compares with the pattern of `seed`.
///
/// # Errors
/// A system call fails, or a byte differs.
pub(crate) fn compare(kind: Kind, target: &Path, seed: u64) -> Result<Duration, Trouble> {
    let path = data_path(kind, target);
    let mut buffer = Aligned::new(DATA_BYTES);
    let started = Instant::now();
    open(kind, &path, OpenOptions::new().read(true))
        .and_then(|mut file| file.read_exact(buffer.bytes()))
        .map_err(|e| Trouble::own(format!("read {}", path.display()), e))?;
    let took = started.elapsed();
    match pattern::first_difference(buffer.bytes(), seed) {
        None => Ok(took),
        Some(at) => {
            let text = format!(
                "{}: differs from the written data at byte {at}",
                path.display()
            );
            Err(Trouble::Untrue(text))
        }
    }
}

/// A device is read and written past the page cache, so that the data comes from the device.
pub(crate) fn open(kind: Kind, path: &Path, options: &mut OpenOptions) -> std::io::Result<File> {
    let flags = if kind.is_block() {
        OFlags::DIRECT
    } else {
        OFlags::empty()
    };
    options.custom_flags(flags.bits().cast_signed()).open(path)
}

/// Proves that nothing can be written below `target`.
///
/// # Errors
/// Writing succeeds, or fails with another errno than EROFS.
pub(crate) fn refuses_writes(target: &Path) -> Result<(), Trouble> {
    let path = target.join("must-not-be");
    match File::create(&path) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::ROFS) => Ok(()),
        Err(error) => Err(Trouble::own(
            format!("{} (expected EROFS)", path.display()),
            error,
        )),
        Ok(_) => Err(Trouble::Untrue(format!("{}: is writable", path.display()))),
    }
}

/// Proves that unpublish removed the target.
///
/// # Errors
/// The target still exists.
pub(crate) fn is_gone(target: &Path) -> Result<(), Trouble> {
    match target.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Trouble::own(target.display(), error)),
        Ok(_) => Err(Trouble::Untrue(format!(
            "{}: still exists",
            target.display()
        ))),
    }
}

/// Size in bytes of the filesystem at `target`, or of the device.
///
/// # Errors
/// A system call fails.
pub(crate) fn size(kind: Kind, target: &Path) -> Result<u64, Trouble> {
    let size = if kind.is_block() {
        File::open(target).and_then(|mut device| device.seek(SeekFrom::End(0)))
    } else {
        rustix::fs::statvfs(target)
            .map(|fs| fs.f_blocks * fs.f_frsize)
            .map_err(Into::into)
    };
    size.map_err(|e| Trouble::own(target.display(), e))
}

/// Proves that no mount and no loop device of any volume is left.
///
/// # Errors
/// One is left; the text names it.
pub(crate) fn nothing_is_left(demo_dir: &DemoDir) -> Result<(), Trouble> {
    let state = demo_dir.state();
    let is_beneath = |mount: &Mount| mount.point != state && mount.point.starts_with(&state);
    if let Some(left) = mounts_of("self")?.into_iter().find(is_beneath) {
        return Err(Trouble::Untrue(format!(
            "{}: still mounted",
            left.point.display()
        )));
    }
    let all = devices::list()?;
    let disks = devices::bound_to(&all, &demo_dir.image())?;
    none_of(&devices::bound_on(&all, &disks))
}

/// Proves that no loop device is bound to that volume's file.
///
/// # Errors
/// One is; the text names it.
pub(crate) fn is_unbound(demo_dir: &DemoDir, volume: &str) -> Result<(), Trouble> {
    let file = demo_dir.volumes().join(volume);
    none_of(&devices::bound_to(&devices::list()?, &file)?)
}

/// One check is enough: losetup reads a device by a single ioctl, and neither an unstage nor
/// `devices::release_and_wait` ends before the device is unbound.
fn none_of(left: &[devices::Loop]) -> Result<(), Trouble> {
    match left.first() {
        None => Ok(()),
        Some(left) => Err(Trouble::Untrue(format!(
            "{}: still bound",
            left.device.display()
        ))),
    }
}

/// Whether CAP_SYS_RESOURCE, which ext4 requires to grow while mounted, is missing.
///
/// # Errors
/// `/proc/self/status` cannot be read.
pub(crate) fn lacks_sys_resource() -> Result<bool, Trouble> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(!has_capability(&status, CAP_SYS_RESOURCE))
}

fn has_capability(status: &str, bit: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> bit & 1 == 1)
}

/// A buffer for O_DIRECT.
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(crate) fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start, len }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_read_by_its_bit() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001fffeffffff\n";
        assert!(!has_capability(status, CAP_SYS_RESOURCE));
        assert!(has_capability(status, 21) && has_capability(status, 25));
        assert!(!has_capability("", 21));
    }

    #[test]
    fn data_comes_back_and_a_flipped_byte_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let file = data_path(Kind::Xfs, directory.path());
        write(Kind::Xfs, directory.path(), 3).unwrap();
        compare(Kind::Xfs, directory.path(), 3).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[77] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let error = compare(Kind::Xfs, directory.path(), 3)
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("at byte 77"), "{error}");
    }

    #[test]
    fn a_writable_target_does_not_pass_as_read_only() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(
            refuses_writes(directory.path()),
            Err(Trouble::Untrue(_))
        ));
    }
}
