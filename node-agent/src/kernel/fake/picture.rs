//! The machine's state as lines that tests can compare and print, without numbers that differ from
//! run to run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use super::Machine;
use super::disks::DISKS;
use super::state::{InodeKind, State};
use super::superblock::{self, Whole};

/// A snapshot of every mount, binding, lock, descriptor and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture(BTreeSet<String>);

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// The file has only zeros.
    Nothing,
    /// A complete filesystem: its type, its size in bytes, and the number of completed mkfs.
    Filesystem(&'static str, u64, u32),
    /// Any other content.
    Parts,
}

impl Picture {
    /// Returns a line for each entry that only one of the two pictures has.
    pub(crate) fn difference(&self, before: &Picture) -> String {
        let gone = before
            .0
            .difference(&self.0)
            .map(|line| format!("- {line}\n"));
        let new = self
            .0
            .difference(&before.0)
            .map(|line| format!("+ {line}\n"));
        gone.chain(new).collect()
    }

    /// Returns the entries that this picture has and `before` lacks.
    pub(crate) fn beyond(&self, before: &Picture) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }

    /// Returns the lines that begin with one of these texts.
    pub(crate) fn beginning_with(&self, beginnings: &[&str]) -> Vec<String> {
        let like = |beginning: &&str| {
            let from = (Bound::Included(*beginning), Bound::Unbounded);
            let beginning = (*beginning).to_owned();
            let lines = self.0.range::<str, _>(from);
            lines.take_while(move |line| line.starts_with(&beginning))
        };
        beginnings.iter().flat_map(like).cloned().collect()
    }
}

impl Machine {
    /// Returns a snapshot of the machine's state.
    pub(crate) fn picture(&self) -> Picture {
        let state = self.lock();
        let on_host = state.host_names();
        let names = Names(on_host.iter().map(|(path, ino)| (*ino, path)).collect());
        let mut lines = BTreeSet::new();
        lines.extend(state.mount_lines(&names));
        lines.extend(state.loop_lines(&names));
        lines.extend(state.disk_lines(&names));
        lines.extend(state.mapper_lines(|number| names.of_file_behind(&state, number)));
        for ino in state.locks.keys() {
            lines.insert(format!("lock of {}", names.of(*ino)));
        }
        let open = state.open.values().filter(|d| d.owner.is_some());
        for (number, description) in open.enumerate() {
            lines.insert(format!("descriptor {number} of {}", description.path));
        }
        for (path, ino) in &on_host {
            let kind = match &state.inodes[ino].kind {
                InodeKind::Directory(_) => "directory",
                InodeKind::File(_) => "file",
                InodeKind::Loop(_) => "device",
            };
            lines.insert(format!("{kind} {}", path.display()));
        }
        Picture(lines)
    }

    /// Returns the kind of a file's content; of an encrypted volume, of the content inside.
    pub(crate) fn holds(&self, path: &Path) -> Holds {
        let mut state = self.lock();
        let ino = state.user_inode(path);
        let file = state.file(ino).unwrap();
        match superblock::read(&file.contents) {
            Some(Whole { fs_type, bytes }) => Holds::Filesystem(fs_type, bytes, file.formats),
            None if file.contents.is_blank() => Holds::Nothing,
            None => Holds::Parts,
        }
    }
}

/// The names of the inodes of the machine's first filesystem.
struct Names<'a>(BTreeMap<u64, &'a PathBuf>);

impl Names<'_> {
    fn of(&self, ino: u64) -> String {
        match self.0.get(&ino) {
            Some(path) => path.display().to_string(),
            None => format!("inode {ino}"),
        }
    }

    fn of_file_behind(&self, state: &State, number: u32) -> String {
        if let Some(below) = state.below(number) {
            return format!("the inside of {}", self.of_file_behind(state, below));
        }
        let ino = state.behind(number);
        ino.map_or_else(|| "nothing".to_owned(), |ino| self.of(ino))
    }
}

impl State {
    fn mount_lines(&self, names: &Names<'_>) -> Vec<String> {
        let lines = self.mounts.values().map(|mount| {
            let superblock = &self.superblocks[&mount.superblock];
            let what = match (&self.inodes[&mount.root].kind, superblock.on) {
                (&InodeKind::Loop(number), _) | (_, Some(number)) => {
                    names.of_file_behind(self, number)
                }
                _ => "its own".to_owned(),
            };
            let alike =
                |other: &&super::state::Mount| other.group == mount.group && other.group.is_some();
            let peers = self.mounts.values().filter(alike).count();
            let (point, fs) = (mount.point.display(), &superblock.fs_type);
            let (attrs, read_only) = (mount.attrs.bits(), superblock.read_only);
            format!("mount {point}: {fs} of {what}, {attrs:#x}, ro {read_only}, {peers} peers")
        });
        lines.collect()
    }

    fn loop_lines(&self, names: &Names<'_>) -> Vec<String> {
        let loops = self.loops.range(..DISKS);
        let bound = loops.filter(|(_, l)| l.binding.is_some());
        let lines = bound.map(|(number, device)| {
            let (file, mode) = (
                names.of_file_behind(self, *number),
                device.binding.as_ref().unwrap().mode,
            );
            format!("loop of {file}: {mode:?}")
        });
        lines.collect()
    }

    fn disk_lines(&self, names: &Names<'_>) -> Vec<String> {
        let lines = self.disks.iter().map(|(number, disk)| {
            let (name, file) = (
                self.device_name(*number),
                names.of_file_behind(self, *number),
            );
            format!("disk {name} of {file}, removed {}", disk.is_removed)
        });
        lines.collect()
    }
}
