//! Writes the head of a file in an archive: all blocks before the file's content.

use super::block::{self, Header, NAME_BYTES_MAX};
use super::pax::{self, Records};
use super::{BLOCK, Entry, Segment, Type};

/// The two zero blocks that end an archive.
pub(in super::super) const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];
/// The file name in the header of pax records. Programs that do not support pax records extract a
/// file of this name.
const RECORDS: &[u8] = b"PaxHeaders/records";
/// The file name in the header of a sparse file. Programs that do not support sparse files extract
/// a file of this name.
const SPARSE: &[u8] = b"GNUSparseFile.0/content";

/// Returns the blocks before the content. The caller then writes [`Entry::stored`] bytes of content
/// and their [`padding`].
pub(in super::super) fn head(entry: &Entry) -> Vec<u8> {
    let map = entry.segments.as_deref().map(|it| map(it, entry.size));
    let stored = match entry.kind {
        Type::File => entry.stored() + map.as_ref().map_or(0, |map| length(map)),
        _ => 0,
    };
    let records = records(entry, stored);
    let mut head = Vec::new();
    if !records.is_empty() {
        let header = Header {
            name: RECORDS.to_vec(),
            flag: b'x',
            mode: 0o600,
            size: length(&records),
            ..Header::default()
        };
        head.extend_from_slice(&header.block());
        head.extend_from_slice(&records);
        head.resize(head.len().next_multiple_of(BLOCK), 0);
    }
    head.extend_from_slice(&header(entry, stored).block());
    head.extend(map.unwrap_or_default());
    head
}

/// Returns the number of zero bytes after `stored` bytes of content.
pub(in super::super) fn padding(stored: u64) -> usize {
    let block = BLOCK as u64;
    let rest = (block - stored % block) % block;
    usize::try_from(rest).unwrap_or_default()
}

fn header(entry: &Entry, stored: u64) -> Header {
    let fitting = |value: u32| match block::fits_owner(value) {
        true => u64::from(value),
        false => 0,
    };
    let name = match entry.segments {
        None => entry.path.clone(),
        Some(_) => SPARSE.to_vec(),
    };
    Header {
        name,
        flag: flag(entry.kind),
        target: entry.target.clone(),
        mode: u64::from(entry.mode),
        user: fitting(entry.user),
        group: fitting(entry.group),
        size: stored,
        modified: entry.modified.seconds,
        device: (u64::from(entry.device.0), u64::from(entry.device.1)),
    }
}

pub(super) fn flag(kind: Type) -> u8 {
    match kind {
        Type::File | Type::Socket => b'0',
        Type::Link => b'1',
        Type::Symlink => b'2',
        Type::Character => b'3',
        Type::Block => b'4',
        Type::Directory => b'5',
        Type::Fifo => b'6',
    }
}

fn records(entry: &Entry, stored: u64) -> Vec<u8> {
    let mut records = Records::default();
    if entry.segments.is_some() {
        records.number(pax::SPARSE_MAJOR, 1);
        records.number(pax::SPARSE_MINOR, 0);
        records.name(pax::SPARSE_NAME, &entry.path);
        records.number(pax::SPARSE_SIZE, entry.size);
    } else if entry.path.len() > NAME_BYTES_MAX {
        records.name(pax::PATH, &entry.path);
    }
    if entry.target.len() > NAME_BYTES_MAX {
        records.name(pax::TARGET, &entry.target);
    }
    if !block::fits_size(stored) {
        records.number(pax::SIZE, stored);
    }
    for (key, value) in [(pax::USER, entry.user), (pax::GROUP, entry.group)] {
        if !block::fits_owner(value) {
            records.number(key, u64::from(value));
        }
    }
    let modified = entry.modified;
    if modified.nanoseconds != 0 || !block::fits_time(modified.seconds) {
        records.time(pax::MODIFIED, modified);
    }
    if let Some(accessed) = entry.accessed {
        records.time(pax::ACCESSED, accessed);
    }
    if let Some(links) = &entry.links {
        records.add(pax::LINKS.as_bytes(), links.as_bytes());
    }
    for (name, value) in &entry.attributes {
        records.attribute(name, value);
    }
    records.into_bytes()
}

/// Returns the list of a sparse file's segments, in lines, which is stored before the content. If
/// the file ends with a hole, a segment of length 0 marks the end of the file.
fn map(segments: &[Segment], size: u64) -> Vec<u8> {
    let end = segments.last().map_or(0, |last| last.offset + last.length);
    let last = (end != size).then_some(Segment {
        offset: size,
        length: 0,
    });
    let count = segments.len() + usize::from(last.is_some());
    let mut map = format!("{count}\n").into_bytes();
    for segment in segments.iter().chain(&last) {
        let Segment { offset, length } = segment;
        map.extend_from_slice(format!("{offset}\n{length}\n").as_bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
