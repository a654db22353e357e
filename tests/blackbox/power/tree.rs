//! A filesystem in memory, and the changes of which it consists: the same code serves a mounted
//! filesystem and rebuilds its content after a power loss. Independent of the callers, and of what
//! a disk keeps.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::SystemTime;

/// The size of a page, which a filesystem writes in one piece, in bytes.
pub(super) const PAGE: usize = 4096;
/// [`PAGE`] for offsets.
pub(super) const PAGE_BYTES: u64 = 4096;
/// The size of a piece, which a disk writes atomically, in bytes: two sectors, since no ext4
/// survives a torn superblock (ADR 4).
const PIECE: usize = 1024;
/// All pieces of a page, as bits.
pub(super) const ALL_PIECES: u8 = 0x0f;

/// The number of the root directory (`FUSE_ROOT_ID`).
pub(super) const ROOT: u64 = 1;

/// The content of a page of a file.
pub(super) type Page = Arc<[u8; PAGE]>;

/// A change, the smallest unit that a disk can keep or lose by itself.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// A file or directory is created without a name.
    Make { ino: u64, is_directory: bool },
    /// A name is added to a file or directory.
    Name {
        directory: u64,
        name: String,
        ino: u64,
    },
    /// A name is removed.
    Unname { directory: u64, name: String },
    /// A name replaces another name, which may exist, in one step: at least one of the two always
    /// exists.
    Rename {
        directory: u64,
        from: String,
        to: String,
        ino: u64,
    },
    /// The size of a file is set.
    Resize { ino: u64, bytes: u64 },
    /// A page of a file, given by its number, is written.
    Write { ino: u64, page: u64, data: Page },
    /// Pages of a file become a hole.
    Punch { ino: u64, from: u64, to: u64 },
    /// An extended attribute is set, or removed if the value is `None`.
    Attribute {
        ino: u64,
        name: String,
        value: Option<Vec<u8>>,
    },
}

/// A file or directory.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) is_directory: bool,
    /// The names in a directory.
    pub(super) names: BTreeMap<String, u64>,
    /// The size of a file.
    pub(super) bytes: u64,
    /// The pages of a file; a missing page is a hole.
    pub(super) pages: BTreeMap<u64, Page>,
    pub(super) attributes: BTreeMap<String, Vec<u8>>,
    pub(super) changed: SystemTime,
}

/// All files and directories. A copy shares the pages.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<u64, Node>,
}

impl Node {
    fn new(is_directory: bool) -> Self {
        Node {
            is_directory,
            names: BTreeMap::new(),
            bytes: 0,
            pages: BTreeMap::new(),
            attributes: BTreeMap::new(),
            changed: SystemTime::now(),
        }
    }

    /// Returns the content of a page; zeros for a hole.
    pub(super) fn page(&self, page: u64) -> [u8; PAGE] {
        self.pages.get(&page).map_or([0; PAGE], |data| **data)
    }

    /// Returns the content of this range, up to the end of the file.
    pub(super) fn read(&self, at: u64, bytes: u64) -> Vec<u8> {
        let end = self.bytes.min(at.saturating_add(bytes));
        let mut found = Vec::new();
        let mut at = at;
        while at < end {
            let from = index(at % PAGE_BYTES);
            let to = PAGE.min(from + index(end - at));
            found.extend_from_slice(&self.page(at / PAGE_BYTES)[from..to]);
            at += u64::try_from(to - from).expect("a length");
        }
        found
    }

    /// Returns the first offset at or after `at` with data (or without, if `data` is false); `None`
    /// beyond the end.
    pub(super) fn seek(&self, at: u64, data: bool) -> Option<u64> {
        if at >= self.bytes {
            return None;
        }
        let first = at / PAGE_BYTES;
        let page = if data {
            *self.pages.range(first..).next()?.0
        } else {
            let mut hole = first;
            while self.pages.contains_key(&hole) {
                hole += 1;
            }
            hole
        };
        let found = at.max(page * PAGE_BYTES);
        match data {
            true => (found < self.bytes).then_some(found),
            // Per lseek(2), there is a hole at the end of every file.
            false => Some(found.min(self.bytes)),
        }
    }

    fn resize(&mut self, bytes: u64) {
        self.bytes = bytes;
        self.forget_beyond_end();
    }

