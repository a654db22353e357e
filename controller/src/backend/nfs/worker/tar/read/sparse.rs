//! Reads the list of a sparse file's segments, which precedes its content (GNU tar's format 1.0).

use super::super::{BLOCK, SEGMENTS_MAX, Segment};
use super::{Flaw, Reader, damaged};
use std::io::Read;

impl<R: Read> Reader<R> {
    /// Returns the segments of a sparse file.
    pub(super) fn map(&mut self, size: u64) -> Result<Vec<Segment>, Flaw> {
        let stored = self.left;
        let mut lines = Lines {
            reader: self,
            block: [0; BLOCK],
            at: BLOCK,
        };
        let count = lines.number()?;
        if count > SEGMENTS_MAX {
            return Err(Flaw::Refused(format!(
                "a sparse file has {count} segments, and at most {SEGMENTS_MAX} are read"
            )));
        }
        let wrong = || damaged("the segments of a sparse file are not in order, or not all of it");
        let mut segments = Vec::new();
        let (mut end, mut total) = (0, 0_u64);
        for _ in 0..count {
            let (offset, length) = (lines.number()?, lines.number()?);
            let next = offset.checked_add(length).filter(|next| *next <= size);
            if offset < end {
                return Err(wrong());
            }
            end = next.ok_or_else(wrong)?;
            total += length;
            if length > 0 {
                segments.push(Segment { offset, length });
            }
        }
        if self.left != total || stored < total {
            return Err(wrong());
        }
        Ok(segments)
    }
}

/// The lines with the list of segments, which are padded to whole blocks.
struct Lines<'a, R> {
    reader: &'a mut Reader<R>,
    block: [u8; BLOCK],
    at: usize,
}

impl<R: Read> Lines<'_, R> {
    fn number(&mut self) -> Result<u64, Flaw> {
        let wrong = || damaged("the segments of a sparse file are damaged");
        let mut value: Option<u64> = None;
        loop {
            if self.at == BLOCK {
                if self.reader.left < BLOCK as u64 {
                    return Err(wrong());
                }
                self.block = self.reader.block()?;
                self.reader.left -= BLOCK as u64;
                self.at = 0;
            }
            let byte = self.block[self.at];
            self.at += 1;
            match (byte, value) {
                (b'\n', Some(value)) => return Ok(value),
                (b'0'..=b'9', before) => {
                    let digit = u64::from(byte - b'0');
                    let next = before.unwrap_or(0).checked_mul(10);
                    let next = next.and_then(|next| next.checked_add(digit));
                    value = Some(next.ok_or_else(wrong)?);
                }
                _ => return Err(wrong()),
            }
        }
    }
}
