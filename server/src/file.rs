//! Reads the small files that an operator configures, such as credentials, certificates and
//! settings. This module also reads the kernel's messages about a failed mount.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};

use crate::size::Exact;

/// Maximum size of a Secret or ConfigMap of Kubernetes, in bytes.
pub const SECRET_BYTES_MAX: u64 = 1 << 20;

/// Reads a whole file. Follows symbolic links, such as the links in the volume of a Secret. Does
/// not wait for a different process, but blocks the thread while the file is read.
///
/// # Errors
/// Returns an error if the file cannot be opened or read, is not a regular file, or is larger than
/// `bytes_max`. The error does not contain the name of the file.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    // NONBLOCK: opening a FIFO must not block. NOCTTY: a terminal must not become the controlling
    // terminal of this process.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let kind = kind(metadata.file_type());
        let bytes_max = Exact(bytes_max);
        let why = format!("is {kind}, not a regular file of at most {bytes_max}");
        return Err(io::Error::other(why));
    }
    let is_too_large = |bytes| {
        let (bytes, bytes_max) = (Exact(bytes), Exact(bytes_max));
        io::Error::other(format!("has {bytes}; at most {bytes_max} are read"))
    };
    if metadata.len() > bytes_max {
        return Err(is_too_large(metadata.len()));
    }
    let content = bounded(file, bytes_max)?;
    // The file has grown since its size was read, or does not report its size, like the files in
    // /proc.
    content.ok_or_else(|| io::Error::other(format!("has more than {}", Exact(bytes_max))))
}

/// Reads a whole file and checks that it is UTF-8; otherwise like [`read`].
///
/// # Errors
/// Returns an error if [`read`] does, or if the file is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let content = read(path, bytes_max)?;
    String::from_utf8(content).map_err(|_| io::Error::other("is not UTF-8"))
}

/// Reads a file. Returns `None` if the file has more than `bytes_max` bytes.
fn bounded(file: File, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    let bytes = file.take(bytes_max + 1).read_to_end(&mut content)?;
    Ok((bytes as u64 <= bytes_max).then_some(content))
}

/// Maximum number of messages that the kernel keeps for a context of fsopen(2) (`struct fc_log`).
const LOG_MESSAGES_MAX: usize = 8;
const LOG_MESSAGE_BYTES_MAX: usize = 512;

/// Reads the messages about a failed mount from its fsopen(2) context, and joins them. Each read(2)
/// returns one message, prefixed with its level.
pub fn log_of(context: impl AsFd) -> String {
    let mut found = Vec::new();
    let mut message = [0; LOG_MESSAGE_BYTES_MAX];
    for _ in 0..LOG_MESSAGES_MAX {
        match retry_on_intr(|| rustix::io::read(&context, &mut message)) {
            Ok(0) | Err(Errno::NODATA) => break,
            Ok(length) => {
                let text = String::from_utf8_lossy(&message[..length]);
                let text = text.trim();
                let levels = ["e ", "w ", "i "];
                let bare = levels.iter().find_map(|level| text.strip_prefix(level));
                found.push(bare.unwrap_or(text).to_owned());
            }
            // The message was too long for the buffer, and the kernel has dropped it; the next
            // message may fit.
            Err(_) => {}
        }
    }
    found.join("; ")
}

fn kind(of: FileType) -> &'static str {
    match of {
        of if of.is_dir() => "a directory",
        of if of.is_fifo() => "a FIFO",
        of if of.is_char_device() => "a character device",
        of if of.is_block_device() => "a block device",
        _ => "a special file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_read_through_the_links_of_a_secret_up_to_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("..2026")).unwrap();
        symlink("..2026", at("..data")).unwrap();
        symlink("..data/token", at("token")).unwrap();
        for (content, bytes_max, why) in [
            ("", 0, None),
            ("12345678", 8, None),
            (
                "123456789",
                8,
                Some("has 9 bytes; at most 8 bytes are read"),
            ),
            ("1", 0, Some("has 1 bytes; at most 0 bytes are read")),
        ] {
            fs::write(at("..2026/token"), content).unwrap();
            let read = read_text(&at("token"), bytes_max);
            match why {
                None => assert_eq!(read.unwrap(), content),
                Some(why) => assert_eq!(read.unwrap_err().to_string(), why),
            }
        }
        fs::write(at("..2026/token"), [0xff]).unwrap();
        let refused = read_text(&at("token"), 8).unwrap_err();
        assert_eq!(refused.to_string(), "is not UTF-8");
        let missing = read(&at("none"), 8).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once_by_its_kind() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, zero) = (dir.path().join("fifo"), dir.path().join("zero"));
        mknodat(CWD, &fifo, Kind::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        symlink("/dev/zero", &zero).unwrap();
        for (path, kind) in [
            (fifo.as_path(), "a FIFO"),
            (zero.as_path(), "a character device"),
            (dir.path(), "a directory"),
        ] {
            let refused = read(path, 4096).unwrap_err().to_string();
            let expected = format!("is {kind}, not a regular file of at most 4 KiB");
            assert_eq!(refused, expected);
        }
    }

    #[test]
    fn a_file_that_does_not_report_its_size_is_measured_while_it_is_read() {
        let path = Path::new("/proc/self/mountinfo");
        let refused = read(path, 8).unwrap_err().to_string();
        assert_eq!(refused, "has more than 8 bytes");
        assert!(!read(path, 16 << 20).unwrap().is_empty());
    }
}