    /// Drops everything beyond the end: when a file is enlarged again, the new part reads as zeros.
    fn forget_beyond_end(&mut self) {
        drop(self.pages.split_off(&self.bytes.div_ceil(PAGE_BYTES)));
        let kept = index(self.bytes % PAGE_BYTES);
        if kept > 0
            && let Some(last) = self.pages.get_mut(&(self.bytes / PAGE_BYTES))
        {
            Arc::make_mut(last)[kept..].fill(0);
        }
    }
}

impl Tree {
    /// Creates a tree with one empty directory.
    pub(super) fn new() -> Self {
        Tree {
            nodes: BTreeMap::from([(ROOT, Node::new(true))]),
        }
    }

    /// Returns the file or directory with this number.
    pub(super) fn node(&self, ino: u64) -> Option<&Node> {
        self.nodes.get(&ino)
    }

    /// Returns the number of names of a file or directory.
    pub(super) fn links(&self, ino: u64) -> u32 {
        let names = self.nodes.values().flat_map(|node| node.names.values());
        u32::try_from(names.filter(|named| **named == ino).count()).expect("a count")
    }

    /// Returns an unused number.
    pub(super) fn free(&self) -> u64 {
        self.nodes.keys().next_back().expect("a root") + 1
    }

    /// Applies a change.
    pub(super) fn apply(&mut self, change: &Change) {
        self.apply_torn(change, ALL_PIECES);
    }

    /// Applies a change; of a write, only these pieces.
    pub(super) fn apply_torn(&mut self, change: &Change, pieces: u8) {
        match change {
            Change::Make { ino, is_directory } => {
                self.nodes.insert(*ino, Node::new(*is_directory));
            }
            Change::Name {
                directory,
                name,
                ino,
            } => {
                self.change(*directory).names.insert(name.clone(), *ino);
            }
            Change::Unname { directory, name } => {
                self.change(*directory).names.remove(name);
            }
            Change::Rename {
                directory,
                from,
                to,
                ino,
            } => {
                let names = &mut self.change(*directory).names;
                names.remove(from);
                names.insert(to.clone(), *ino);
            }
            Change::Resize { ino, bytes } => self.change(*ino).resize(*bytes),
            Change::Write { ino, page, data } => {
                let node = self.change(*ino);
                let data = torn(node.pages.get(page), data, pieces);
                node.pages.insert(*page, data);
            }
            Change::Punch { ino, from, to } => {
                let pages = &mut self.change(*ino).pages;
                let rest = pages.split_off(to);
                drop(pages.split_off(from));
                pages.extend(rest);
            }
            Change::Attribute { ino, name, value } => {
                let attributes = &mut self.change(*ino).attributes;
                match value {
                    Some(value) => attributes.insert(name.clone(), value.clone()),
                    None => attributes.remove(name),
                };
            }
        }
    }

    /// Returns a value that is equal for equal trees that share their pages.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (ino, node) in &self.nodes {
            (ino, node.bytes, &node.names, &node.attributes).hash(&mut hasher);
            for (number, page) in &node.pages {
                (number, Arc::as_ptr(page).addr()).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// Returns the content that a mount finds after a power loss: nothing without a name, and
    /// nothing beyond a file's end.
    pub(super) fn mounted(mut self) -> Self {
        let mut kept = vec![ROOT];
        let mut at = 0;
        while let Some(ino) = kept.get(at) {
            kept.extend(self.nodes[ino].names.values());
            at += 1;
        }
        self.nodes.retain(|ino, _| kept.contains(ino));
        for node in self.nodes.values_mut() {
            node.forget_beyond_end();
        }
        self
    }

    fn change(&mut self, ino: u64) -> &mut Node {
        let node = self.nodes.get_mut(&ino).expect("a file that was made");
        node.changed = SystemTime::now();
        node
    }
}

fn torn(old: Option<&Page>, new: &Page, pieces: u8) -> Page {
    if pieces == ALL_PIECES {
        return Arc::clone(new);
    }
    let mut page = old.map_or([0; PAGE], |old| **old);
    for (number, piece) in page.chunks_mut(PIECE).enumerate() {
        if pieces & (1 << number) != 0 {
            let at = number * PIECE;
            piece.copy_from_slice(&new[at..at + PIECE]);
        }
    }
    Arc::new(page)
}

pub(super) fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("memory")
}
