//! Reads many ranges of a device, several at once if that is faster, otherwise one after the other.

use std::ops::ControlFlow;

use belay_server::call::Failure;

use super::disk::{Disk, read_full};
use crate::kernel::{AlignedBuf, Reads};

/// An offset and a length in bytes, both multiples of [`super::disk::ALIGN_BYTES`].
pub(super) type Extent = (u64, usize);

/// Reads ranges of up to `longest` bytes, and calls `each` with the offset and the bytes of every
/// range, in any order. After `each` returns `Break`, starts no further read; `each` still receives
/// the ranges whose reads were already started.
///
/// # Errors
/// Returns an error if a range cannot be read in full, or the error that `ranges` yields.
pub(super) fn read_each(
    disk: &impl Disk,
    longest: usize,
    ranges: impl Iterator<Item = Result<Extent, Failure>>,
    each: impl FnMut(u64, &[u8]) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let mut pending = Pending {
        bytes: disk.bytes(),
        ranges,
        each,
        is_over: false,
        failure: None,
        short: Vec::new(),
    };
    let is_read = disk.read_at_once(longest, &mut pending)?;
    // Read the remaining ranges one after the other: all ranges, if the disk cannot read several at
    // once.
    let mut buffer = AlignedBuf::new(if is_read { 0 } else { longest });
    while let Some(range) = pending.next() {
        pending.read(disk, range, &mut buffer)?;
    }
    if let Some(failure) = pending.failure {
        return Err(failure);
    }
    for range in std::mem::take(&mut pending.short) {
        pending.read(disk, range, &mut AlignedBuf::new(range.1))?;
    }
    Ok(())
}

struct Pending<R, E> {
    /// The size of the device, in bytes.
    bytes: u64,
    ranges: R,
    each: E,
    is_over: bool,
    failure: Option<Failure>,
    /// Ranges of which only a part was read; they must be read again.
    short: Vec<Extent>,
}

impl<R, E: FnMut(u64, &[u8]) -> ControlFlow<()>> Pending<R, E> {
    fn read(
        &mut self,
        disk: &impl Disk,
        (at, length): Extent,
        buffer: &mut AlignedBuf,
    ) -> Result<(), Failure> {
        let valid = read_full(disk, at, &mut buffer[..length])?;
        self.give(at, &buffer[..valid]);
        Ok(())
    }

    fn give(&mut self, at: u64, bytes: &[u8]) {
        self.is_over |= (self.each)(at, bytes).is_break();
    }
}

impl<R, E> Reads for Pending<R, E>
where
    R: Iterator<Item = Result<Extent, Failure>>,
    E: FnMut(u64, &[u8]) -> ControlFlow<()>,
{
    fn next(&mut self) -> Option<Extent> {
        if self.is_over {
            return None;
        }
        match self.ranges.next() {
            Some(Ok(range)) => return Some(range),
            Some(Err(failure)) => self.failure = Some(failure),
            None => {}
        }
        self.is_over = true;
        None
    }

    fn take(&mut self, (at, length): Extent, bytes: &[u8]) {
        // The last range may extend past the end of the device.
        let left = usize::try_from(self.bytes.saturating_sub(at)).unwrap_or(length);
        match bytes.get(..length.min(left)) {
            Some(bytes) => self.give(at, bytes),
            None => self.short.push((at, length)),
        }
    }
}
