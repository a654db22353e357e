//! A mounted filesystem that records all changes. Every write and every sync reaches it at once,
//! since FUSE buffers nothing; a sync of a loop device is a sync of the file behind it.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::tape::{Survival, Tape};
use super::tree::{Change, Node, PAGE, PAGE_BYTES, Tree, index};
use crate::rig::{Attributes, FuseMount, Reply, Request, Server, op};

/// The size in statfs(2), as large as the disks of other tests.
const DISK_BYTES: u64 = 64 << 30;

const FATTR_SIZE: u32 = 1 << 3;
const FSYNC_DATA_ONLY: u32 = 1;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const SEEK_DATA: u32 = 3;
const KEEP_SIZE: u32 = 1;
const RENAME_NOREPLACE: u32 = 1;
/// The flags `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE` of fallocate(2).
const ZEROS: u32 = 2 | 16;

/// The mounted disk.
pub(super) struct Recorded {
    _mount: FuseMount,
    recorder: Arc<Mutex<Recorder>>,
}

impl Recorded {
    /// Mounts a disk at this directory with the content of the tree, all of which counts as on
    /// disk.
    pub(super) fn mount(point: &Path, tree: Tree) -> Self {
        let recorder = Recorder {
            tape: Tape::new(tree.clone()),
            tree,
        };
        let recorder = Arc::new(Mutex::new(recorder));
        Recorded {
            _mount: FuseMount::new(point, Shared(Arc::clone(&recorder))),
            recorder,
        }
    }

    /// Returns the number of events so far.
    pub(super) fn position(&self) -> usize {
        lock(&self.recorder).tape.end()
    }

    /// Returns all events so far.
    pub(super) fn tape(&self) -> Tape {
        lock(&self.recorder).tape.clone()
    }

    /// Returns the content that would remain if the power failed now.
    pub(super) fn cut(&self) -> Tree {
        let recorder = lock(&self.recorder);
        recorder.tape.cut(recorder.tape.end(), Survival::Nothing)
    }

    /// Discards the record: everything so far counts as on disk.
    pub(super) fn begin(&self) {
        let mut recorder = lock(&self.recorder);
        recorder.tape = Tape::new(recorder.tree.clone());
    }
}

struct Recorder {
    tree: Tree,
    tape: Tape,
}

struct Shared(Arc<Mutex<Recorder>>);

