//! A disk in memory, for the tests of the probe and for fuzzing.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use belay_contract::mark::MarkSecret;
use belay_server::call::{Failure, Kind};

use super::disk::{ALIGN_BYTES, Disk};
use crate::filesystem::witness::Witness;
use crate::kernel::Reads;
use crate::work::Progress;

const BLOCK: u64 = ALIGN_BYTES;

/// A sparse disk in memory that counts its reads, and can make one read fail.
pub(in crate::filesystem) struct MemoryDisk {
    bytes: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
    /// Whether the disk has a backing file with known holes.
    pub(in crate::filesystem) mapped: bool,
    /// The granularity of the backing file's data map, in bytes: data begins at a multiple of this
    /// number.
    pub(in crate::filesystem) map_bytes: u64,
    pub(in crate::filesystem) is_new: bool,
    pub(in crate::filesystem) accepts_uncleared: bool,
    pub(in crate::filesystem) witness: Witness,
    /// The number of the read, counted from 0, that fails.
    pub(in crate::filesystem) failing_read: Option<usize>,
    /// The maximum number of bytes that one read returns.
    pub(in crate::filesystem) read_bytes_max: usize,
    pub(in crate::filesystem) reads: Cell<usize>,
    pub(in crate::filesystem) bytes_read: Cell<u64>,
    /// The number of reads that are in flight at once, of which the last read completes first; 0 if
    /// the disk reads one range at a time.
    pub(in crate::filesystem) at_once: usize,
    pub(in crate::filesystem) progress: Progress,
}

impl MemoryDisk {
    pub(in crate::filesystem) fn new(bytes: u64) -> Self {
        MemoryDisk {
            bytes,
            blocks: BTreeMap::new(),
            mapped: true,
            map_bytes: BLOCK,
            is_new: false,
            accepts_uncleared: false,
            witness: Witness::New,
            failing_read: None,
            read_bytes_max: usize::MAX,
            reads: Cell::new(0),
            bytes_read: Cell::new(0),
            at_once: 0,
            progress: Progress::default(),
        }
    }

    pub(in crate::filesystem) fn is_zero(&self) -> bool {
        self.blocks.values().flatten().all(|byte| *byte == 0)
    }

    pub(in crate::filesystem) fn write(&mut self, at: u64, bytes: &[u8]) {
        for (offset, byte) in (at..).zip(bytes) {
            let block = self
                .blocks
                .entry(offset / BLOCK)
                .or_insert_with(|| vec![0; 4096]);
            block[usize::try_from(offset % BLOCK).unwrap()] = *byte;
        }
    }
}

impl Disk for MemoryDisk {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_new(&self) -> bool {
        self.is_new
    }

    fn accepts_uncleared(&self) -> bool {
        self.accepts_uncleared
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn has_file(&self) -> bool {
        self.witness != Witness::NoFile
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Failure> {
        assert_eq!(
            (offset % BLOCK, buffer.len() % 4096),
            (0, 0),
            "O_DIRECT refuses this"
        );
        let number = self.reads.replace(self.reads.get() + 1);
        if self.failing_read == Some(number) {
            return Err(Failure::new(Kind::System, "pread: EIO"));
        }
        let left = usize::try_from(self.bytes.saturating_sub(offset)).unwrap();
        let length = left.min(buffer.len()).min(self.read_bytes_max);
        for (index, chunk) in (offset / BLOCK..).zip(buffer[..length].chunks_mut(4096)) {
            match self.blocks.get(&index) {
                Some(block) => chunk.copy_from_slice(&block[..chunk.len()]),
                None => chunk.fill(0),
            }
        }
        self.bytes_read.set(self.bytes_read.get() + length as u64);
        Ok(length)
    }

    fn read_at_once(&self, longest: usize, reads: &mut dyn Reads) -> Result<bool, Failure> {
        if self.at_once == 0 {
            return Ok(false);
        }
        let mut begun = Vec::new();
        loop {
            while begun.len() < self.at_once
                && let Some(range) = reads.next()
            {
                begun.push(range);
            }
            let Some(range) = begun.pop() else {
                return Ok(true);
            };
            assert!(range.1 <= longest);
            let mut buffer = vec![0xee; range.1];
            let valid = self.read(range.0, &mut buffer)?;
            reads.take(range, &buffer[..valid]);
        }
    }

    fn witness(&self) -> Result<Witness, Failure> {
        Ok(self.witness)
    }

    fn secrets(&self) -> &[MarkSecret] {
        &[]
    }

    fn settle(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Failure> {
        if !self.mapped {
            return Ok((from < self.bytes).then_some(from..self.bytes));
        }
        let next = self.blocks.range(from / BLOCK..).next();
        let range = next.map(|(index, block)| {
            let data = block.iter().position(|byte| *byte != 0).unwrap_or(0) as u64;
            let start = index * BLOCK + data - data % self.map_bytes;
            let start = start.max(from);
            start..((index + 1) * BLOCK).min(self.bytes)
        });
        Ok(range.filter(|range| !range.is_empty()))
    }
}
