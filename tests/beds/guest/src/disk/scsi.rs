//! virtio-scsi (virtio 1.2, 5.6) with one disk: target 0, unit 0. The disk supports the commands of
//! SPC-4 and SBC-3 that Linux sends to disks.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Features;
use super::medium::{Medium, Refused};

pub(super) const FEATURES: Features = Features::of(&[]);
/// The queue for task management. The event queue is unused.
pub(super) const CONTROL_QUEUE: u32 = 0;
pub(super) const EVENT_QUEUE: u32 = 1;

const BLOCK: u64 = 512;
/// The length of a request's header in bytes: unit (8), tag (8), three bytes, command (32).
const HEADER: usize = 51;
const SENSE: usize = 96;
const BAD_TARGET: u8 = 3;

const CHECK_CONDITION: u8 = 2;

/// The disk's identity.
#[derive(Debug)]
pub(super) struct Identity {
    /// The vendor, at most 8 characters.
    pub(super) vendor: String,
    /// The product, at most 16 characters.
    pub(super) product: String,
    /// The serial number, for the pages 0x80 and 0x83.
    pub(super) serial: String,
    /// Whether the capacity has changed, and the unit attention for this change is still to be
    /// sent.
    pub(super) has_grown: AtomicBool,
}

/// Returns the configuration space.
pub(super) fn config() -> Vec<u8> {
    // num_queues, seg_max, max_sectors, cmd_per_lun, event_info_size, sense_size, cdb_size
    let words = [1_u32, 126, 0xffff, 32, 16, 96, 32];
    let mut config: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    // max_channel, max_target, max_lun
    config.extend([0; 8]);
    config
}

/// The reason why a command fails.
enum Complaint {
    /// The sense key, and the two bytes of the additional sense code.
    Sense(u8, u8, u8),
    NoPower,
}

impl From<Refused> for Complaint {
    fn from(refused: Refused) -> Self {
        match refused {
            // MEDIUM ERROR, UNRECOVERED READ ERROR
            Refused::Failed => Complaint::Sense(3, 0x11, 0),
            Refused::NoPower => Complaint::NoPower,
        }
    }
}

const INVALID_COMMAND: Complaint = Complaint::Sense(5, 0x20, 0);
const INVALID_FIELD: Complaint = Complaint::Sense(5, 0x24, 0);

/// Returns the response to a request; `None` if the power of the disk is cut.
pub(super) fn perform(
    medium: &Medium,
    identity: &Identity,
    sent: &[u8],
    room: usize,
) -> Option<Vec<u8>> {
    let Some((header, data)) = sent.split_at_checked(HEADER) else {
        return Some(response(0, BAD_TARGET, &[]));
    };
    // The address of a unit consists of 1, the target, and 0x40 plus the unit's number (5.6.6.1).
    let is_ours = header[1] == 0 && header[2] & 0x3f == 0 && header[3] == 0;
    if !is_ours {
        return Some(response(0, BAD_TARGET, &[]));
    }
    let room = room.saturating_sub(response(0, 0, &[]).len());
    match obey(medium, identity, &header[19..], data, room) {
        Ok(read) => {
            let mut answer = response(0, 0, &[]);
            answer.extend(read.iter().take(room));
            Some(answer)
        }
        Err(Complaint::Sense(key, code, qualifier)) => {
            // Use the fixed format of sense data, for a current error.
            let mut sense = [0; 18];
            (sense[0], sense[2], sense[7]) = (0x70, key, 10);
            (sense[12], sense[13]) = (code, qualifier);
            Some(response(CHECK_CONDITION, 0, &sense))
        }
        Err(Complaint::NoPower) => None,
    }
}

fn response(status: u8, response: u8, sense: &[u8]) -> Vec<u8> {
    let mut answer = Vec::with_capacity(12 + SENSE);
    let length = u32::try_from(sense.len()).unwrap_or(0);
    answer.extend(length.to_le_bytes());
    answer.extend([0, 0, 0, 0, 0, 0, status, response]);
    answer.extend(sense);
    answer.resize(12 + SENSE, 0);
    answer
}

