//! What the machine holds, as lines that can be compared and shown: numbers that may differ from
//! one run to the next are left out.

use std::collections::BTreeSet;
use std::path::Path;

use super::Machine;
use super::state::{InodeKind, State};
use super::superblock::{self, Whole};

/// Every mount, binding, lock, descriptor and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture(BTreeSet<String>);

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Nothing but zeros.
    Nothing,
    /// A whole filesystem: its type, its size in bytes, and how often one was made.
    Filesystem(&'static str, u64, u32),
    /// Anything else.
    Parts,
}

impl Picture {
    /// One line for everything that is in one of the two only.
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

    /// What is in this one only.
    pub(crate) fn beyond(&self, before: &Picture) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }

    /// The lines that begin like one of these.
    pub(crate) fn beginning_with(&self, beginnings: &[&str]) -> Vec<String> {
        let is_wanted = |line: &&String| beginnings.iter().any(|b| line.starts_with(b));
        self.0.iter().filter(is_wanted).cloned().collect()
    }
}

impl Machine {
    /// What the machine holds now.
    pub(crate) fn picture(&self) -> Picture {
        let state = self.lock();
        let mut lines = BTreeSet::new();
        for line in state.mount_lines().into_iter().chain(state.loop_lines()) {
            lines.insert(line);
        }
        for ino in state.locks.keys() {
            lines.insert(format!("lock of {}", state.name_of(*ino)));
        }
        let open = state.open.values().filter(|d| d.owner.is_some());
        for (number, description) in open.enumerate() {
            lines.insert(format!("descriptor {number} of {}", description.path));
        }
        for (path, ino) in state.host_names() {
            let kind = match &state.inodes[&ino].kind {
                InodeKind::Directory(_) => "folder",
                InodeKind::File(_) => "file",
                InodeKind::Loop(_) => "device",
            };
            lines.insert(format!("{kind} {}", path.display()));
        }
        Picture(lines)
    }

    /// What a file holds now.
    pub(crate) fn holds(&self, path: &Path) -> Holds {
        let mut state = self.lock();
        let file = state.file_at(path);
        match superblock::read(&file.contents) {
            Some(Whole { fs_type, bytes }) => Holds::Filesystem(fs_type, bytes, file.formats),
            None if file.contents.is_blank() => Holds::Nothing,
            None => Holds::Parts,
        }
    }
}

impl State {
    fn mount_lines(&self) -> Vec<String> {
        let lines = self.mounts.values().map(|mount| {
            let superblock = &self.superblocks[&mount.superblock];
            let what = match (&self.inodes[&mount.root].kind, superblock.on) {
                (&InodeKind::Loop(number), _) | (_, Some(number)) => self.file_behind(number),
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

    fn loop_lines(&self) -> Vec<String> {
        let bound = self.loops.iter().filter(|(_, l)| l.binding.is_some());
        let lines = bound.map(|(number, device)| {
            let (file, mode) = (
                self.file_behind(*number),
                device.binding.as_ref().unwrap().mode,
            );
            format!("loop of {file}: {mode:?}")
        });
        lines.collect()
    }

    fn file_behind(&self, number: u32) -> String {
        match self.behind(number) {
            Some(ino) => self.name_of(ino),
            None => "nothing".to_owned(),
        }
    }

    fn name_of(&self, ino: u64) -> String {
        let names = self.host_names();
        let found = names.iter().find(|(_, known)| *known == ino);
        found.map_or_else(
            || format!("inode {ino}"),
            |(path, _)| path.display().to_string(),
        )
    }
}
