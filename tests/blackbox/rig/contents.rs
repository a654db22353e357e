//! The content of a file, without its zeros: equal if and only if the files are equal, and cheap to
//! read for files with holes.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::Hasher as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// The size of a block, in bytes.
const BLOCK: u64 = 4096;

/// The length of a file and a hash of each of its blocks that is not all zeros.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    bytes: u64,
    blocks: BTreeMap<u64, u64>,
}

impl Contents {
    /// Reads a file.
    pub(crate) fn of(file: &Path) -> Self {
        let file = File::open(file).expect("open");
        let bytes = file.metadata().expect("stat").len();
        let mut blocks = BTreeMap::new();
        let mut at = 0;
        while let Some(data) = next_data(&file, at) {
            at = data - data % BLOCK;
            if let Some(hash) = hash(&file, at, bytes) {
                blocks.insert(at, hash);
            }
            at += BLOCK;
        }
        Contents { bytes, blocks }
    }

    /// Whether the whole file reads as zeros.
    pub(crate) fn is_blank(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Fails, with the position, unless the file still has exactly this content.
    #[track_caller]
    pub(crate) fn expect_unchanged(&self, file: &Path, when: &str) {
        let now = Contents::of(file);
        assert_eq!(self.bytes, now.bytes, "the length of the file, {when}");
        let differs = |at: &&u64| self.blocks.get(at) != now.blocks.get(at);
        let all = self.blocks.keys().chain(now.blocks.keys());
        let changed: Vec<&u64> = all.filter(differs).collect();
        assert!(changed.is_empty(), "changed at bytes {changed:?}, {when}");
    }
}

fn next_data(file: &File, from: u64) -> Option<u64> {
    match seek(file, SeekFrom::Data(from)) {
        Ok(at) => Some(at),
        // Per lseek(2), only a hole follows, or nothing.
        Err(Errno::NXIO) => None,
        Err(errno) => panic!("lseek: {errno}"),
    }
}

fn hash(file: &File, at: u64, end: u64) -> Option<u64> {
    let length = usize::try_from(BLOCK.min(end - at)).expect("a block");
    let mut block = vec![0; length];
    file.read_exact_at(&mut block, at).expect("read");
    if block.iter().all(|byte| *byte == 0) {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(&block);
    Some(hasher.finish())
}
