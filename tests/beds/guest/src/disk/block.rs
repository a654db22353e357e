//! virtio-blk (virtio 1.2, 5.2): the requests of its single queue.

use super::Features;
use super::medium::{Medium, Refused};

pub(super) const FEATURES: Features = Features::of(&[
    2, // VIRTIO_BLK_F_SEG_MAX
    6, // VIRTIO_BLK_F_BLK_SIZE
    9, // VIRTIO_BLK_F_FLUSH: a write-back cache
]);

const SECTOR: u64 = 512;
const HEADER: usize = 16;
/// The length of a serial number, padded with zeros.
const ID_BYTES: usize = 20;

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;

const OK: u8 = 0;
const FAILED: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// Returns the configuration space: capacity in sectors, segments, block size.
pub(super) fn config(medium: &Medium) -> Vec<u8> {
    let mut config = Vec::new();
    config.extend((medium.bytes() / SECTOR).to_le_bytes());
    config.extend(0_u32.to_le_bytes());
    config.extend(126_u32.to_le_bytes());
    config.extend([0; 4]);
    config.extend(512_u32.to_le_bytes());
    config
}

/// Returns the response to a request: `room` bytes, the last of which is the status. Returns `None`
/// if the power of the disk is cut.
pub(super) fn perform(medium: &Medium, serial: &str, sent: &[u8], room: usize) -> Option<Vec<u8>> {
    let mut answer = vec![0; room];
    let (status, data) = answer.split_last_mut()?;
    *status = match obey(medium, serial, sent, data) {
        Ok(()) => OK,
        Err(Complaint::Unsupported) => UNSUPPORTED,
        Err(Complaint::Refused(Refused::Failed)) => FAILED,
        Err(Complaint::Refused(Refused::NoPower)) => return None,
    };
    Some(answer)
}

enum Complaint {
    Unsupported,
    Refused(Refused),
}

impl From<Refused> for Complaint {
    fn from(refused: Refused) -> Self {
        Complaint::Refused(refused)
    }
}

fn obey(medium: &Medium, serial: &str, sent: &[u8], into: &mut [u8]) -> Result<(), Complaint> {
    let Some((header, data)) = sent.split_at_checked(HEADER) else {
        return Err(Complaint::Unsupported);
    };
    let kind = u32::from_le_bytes([0, 1, 2, 3].map(|n| header[n]));
    let sector = u64::from_le_bytes([8, 9, 10, 11, 12, 13, 14, 15].map(|n| header[n]));
    let at = sector.saturating_mul(SECTOR);
    match kind {
        READ => medium.read(at, into)?,
        WRITE => medium.write(at, data)?,
        FLUSH => medium.flush()?,
        GET_ID => {
            // A disk reads its identity from the medium, so this request fails if reads fail.
            medium.read(0, &mut [])?;
            let id = serial.as_bytes().iter().take(ID_BYTES);
            into.iter_mut().zip(id).for_each(|(to, from)| *to = *from);
        }
        _ => return Err(Complaint::Unsupported),
    }
    Ok(())
}
