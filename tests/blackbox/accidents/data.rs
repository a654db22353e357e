//! The data that a pod writes to its volume. It is derived from the volume's ID, so that another
//! volume's data, old data and torn data are all detected.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;

/// The number of files, some megabytes in total, so that a truncated file loses some of them.
const FILES: u64 = 12;
const FILE_BYTES: usize = 1 << 20;

/// Returns the content of a file of a volume.
fn content(id: &str, number: u64) -> Vec<u8> {
    let seed = id.bytes().fold(number + 1, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut state = seed | 1;
    let mut block = Vec::with_capacity(FILE_BYTES);
    while block.len() < FILE_BYTES {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_le_bytes());
    }
    block
}

/// Returns the offset of a file on a raw device, in bytes. The last megabytes are for [`touch`].
fn offset(number: u64) -> u64 {
    number << 20
}

fn is_raw(target: &Path) -> bool {
    fs::metadata(target).is_ok_and(|found| found.file_type().is_block_device())
}

/// Writes all files; they are on disk when this returns.
pub(super) fn write(id: &str, target: &Path) -> io::Result<()> {
    if is_raw(target) {
        let device = File::options().write(true).open(target)?;
        for number in 0..FILES {
            device.write_all_at(&content(id, number), offset(number))?;
        }
        return device.sync_all();
    }
    for number in 0..FILES {
        let file = File::create(target.join(format!("file-{number}")))?;
        file.write_all_at(&content(id, number), 0)?;
        file.sync_all()?;
    }
    File::open(target)?.sync_all()
}

/// Returns the first wrong file, if any.
pub(super) fn wrong(id: &str, target: &Path) -> Option<String> {
    for number in 0..FILES {
        match read(target, number) {
            Ok(found) if found == content(id, number) => {}
            Ok(found) => return Some(format!("file-{number}: {} other bytes", found.len())),
            Err(error) => return Some(format!("file-{number}: {error}")),
        }
    }
    None
}

fn read(target: &Path, number: u64) -> io::Result<Vec<u8>> {
    if !is_raw(target) {
        return fs::read(target.join(format!("file-{number}")));
    }
    let mut found = vec![0; FILE_BYTES];
    File::open(target)?.read_exact_at(&mut found, offset(number))?;
    Ok(found)
}

/// Writes a few more bytes; can be repeated.
pub(super) fn touch(id: &str, target: &Path) -> io::Result<()> {
    let (file, at) = match is_raw(target) {
        true => (File::options().write(true).open(target)?, offset(FILES)),
        false => (File::create(target.join("touched"))?, 0),
    };
    file.write_all_at(id.as_bytes(), at)?;
    file.sync_all()
}
