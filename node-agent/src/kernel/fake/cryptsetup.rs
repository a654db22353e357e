//! A simulated cryptsetup, which writes the two copies of a LUKS2 header one after the other, as
//! the real one does (lib/luks2/luks2_disk_metadata.c). Each step counts as a call, so a fault can
//! be injected into the step.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use rustix::io::Errno;

use super::mkfs::{claim, end, stopped};
use super::sparse::Sparse;
use super::state::{Answer, State};
use super::superblock::crc32c;
use super::{Fake, Fd, Machine};
use crate::kernel::{Cause, Child, ChildEnd, Error, Open, Result};

/// The offsets and the magic numbers of the copies, and the size of a copy with its JSON area, of
/// which the simulation uses only the beginning.
const COPIES: [(u64, &[u8]); 2] = [(0, b"LUKS\xba\xbe"), (COPY_BYTES, b"SKUL\xba\xbe")];
const COPY_BYTES: u64 = 0x4000;
const USED_BYTES: usize = 0x1200;
/// The offsets in a copy, and the size of a text in bytes.
const MAGIC_END: usize = 6;
const SIZE_AT: usize = 8;
const LABEL_AT: usize = 24;
const ALGORITHM_AT: usize = 72;
const SUBSYSTEM_AT: usize = 208;
const CHECKSUM_AT: usize = 448;
const TEXT_BYTES: usize = 48;
/// The offset of the volume key, and those of the hashes of the passphrases: 0 for a free slot.
const KEY_AT: usize = 0x1000;
const SLOTS: [usize; 2] = [0x1008, 0x1010];
/// The area of the key slots, and its content.
const SLOTS_AT: u64 = 2 * COPY_BYTES;
const NOISE: [u8; 4096] = [0xc5; 4096];

/// The steps that write a header.
const STEPS: [(&str, usize, bool); 3] = [
    ("first copy without checksum", 0, false),
    ("first copy", 0, true),
    ("second copy", 1, true),
];

impl Machine {
    /// Creates a LUKS2 header in a file, as another program does.
    pub(crate) fn encrypt(&self, path: &Path, passphrase: &str) {
        let mut state = self.lock();
        let key = state.number();
        let contents = &mut state.file_at(path).contents;
        let header = new_header(key, hash(passphrase.as_bytes()), ["", ""]);
        for (copy, (at, _)) in COPIES.iter().enumerate() {
            let (bytes, at) = (as_copy(&header, copy, true), *at);
            contents.change(move |to| to.write(at, &bytes));
        }
        contents.sync();
    }
}

/// Returns the volume key of an encrypted device.
pub(super) fn key_of(contents: &Sparse) -> Option<u64> {
    let header = header_of(|at, buffer| {
        contents.read(at, buffer);
    });
    header.map(|header| number_at(&header, KEY_AT))
}

/// Reads the first valid copy of the header.
fn header_of(mut read: impl FnMut(u64, &mut [u8])) -> Option<Vec<u8>> {
    COPIES.iter().find_map(|(at, magic)| {
        let mut copy = vec![0; USED_BYTES];
        read(*at, &mut copy);
        // Tests of single functions write copies without a checksum algorithm.
        let is_sealed = copy[ALGORITHM_AT] == 0 || copy == sealed(copy.clone());
        (copy.starts_with(magic) && is_sealed).then_some(copy)
    })
}

fn number_at(header: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(header[at..at + 8].try_into().unwrap())
}

fn new_header(key: u64, slot: u64, texts: [&str; 2]) -> Vec<u8> {
    let mut header = vec![0; USED_BYTES];
    header[MAGIC_END + 1] = 2;
    header[SIZE_AT..SIZE_AT + 8].copy_from_slice(&COPY_BYTES.to_be_bytes());
    header[ALGORITHM_AT] = b'c';
    header[KEY_AT..KEY_AT + 8].copy_from_slice(&key.to_be_bytes());
    set_slot(&mut header, SLOTS[0], slot);
    set_texts(&mut header, texts);
    header
}

fn set_slot(header: &mut [u8], at: usize, slot: u64) {
    header[at..at + 8].copy_from_slice(&slot.to_be_bytes());
}

/// Returns the offset of the slot with this hash.
fn slot_of(header: &[u8], hash: u64) -> Option<usize> {
    SLOTS.into_iter().find(|at| number_at(header, *at) == hash)
}

