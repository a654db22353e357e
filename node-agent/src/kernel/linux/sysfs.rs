//! Loop devices, and the filesystems on block devices, in sysfs. The kernel serves every read from
//! memory, even if the disk hangs.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::kernel::{Error, Ext4Error, Ext4Errors, LoopFile, Result};

/// Maximum length of an attribute that is a number, or the name of a kernel function (at most 32
/// bytes in the superblock).
const TEXT_BYTES_MAX: usize = 64;

/// Maximum length of an attribute in bytes: one page.
const PATH_BYTES_MAX: usize = 4096;

/// The number of bytes of a sector in sysfs, regardless of the device.
pub(super) const SECTOR_BYTES: u64 = 512;

/// Implements [`crate::kernel::Kernel::loop_bytes`].
pub(super) fn loop_bytes(number: u32) -> Result<Option<u64>> {
    let sectors = integer(&PathBuf::from(format!("/sys/block/loop{number}/size")))?;
    Ok(sectors.map(|sectors| sectors.saturating_mul(SECTOR_BYTES)))
}

/// Implements [`crate::kernel::Kernel::loop_file`].
pub(super) fn loop_file(number: u32) -> Result<Option<LoopFile>> {
    let folder = PathBuf::from(format!("/sys/block/loop{number}/loop"));
    let file = folder.join("backing_file");
    // Read the path as bytes: it may contain any byte but zero, even a newline.
    let mut path = match std::fs::read(&file) {
        Ok(path) => path,
        // The device is unbound, or is being unbound.
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(unread(&file, &error)),
    };
    if path.pop().is_none() {
        return Ok(None);
    }
    let Some(autoclear) = integer(&folder.join("autoclear"))? else {
        return Ok(None);
    };
    Ok(Some(LoopFile {
        path: OsString::from_vec(path).into(),
        autoclear: autoclear != 0,
    }))
}

/// Implements [`crate::kernel::Kernel::loop_file_name`].
pub(super) fn loop_file_name(number: u32) -> Result<Option<OsString>> {
    let file = PathBuf::from(format!("/sys/block/loop{number}/loop/backing_file"));
    let mut text = vec![0; PATH_BYTES_MAX];
    let read = File::open(&file).and_then(|mut opened| opened.read(&mut text));
    match read {
        Ok(length) => text.truncate(length),
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(unread(&file, &error)),
    }
    text.pop();
    let path = PathBuf::from(OsString::from_vec(text));
    Ok(path.file_name().map(ToOwned::to_owned))
}

/// Whether the attribute or its device does not exist. Reading an attribute of a device that is
/// being removed fails with `ENODEV`.
pub(super) fn is_gone(error: &std::io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOENT | Errno::NODEV | Errno::NXIO))
}

pub(super) fn unread(path: &Path, error: &std::io::Error) -> Error {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    Error::at("read", path, errno)
}

/// Implements `Kernel::ext4_errors`, by the device's name.
pub(super) fn ext4_errors(device: &str) -> Result<Option<Ext4Errors>> {
    let folder = Path::new("/sys/fs/ext4").join(device);
    let Some(count) = integer(&folder.join("errors_count"))? else {
        return Ok(None);
    };
    let warnings = integer(&folder.join("warning_count"))?.unwrap_or_default();
    if count == 0 {
        return Ok(Some(Ext4Errors {
            warnings,
            ..Ext4Errors::default()
        }));
    }
    Ok(Some(Ext4Errors {
        warnings,
        count,
        first: Some(ext4_error(&folder, "first")?),
        last: Some(ext4_error(&folder, "last")?),
    }))
}

/// Reads the attributes of an error (Documentation/ABI/testing/sysfs-fs-ext4). Older kernels have
/// only some of the attributes.
fn ext4_error(folder: &Path, which: &str) -> Result<Ext4Error> {
    let file = |name| folder.join(format!("{which}_error_{name}"));
    Ok(Ext4Error {
        seconds: integer(&file("time"))?.unwrap_or_default(),
        function: text(&file("func"))?.unwrap_or_default(),
        line: integer(&file("line"))?.unwrap_or_default(),
        code: integer(&file("errcode"))?.unwrap_or_default(),
    })
}

pub(super) fn integer(path: &Path) -> Result<Option<u64>> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    let number = text.parse();
    number
        .map(Some)
        .map_err(|_| Error::at("read", path, Errno::INVAL).because(format!("{text:?}")))
}

/// Returns the first line of a file; `None` if the file does not exist.
pub(super) fn text(path: &Path) -> Result<Option<String>> {
    let mut text = [0; TEXT_BYTES_MAX];
    let read = File::open(path).and_then(|mut file| file.read(&mut text));
    let length = match read {
        Ok(length) => length,
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(unread(path, &error)),
    };
    let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
    Ok(Some(text.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_without_its_line_end_and_what_is_missing_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("count");
        assert_eq!(integer(&path).unwrap(), None);
        std::fs::write(&path, "17\n").unwrap();
        assert_eq!(integer(&path).unwrap(), Some(17));
        std::fs::write(&path, "many\n").unwrap();
        let error = integer(&path).unwrap_err().to_string();
        assert!(error.contains("count: EINVAL"), "{error}");
    }
}