fn lock(recorder: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    // A request that failed has left the recorder consistent.
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server for Shared {
    fn answer(&mut self, request: Request<'_>) -> Option<Result<Vec<u8>, Errno>> {
        Some(lock(&self.0).answer(request).map(Reply::done))
    }
}

impl Recorder {
    fn answer(&mut self, request: Request<'_>) -> Result<Reply, Errno> {
        match request.op() {
            op::LOOKUP | op::GETATTR | op::OPEN | op::OPENDIR | op::STATFS => self.look(request),
            op::READ | op::READDIR | op::LSEEK => self.read(request),
            op::MKNOD | op::MKDIR | op::UNLINK | op::RMDIR | op::LINK => self.name(request),
            op::RENAME | op::RENAME2 => self.rename(request),
            op::SETATTR | op::WRITE | op::FALLOCATE => self.write(request),
            op::SETXATTR | op::GETXATTR | op::LISTXATTR | op::REMOVEXATTR => {
                self.attribute(request)
            }
            op::FSYNC | op::FSYNCDIR => {
                let mut body = request;
                body.skip(8);
                let data_only = body.u32() & FSYNC_DATA_ONLY != 0;
                self.tape.sync(request.node(), data_only);
                Ok(Reply::default())
            }
            op::RELEASE | op::RELEASEDIR | op::FLUSH | op::ACCESS => Ok(Reply::default()),
            _ => Err(Errno::NOSYS),
        }
    }

    fn change(&mut self, change: Change) {
        self.tree.apply(&change);
        self.tape.change(change);
    }

    fn node(&self, ino: u64) -> Result<&Node, Errno> {
        self.tree.node(ino).ok_or(Errno::NOENT)
    }

    fn entry(&self, directory: u64, name: &str) -> Result<u64, Errno> {
        let ino = self.node(directory)?.names.get(name);
        ino.copied().ok_or(Errno::NOENT)
    }

    fn attributes(&self, ino: u64) -> Result<Attributes, Errno> {
        let node = self.node(ino)?;
        let pages = u64::try_from(node.pages.len()).expect("a count");
        Ok(Attributes {
            ino,
            bytes: node.bytes,
            blocks: pages * 8,
            mode: if node.is_directory {
                0o040_700
            } else {
                0o100_600
            },
            links: self.tree.links(ino),
            changed: node.changed,
        })
    }

    fn look(&self, mut request: Request<'_>) -> Result<Reply, Errno> {
        let ino = request.node();
        match request.op() {
            op::LOOKUP => {
                let found = self.entry(ino, &request.name())?;
                Ok(Reply::entry(&self.attributes(found)?))
            }
            op::GETATTR => Ok(Reply::attr(&self.attributes(ino)?)),
            op::STATFS => {
                let blocks = DISK_BYTES / PAGE_BYTES;
                let bytes = u32::try_from(PAGE).expect("small");
                // These are blocks, free blocks, files, and free files; then block size, longest
                // name, and fragment size.
                Ok(Reply::default()
                    .u64s(&[blocks, blocks, blocks, blocks, blocks])
                    .u32s(&[bytes, 255, bytes, 0, 0, 0, 0, 0, 0, 0]))
            }
            _ => Ok(Reply::default().u64s(&[0, 0])),
        }
    }

    fn read(&self, mut request: Request<'_>) -> Result<Reply, Errno> {
        let node = self.node(request.node())?;
        request.skip(8);
        let (at, bytes) = (request.u64(), request.u32());
        match request.op() {
            op::READ => Ok(Reply::default().bytes(&node.read(at, bytes.into()))),
            op::LSEEK => {
                let found = node.seek(at, bytes == SEEK_DATA).ok_or(Errno::NXIO)?;
                Ok(Reply::default().u64s(&[found]))
            }
            _ => Ok(list(node, index(at), index(bytes.into()))),
        }
    }

    fn name(&mut self, mut request: Request<'_>) -> Result<Reply, Errno> {
        let directory = request.node();
        let (op, mut ino) = (request.op(), self.tree.free());
        match op {
            op::MKNOD => request.skip(16),
            op::MKDIR => request.skip(8),
            op::LINK => ino = request.u64(),
            _ => {}
        }
        let name = request.name();
        if matches!(op, op::UNLINK | op::RMDIR) {
            let gone = self.entry(directory, &name)?;
            if !self.node(gone)?.names.is_empty() {
                return Err(Errno::NOTEMPTY);
            }
            self.change(Change::Unname { directory, name });
            return Ok(Reply::default());
        }
        if self.entry(directory, &name).is_ok() {
            return Err(Errno::EXIST);
        }
        if op != op::LINK {
            let is_directory = op == op::MKDIR;
            self.change(Change::Make { ino, is_directory });
        }
        self.change(Change::Name {
            directory,
            name,
            ino,
        });
        Ok(Reply::entry(&self.attributes(ino)?))
    }

    fn rename(&mut self, mut request: Request<'_>) -> Result<Reply, Errno> {
        let (directory, into) = (request.node(), request.u64());
        let flags = match request.op() {
            op::RENAME => 0,
            _ => u32::try_from(request.u64() & 0xffff_ffff).expect("half of it"),
        };
        let (from, to) = (request.name(), request.name());
        let ino = self.entry(directory, &from)?;
        if directory != into || flags & !RENAME_NOREPLACE != 0 {
            // The programs do not use this flag, and the order of its effects on disk is unknown.
            return Err(Errno::INVAL);
        }
        if flags == RENAME_NOREPLACE && self.entry(directory, &to).is_ok() {
            return Err(Errno::EXIST);
        }
        self.change(Change::Rename {
            directory,
            from,
            to,
            ino,
        });
        Ok(Reply::default())
    }

    fn write(&mut self, mut request: Request<'_>) -> Result<Reply, Errno> {
        let ino = request.node();
        let before = self.node(ino)?.bytes;
        match request.op() {
            op::SETATTR => {
                let valid = request.u32();
                request.skip(12);
                let bytes = request.u64();
                if valid & FATTR_SIZE != 0 {
                    self.change(Change::Resize { ino, bytes });
                }
                Ok(Reply::attr(&self.attributes(ino)?))
            }
            op::WRITE => {
                request.skip(8);
                let (at, count) = (request.u64(), request.u32());
                request.skip(20);
                let data = request.bytes(count);
                self.reach(ino, at + u64::from(count));
                self.fill(ino, at, data);
                Ok(Reply::default().u32s(&[count, 0]))
            }
            _ => {
                request.skip(8);
                let (at, bytes, mode) = (request.u64(), request.u64(), request.u32());
                if mode & KEEP_SIZE == 0 {
                    self.reach(ino, at + bytes);
                }
                if mode & ZEROS != 0 {
                    self.punch(ino, at, before.min(at + bytes));
                }
                Ok(Reply::default())
            }
        }
    }

    /// Extends the file to at least this size.
    fn reach(&mut self, ino: u64, bytes: u64) {
        if self.tree.node(ino).is_some_and(|node| node.bytes < bytes) {
            self.change(Change::Resize { ino, bytes });
        }
    }

    /// Writes page by page, since each may be on disk without the others.
    fn fill(&mut self, ino: u64, mut at: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let (page, from) = (at / PAGE_BYTES, index(at % PAGE_BYTES));
            let (now, later) = data.split_at(data.len().min(PAGE - from));
            let mut whole = self
                .tree
                .node(ino)
                .map_or([0; PAGE], |node| node.page(page));
            whole[from..from + now.len()].copy_from_slice(now);
            let data_of_page = whole.into();
            self.change(Change::Write {
                ino,
                page,
                data: data_of_page,
            });
            at += u64::try_from(now.len()).expect("a length");
            data = later;
        }
    }

    fn punch(&mut self, ino: u64, at: u64, end: u64) {
        let (from, to) = (at.div_ceil(PAGE_BYTES), end / PAGE_BYTES);
        let zeros = [0; PAGE];
        if from > to {
            return self.fill(ino, at, &zeros[..index(end.saturating_sub(at))]);
        }
        self.fill(ino, at, &zeros[..index(from * PAGE_BYTES - at)]);
        self.fill(ino, to * PAGE_BYTES, &zeros[..index(end - to * PAGE_BYTES)]);
        self.change(Change::Punch { ino, from, to });
    }

    fn attribute(&mut self, mut request: Request<'_>) -> Result<Reply, Errno> {
        let ino = request.node();
        let attributes = &self.node(ino)?.attributes;
        match request.op() {
            op::SETXATTR => {
                let (count, flags) = (request.u32(), request.u32());
                let name = request.name();
                match attributes.contains_key(&name) {
                    true if flags & XATTR_CREATE != 0 => return Err(Errno::EXIST),
                    false if flags & XATTR_REPLACE != 0 => return Err(Errno::NODATA),
                    _ => {}
                }
                let value = Some(request.bytes(count).to_vec());
                self.change(Change::Attribute { ino, name, value });
                Ok(Reply::default())
            }
            op::REMOVEXATTR => {
                let name = request.name();
                attributes.get(&name).ok_or(Errno::NODATA)?;
                let value = None;
                self.change(Change::Attribute { ino, name, value });
                Ok(Reply::default())
            }
            op::GETXATTR => {
                let room = request.u32();
                request.skip(4);
                let value = attributes.get(&request.name()).ok_or(Errno::NODATA)?;
                sized(value, room)
            }
            _ => {
                let names: Vec<u8> = attributes
                    .keys()
                    .flat_map(|name| [name.as_bytes(), b"\0"].concat())
                    .collect();
                sized(&names, request.u32())
            }
        }
    }
}

/// Returns the value, or its size if the caller passes no buffer.
fn sized(value: &[u8], room: u32) -> Result<Reply, Errno> {
    let bytes = u32::try_from(value.len()).expect("small");
    match room {
        0 => Ok(Reply::default().u32s(&[bytes, 0])),
        room if room < bytes => Err(Errno::RANGE),
        _ => Ok(Reply::default().bytes(value)),
    }
}

/// Returns entries as `struct fuse_dirent`, starting with this one.
fn list(directory: &Node, from: usize, room: usize) -> Reply {
    let mut list = Vec::new();
    for (number, (name, ino)) in directory.names.iter().enumerate().skip(from) {
        let length = u32::try_from(name.len()).expect("short");
        let next = u64::try_from(number + 1).expect("a count");
        let entry = Reply::default().u64s(&[*ino, next]).u32s(&[length, 0]);
        let mut entry = entry.bytes(name.as_bytes()).done();
        entry.resize(entry.len().next_multiple_of(8), 0);
        if list.len() + entry.len() > room {
            break;
        }
        list.extend(entry);
    }
    Reply::default().bytes(&list)
}