/// Sets the label and the subsystem.
fn set_texts(header: &mut [u8], texts: [&str; 2]) {
    for (at, text) in [LABEL_AT, SUBSYSTEM_AT].into_iter().zip(texts) {
        header[at..at + TEXT_BYTES].fill(0);
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
}

fn as_copy(header: &[u8], copy: usize, has_checksum: bool) -> Vec<u8> {
    let mut bytes = header.to_owned();
    bytes[..MAGIC_END].copy_from_slice(COPIES[copy].1);
    match has_checksum {
        true => sealed(bytes),
        false => {
            bytes[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
            bytes
        }
    }
}

/// Returns the copy with its checksum, which is never 0.
fn sealed(mut copy: Vec<u8>) -> Vec<u8> {
    copy[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    let checksum = crc32c(!0, &copy) | 1;
    copy[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_be_bytes());
    copy
}

/// Returns a number that stands for a key slot with this passphrase.
fn hash(passphrase: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    passphrase.hash(&mut hasher);
    hasher.finish() | 1
}

/// Runs cryptsetup until it exits.
pub(super) fn run(fake: &Fake, child: &Child<'_, Fd>) -> Result<ChildEnd> {
    let line = format!("cryptsetup {}", child.args.join(" "));
    fake.call("spawn", line, &[], |_| Ok(()))?;
    let mut args = child.args.iter().map(String::as_str);
    let action = args.find(|arg| !arg.starts_with("--")).unwrap_or_default();
    let ended = match action {
        "luksFormat" => format(fake, child),
        "open" => open(fake, child),
        "config" => config(fake, child),
        "luksAddKey" => change_slots(fake, child, Change::Add),
        "luksRemoveKey" => change_slots(fake, child, Change::Remove),
        "resize" => resize(fake, child),
        "close" => close(fake, child),
        other => panic!("the simulated cryptsetup has no {other}"),
    };
    Ok(ended.unwrap_or_else(|error| end(code(&error), error.to_string())))
}

/// Returns the exit code of cryptsetup for an error (cryptsetup(8), "RETURN CODES").
fn code(error: &Error) -> i32 {
    match error.cause() {
        Cause::Denied => 2,
        Cause::NoDevice | Cause::Missing => 4,
        Cause::Busy | Cause::Exists => 5,
        _ => 1,
    }
}

fn value_of<'a>(child: &'a Child<'_, Fd>, option: &str) -> &'a str {
    let at = child.args.iter().position(|arg| arg == option);
    at.map_or("", |at| &child.args[at + 1])
}

/// Reads the passphrase, and returns its hash.
fn read_key(fake: &Fake, child: &Child<'_, Fd>, number: usize) -> Result<u64> {
    fake.call("cryptsetup read", "key", &[], |state| {
        let key = child.keys.get(number).ok_or(Errno::BADF)?.id;
        let mut text = [0; 1024];
        let length = state.pread(key, &mut text, 0)?;
        Ok(hash(&text[..length]))
    })
}

/// Writes the header, and syncs each copy.
fn write_header(fake: &Fake, device: &Fd, header: &[u8]) -> Result<()> {
    for (what, copy, has_checksum) in STEPS {
        fake.call("cryptsetup write", what, &[], |state| {
            let bytes = as_copy(header, copy, has_checksum);
            // A direct write has whole sectors.
            state.pwrite(device.id, &bytes, COPIES[copy].0)?;
            match has_checksum {
                true => state.fsync(device.id),
                false => Ok(()),
            }
        })?;
    }
    Ok(())
}

/// `luksFormat`: wipes the area of the header, writes a header without a key slot, and then adds
/// the key slot.
fn format(fake: &Fake, child: &Child<'_, Fd>) -> Result<ChildEnd> {
    let device = claim(fake, child, "cryptsetup open")?;
    let slot = read_key(fake, child, 0)?;
    let key = fake.call("cryptsetup write", "header area", &[], |state| {
        state.wipe(device.id)?;
        Ok(state.number())
    })?;
    let texts = [value_of(child, "--label"), value_of(child, "--subsystem")];
    write_header(fake, &device, &new_header(key, 0, texts))?;
    if let Some(end) = stopped(fake, child) {
        return Ok(end);
    }
    fake.call("cryptsetup write", "key slot", &[], |state| {
        state.pwrite(device.id, &NOISE, SLOTS_AT)
    })?;
    write_header(fake, &device, &new_header(key, slot, texts))?;
    Ok(end(0, String::new()))
}

/// Opens the device for writing, as several programs may.
fn open_shared(fake: &Fake, child: &Child<'_, Fd>) -> Result<Fd> {
    fake.open_by("cryptsetup open", "device", &[], |state| {
        let location = state.object(child.device.ok_or(Errno::BADF)?.id)?;
        let location = location.location()?;
        state.open_location(location, Open::DeviceWrite)
    })
}

fn no_header() -> ChildEnd {
    end(1, "not a valid LUKS device".to_owned())
}

fn no_key() -> ChildEnd {
    end(2, "No key available with this passphrase.".to_owned())
}

/// A change of the key slots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Add,
    Remove,
}

/// `luksAddKey` and `luksRemoveKey`: write the area of a key slot, and then the header.
fn change_slots(fake: &Fake, child: &Child<'_, Fd>, change: Change) -> Result<ChildEnd> {
    let device = open_shared(fake, child)?;
    let known = read_key(fake, child, 0)?;
    let Some(mut header) = read_header(fake, &device)? else {
        return Ok(no_header());
    };
    let Some(at) = slot_of(&header, known) else {
        return Ok(no_key());
    };
    let (at, slot) = match change {
        Change::Remove => (at, 0),
        Change::Add => match slot_of(&header, 0) {
            None => return Ok(end(1, "all key slots are full".to_owned())),
            Some(free) => (free, read_key(fake, child, 1)?),
        },
    };
    fake.call("cryptsetup write", "key slot", &[], |state| {
        state.pwrite(device.id, &NOISE, SLOTS_AT)
    })?;
    set_slot(&mut header, at, slot);
    write_header(fake, &device, &header)?;
    Ok(end(0, String::new()))
}

/// `config`: changes the label and the subsystem.
fn config(fake: &Fake, child: &Child<'_, Fd>) -> Result<ChildEnd> {
    let device = open_shared(fake, child)?;
    let Some(mut header) = read_header(fake, &device)? else {
        return Ok(no_header());
    };
    let texts = [value_of(child, "--label"), value_of(child, "--subsystem")];
    set_texts(&mut header, texts);
    write_header(fake, &device, &header)?;
    Ok(end(0, String::new()))
}

fn read_header(fake: &Fake, device: &Fd) -> Result<Option<Vec<u8>>> {
    fake.call("cryptsetup read", "header", &[], |state| {
        let mut read = Ok(0);
        let header = header_of(|at, buffer| {
            if read.is_ok() {
                read = state.pread(device.id, buffer, at);
            }
        });
        read.map(|_| header)
    })
}

/// `open`: creates the mapper.
fn open(fake: &Fake, child: &Child<'_, Fd>) -> Result<ChildEnd> {
    let name = child.args.last().map_or("", String::as_str);
    let device = child.device.expect("the device is standard input");
    let slot = read_key(fake, child, 0)?;
    let Some(header) = read_header(fake, device)? else {
        return Ok(no_header());
    };
    if slot_of(&header, slot).is_none() {
        return Ok(no_key());
    }
    let has = |option: &str| child.args.iter().any(|arg| arg == option);
    if has("--test-passphrase") {
        return Ok(end(0, String::new()));
    }
    let is_read_only = has("--readonly");
    let number = fake.call("DM_TABLE_LOAD", name, &[], |state| {
        let below = state.object(device.id)?.device()?;
        state.load_table(name, below, number_at(&header, KEY_AT), is_read_only)
    })?;
    if let Some(end) = stopped(fake, child) {
        return Ok(end);
    }
    let resumed = fake.call("DM_DEV_SUSPEND", name, &[], |state| {
        state.measure_mapper(number)
    });
    if let Err(error) = resumed {
        // libdevmapper removes the mapper again.
        fake.call("DM_DEV_REMOVE", name, &[], |state| {
            state.remove_mapper(number)
        })?;
        return Err(error);
    }
    Ok(end(0, String::new()))
}

fn resize(fake: &Fake, child: &Child<'_, Fd>) -> Result<ChildEnd> {
    let name = child.args.last().map_or("", String::as_str);
    fake.call("DM_TABLE_LOAD", name, &[], |state| {
        let number = state.mapper_named(name).ok_or(Errno::NODEV)?;
        state.measure_mapper(number)
    })?;
    Ok(end(0, String::new()))
}

fn close(fake: &Fake, child: &Child<'_, Fd>) -> Result<ChildEnd> {
    let name = child.args.last().map_or("", String::as_str);
    fake.call("DM_DEV_REMOVE", name, &[], |state| {
        let number = state.mapper_named(name).ok_or(Errno::NODEV)?;
        state.remove_mapper(number)
    })?;
    Ok(end(0, String::new()))
}

impl State {
    /// Overwrites the area of the header.
    fn wipe(&mut self, device: u64) -> Answer<()> {
        let ino = self.binding(device)?.ok_or(Errno::NXIO)?.ino;
        if self.file(ino)?.used {
            self.violations
                .push(format!("inode {ino} was encrypted with data on it"));
            return Err(Errno::IO);
        }
        self.pwrite(device, &[0; USED_BYTES], COPIES[0].0)?;
        self.pwrite(device, &[0; USED_BYTES], COPIES[1].0)?;
        self.pwrite(device, &NOISE, SLOTS_AT)?;
        self.fsync(device)
    }
}
