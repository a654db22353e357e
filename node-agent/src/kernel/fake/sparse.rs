//! The content of a sparse file.

use std::collections::BTreeMap;

const BLOCK: u64 = 4096;

/// The blocks that were written, and the size in bytes.
#[derive(Clone, Default)]
pub(super) struct Sparse {
    bytes: u64,
    blocks: BTreeMap<u64, Box<[u8]>>,
    /// The value of the bytes that were never written.
    unwritten: u8,
}

impl Sparse {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Grows the file to at least `bytes`.
    pub(super) fn grow(&mut self, bytes: u64) {
        self.bytes = self.bytes.max(bytes);
    }

    /// Truncates the file to at most `bytes`.
    pub(super) fn truncate(&mut self, bytes: u64) {
        self.bytes = self.bytes.min(bytes);
        self.blocks.retain(|index, _| index * BLOCK < bytes);
        if let Some(last) = self.blocks.get_mut(&(bytes / BLOCK)) {
            last[usize::try_from(bytes % BLOCK).unwrap()..].fill(0);
        }
    }

    /// Reads from the offset `at`. Returns the number of bytes read, which is smaller than the
    /// buffer at the file's end.
    pub(super) fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let left = usize::try_from(self.bytes.saturating_sub(at)).unwrap();
        let length = left.min(buffer.len());
        let mut done = 0;
        while done < length {
            let (index, within, part) = piece(at, done, length);
            let into = &mut buffer[done..done + part];
            match self.blocks.get(&index) {
                Some(block) => into.copy_from_slice(&block[within..within + part]),
                None => into.fill(self.unwritten),
            }
            done += part;
        }
        length
    }

    /// Writes the bytes that are below the file's end. Returns the number of bytes written.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> usize {
        let left = usize::try_from(self.bytes.saturating_sub(at)).unwrap();
        let length = left.min(bytes.len());
        let mut done = 0;
        while done < length {
            let (index, within, part) = piece(at, done, length);
            let block = self
                .blocks
                .entry(index)
                .or_insert_with(|| vec![self.unwritten; usize::try_from(BLOCK).unwrap()].into());
            block[within..within + part].copy_from_slice(&bytes[done..done + part]);
            done += part;
        }
        length
    }

    /// `SEEK_DATA`.
    pub(super) fn data(&self, from: u64) -> Option<u64> {
        let (index, _) = self.blocks.range(from / BLOCK..).next()?;
        let at = (index * BLOCK).max(from);
        (at < self.bytes).then_some(at)
    }

    /// Simulates `SEEK_HOLE`, which treats the end of the file as a hole.
    pub(super) fn hole(&self, from: u64) -> Option<u64> {
        if from >= self.bytes {
            return None;
        }
        let mut index = from / BLOCK;
        while self.blocks.contains_key(&index) {
            index += 1;
        }
        Some((index * BLOCK).max(from).min(self.bytes))
    }

    /// Discards everything except the block that contains the offset `kept`.
    pub(super) fn discard_but(&mut self, kept: u64) {
        self.blocks.retain(|index, _| *index == kept / BLOCK);
    }

    /// Whether the contents are only zeros.
    pub(super) fn is_blank(&self) -> bool {
        let is_zero = |b: &[u8]| b.iter().all(|byte| *byte == 0);
        self.unwritten == 0 && self.blocks.values().all(|b| is_zero(b))
    }

    /// Makes all bytes that were never written noise, as in a new encrypted device.
    pub(super) fn fill(&mut self) {
        self.unwritten = 0xc5;
    }

    /// Whether a block contains the text.
    pub(super) fn contains(&self, text: &[u8]) -> bool {
        let is_in = |b: &[u8]| b.windows(text.len()).any(|part| part == text);
        self.blocks.values().any(|b| is_in(b))
    }
}

/// Returns the index of the block, the offset in the block, and the length.
fn piece(at: u64, done: usize, length: usize) -> (u64, usize, usize) {
    let at = at + done as u64;
    let within = usize::try_from(at % BLOCK).unwrap();
    let room = usize::try_from(BLOCK).unwrap() - within;
    (at / BLOCK, within, room.min(length - done))
}