fn obey(
    medium: &Medium,
    identity: &Identity,
    command: &[u8],
    data: &[u8],
    room: usize,
) -> Result<Vec<u8>, Complaint> {
    let blocks = medium.bytes() / BLOCK;
    let is_test = command[0] == 0;
    // CAPACITY DATA HAS CHANGED
    if is_test && identity.has_grown.swap(false, Ordering::SeqCst) {
        return Err(Complaint::Sense(6, 0x2a, 9));
    }
    match command[0] {
        // TEST UNIT READY, START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL
        0x00 | 0x1b | 0x1e => Ok(Vec::new()),
        0x12 => inquiry(identity, command),
        // MODE SENSE (6) and (10): the caching mode page
        0x1a => Ok([&[3 + 20, 0, 0, 0][..], &caching()].concat()),
        0x5a => Ok([&[0, 6 + 20, 0, 0, 0, 0, 0, 0][..], &caching()].concat()),
        // READ CAPACITY (10) and (16)
        0x25 => {
            let last = u32::try_from(blocks.saturating_sub(1)).unwrap_or(u32::MAX);
            Ok([last.to_be_bytes(), 512_u32.to_be_bytes()].concat())
        }
        0x9e if command[1] & 0x1f == 0x10 => {
            let mut answer = blocks.saturating_sub(1).to_be_bytes().to_vec();
            answer.extend(512_u32.to_be_bytes());
            answer.resize(32, 0);
            Ok(answer)
        }
        // REPORT LUNS
        0xa0 => Ok([&[0, 0, 0, 8][..], &[0; 12]].concat()),
        // SYNCHRONIZE CACHE (10) and (16)
        0x35 | 0x91 => Ok(medium.flush().map(|()| Vec::new())?),
        0x28 | 0x2a | 0x88 | 0x8a => transfer(medium, command, data, room),
        _ => Err(INVALID_COMMAND),
    }
}

/// Returns the caching mode page: it reports a write-back cache, so that Linux flushes the cache.
fn caching() -> [u8; 20] {
    let mut page = [0; 20];
    (page[0], page[1], page[2]) = (0x08, 18, 0x04);
    page
}

fn inquiry(identity: &Identity, command: &[u8]) -> Result<Vec<u8>, Complaint> {
    let serial = identity.serial.as_bytes();
    let length = u8::try_from(serial.len()).map_err(|_| INVALID_FIELD)?;
    let asks_for_page = command[1] & 1 == 1;
    if !asks_for_page {
        let mut answer = vec![0, 0, 5, 2, 31, 0, 0, 2];
        answer.extend(format!("{:<8.8}", identity.vendor).bytes());
        answer.extend(format!("{:<16.16}", identity.product).bytes());
        answer.extend(b"1.0 ");
        return Ok(answer);
    }
    let page = match command[2] {
        0x00 => vec![0x00, 0x80, 0x83],
        0x80 => serial.to_vec(),
        // There is one designator: ASCII, vendor specific.
        0x83 => [&[2, 0, 0, length][..], serial].concat(),
        _ => return Err(INVALID_FIELD),
    };
    let length = u16::try_from(page.len()).map_err(|_| INVALID_FIELD)?;
    let mut answer = vec![0, command[2]];
    answer.extend(length.to_be_bytes());
    answer.extend(page);
    Ok(answer)
}

fn transfer(
    medium: &Medium,
    command: &[u8],
    data: &[u8],
    room: usize,
) -> Result<Vec<u8>, Complaint> {
    let is_long = matches!(command[0], 0x88 | 0x8a);
    let is_read = matches!(command[0], 0x28 | 0x88);
    let long = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|n| command[at + n]));
    let (first, count) = if is_long {
        let first = u64::from(long(2)) << 32 | u64::from(long(6));
        (first, long(10))
    } else {
        let count = u16::from_be_bytes([command[7], command[8]]);
        (u64::from(long(2)), u32::from(count))
    };
    let at = first.saturating_mul(BLOCK);
    let bytes = usize::try_from(u64::from(count) * BLOCK).map_err(|_| INVALID_FIELD)?;
    if is_read {
        let mut read = vec![0; bytes.min(room)];
        medium.read(at, &mut read)?;
        return Ok(read);
    }
    let data = data.get(..bytes).ok_or(INVALID_FIELD)?;
    medium.write(at, data)?;
    Ok(Vec::new())
}
