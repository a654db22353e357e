//! A split virtqueue (virtio 1.2, 2.7), from the device's side. This module handles descriptors and
//! rings, but not the content of requests.

use std::io;
use std::os::fd::OwnedFd;

use super::memory::Memory;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
/// The maximum size of a request in bytes, larger than any request that Linux sends to a disk.
const REQUEST_MAX: u64 = 64 << 20;

/// A queue. The guest configures the parts of a queue one after the other.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The number of entries.
    pub(super) size: u16,
    /// The addresses of the queue's rings.
    pub(super) rings: Option<Rings>,
    /// The eventfd by which the guest signals new requests.
    pub(super) kick: Option<OwnedFd>,
    /// The eventfd by which the disk signals responses to the guest.
    pub(super) call: Option<OwnedFd>,
    /// The index of the next entry in the available ring.
    pub(super) next: u16,
}

/// The guest addresses of the three parts of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rings {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
}

/// A request: the data from the guest, and the buffers for the response.
#[derive(Debug)]
pub(super) struct Chain {
    head: u16,
    /// All bytes that the device may read.
    pub(super) sent: Vec<u8>,
    room: Vec<(u64, u32)>,
}

impl Chain {
    /// Returns the number of bytes that the device may write.
    pub(super) fn room(&self) -> usize {
        let sizes = self.room.iter().map(|(_, size)| u64::from(*size));
        usize::try_from(sizes.sum::<u64>()).unwrap_or(0)
    }
}

impl Queue {
    /// Removes the next request from the queue and returns it; `None` if the queue is empty.
    pub(super) fn take(&mut self, memory: &Memory) -> io::Result<Option<Chain>> {
        let Some(rings) = self.rings.filter(|_| self.size > 0) else {
            return Ok(None);
        };
        if memory.acquire(rings.available + 2)? == self.next {
            return Ok(None);
        }
        let slot = u64::from(self.next % self.size);
        let mut head = [0; 2];
        memory.read(rings.available + 4 + 2 * slot, &mut head)?;
        let chain = self.follow(memory, rings, u16::from_le_bytes(head))?;
        self.next = self.next.wrapping_add(1);
        Ok(Some(chain))
    }

    fn follow(&self, memory: &Memory, rings: Rings, head: u16) -> io::Result<Chain> {
        let mut chain = Chain {
            head,
            sent: Vec::new(),
            room: Vec::new(),
        };
        let (mut index, mut total, mut is_readable) = (head, 0, true);
        for _ in 0..self.size {
            let mut entry = [0; 16];
            memory.read(rings.descriptors + 16 * u64::from(index), &mut entry)?;
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = entry;
            let address = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            let size = u32::from_le_bytes([i, j, k, l]);
            let flags = u16::from_le_bytes([m, n]);
            total += u64::from(size);
            is_readable &= total <= REQUEST_MAX;
            if flags & WRITE != 0 {
                chain.room.push((address, size));
            } else if is_readable {
                let start = chain.sent.len();
                let size = usize::try_from(size).map_err(io::Error::other)?;
                chain.sent.resize(start + size, 0);
                is_readable = memory.read_data(address, &mut chain.sent[start..]).is_ok();
            }
            if flags & NEXT == 0 {
                // Empty a request that is unreadable or too large: devices respond to an empty
                // request with an error.
                if !is_readable {
                    chain.sent.clear();
                }
                return Ok(chain);
            }
            index = u16::from_le_bytes([o, p]);
        }
        Err(io::Error::other("a chain without an end"))
    }

    /// Responds to a request, and signals the guest.
    pub(super) fn give(&self, memory: &Memory, chain: &Chain, answer: &[u8]) -> io::Result<()> {
        let Some(rings) = self.rings else {
            return Ok(());
        };
        let mut rest = answer;
        for (address, size) in &chain.room {
            let size = usize::try_from(*size).map_err(io::Error::other)?;
            let (part, after) = rest.split_at(size.min(rest.len()));
            memory.write(*address, part)?;
            rest = after;
        }
        let written = u32::try_from(answer.len() - rest.len()).map_err(io::Error::other)?;
        let used = memory.acquire(rings.used + 2)?;
        let slot = u64::from(used % self.size);
        let mut entry = Vec::with_capacity(8);
        entry.extend(u32::from(chain.head).to_le_bytes());
        entry.extend(written.to_le_bytes());
        memory.write(rings.used + 4 + 8 * slot, &entry)?;
        memory.release(rings.used + 2, used.wrapping_add(1))?;
        if let Some(call) = &self.call {
            rustix::io::write(call, &1_u64.to_ne_bytes())?;
        }
        Ok(())
    }
}
