//! Changes of the volumes' files by controllers, pods and operators, who sync all their writes.

use std::path::Path;

use super::superblock::BLOCK_BYTES;
use super::{Machine, btrfs, ext4, xfs};

impl Machine {
    /// Creates a sparse file and its parent directories, or grows an existing file.
    pub(crate) fn make_file(&self, path: &Path, bytes: u64) {
        self.lock().make_file(path, bytes);
    }

    /// Sets an extended attribute, and syncs it.
    pub(crate) fn set_attribute(&self, path: &Path, name: &str, value: &[u8]) {
        let (name, value) = (name.to_owned(), value.to_owned());
        let mut state = self.lock();
        let attributes = &mut state.file_at(path).attributes;
        attributes.change(move |all| all.insert(name.clone(), value.clone()));
        attributes.sync();
    }

    /// Creates a directory and its parents.
    pub(crate) fn make_dir(&self, path: &Path) {
        self.lock().make_dir(path);
    }

    /// Writes to a volume as its user does, and then syncs only these bytes. An encrypted volume is
    /// written inside.
    pub(crate) fn write_file(&self, path: &Path, at: u64, bytes: &[u8]) {
        self.put(path, at, bytes);
        let mut state = self.lock();
        state.file_at(path).used = true;
        let ino = state.user_inode(path);
        state.file(ino).unwrap().used = true;
    }

    /// Writes zeros to a file, which do not count as a user's data.
    pub(crate) fn write_zeros(&self, path: &Path, bytes: usize) {
        self.put(path, 0, &vec![0; bytes]);
    }

    /// Enables project quotas in an ext4 by changing only the superblock, as a user of the volume
    /// can.
    pub(crate) fn add_projects(&self, path: &Path) {
        let mut state = self.lock();
        let contents = &mut state.file_at(path).contents;
        contents.change(ext4::add_projects);
        contents.sync();
    }

    /// Sets `errors=panic` in the superblock of the ext4 in a file, as tune2fs does; with
    /// `is_logged`, only in the journal, so that a replay sets the option.
    pub(crate) fn ask_panic(&self, path: &Path, is_logged: bool) {
        let mut state = self.lock();
        let contents = &mut state.file_at(path).contents;
        match is_logged {
            false => contents.change(ext4::ask_panic),
            true => contents.change(|to| {
                ext4::log_panic(to);
                ext4::leave_dirty(to);
            }),
        }
        contents.sync();
    }

    /// Writes the remains of a deleted volume to the storage, which do not count as a user's data.
    pub(crate) fn soil(&self, path: &Path, at: u64, bytes: &[u8]) {
        self.put(path, at, bytes);
    }

    /// Creates a filesystem on a medium, as if on another machine.
    pub(crate) fn make_filesystem(&self, path: &Path, fs_type: &str) {
        let mut state = self.lock();
        let contents = &mut state.file_at(path).contents;
        let blocks = contents.bytes() / BLOCK_BYTES;
        match fs_type {
            "ext4" => contents.change(move |to| ext4::write(to, blocks)),
            "xfs" => contents.change(move |to| xfs::write(to, blocks, [0xee; 16], false)),
            "btrfs" => contents.change(move |to| btrfs::write(to, blocks, false)),
            other => panic!("the simulated machine has no {other}"),
        }
        contents.sync();
    }

    /// Discards all blocks of a medium.
    pub(crate) fn discard(&self, path: &Path) {
        let mut state = self.lock();
        let contents = &mut state.file_at(path).contents;
        contents.change(|contents| contents.discard_but(u64::MAX));
        contents.sync();
    }

    fn put(&self, path: &Path, at: u64, bytes: &[u8]) {
        let mut state = self.lock();
        let ino = state.user_inode(path);
        let contents = &mut state.file(ino).unwrap().contents;
        let bytes: Box<[u8]> = bytes.into();
        contents.change(move |contents| contents.write(at, &bytes));
        contents.sync();
    }

    /// Whether a file, directory or device with this path exists.
    pub(crate) fn is_there(&self, path: &Path) -> bool {
        self.lock().walk(path).is_ok()
    }

    /// Reads from a file; from an encrypted volume, what its user reads.
    pub(crate) fn read_file(&self, path: &Path, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut state = self.lock();
        let ino = state.user_inode(path);
        state.file(ino).unwrap().contents.read(at, &mut bytes);
        bytes
    }

    /// Creates a symlink to a directory.
    pub(crate) fn link_dir(&self, link: &Path, to: &Path) {
        self.lock().links.insert(link.to_owned(), to.to_owned());
    }

    /// Adds a hard link to a file.
    pub(crate) fn link_file(&self, path: &Path, name: &Path) {
        self.lock().link(path, name).unwrap();
    }

    /// Removes a file. A device that is bound to the file keeps the file's data.
    pub(crate) fn delete_file(&self, path: &Path) {
        self.lock().remove(path, false).unwrap();
    }

    /// Renames a file.
    pub(crate) fn move_file(&self, from: &Path, to: &Path) {
        let mut state = self.lock();
        let file = state.walk(from).unwrap().ino;
        let (folder, name) = state.parent(to).unwrap();
        state.add_name(folder.ino, &name, file);
        state.remove(from, false).unwrap();
    }

    /// Truncates a file. Devices that are bound to the file keep their size.
    pub(crate) fn truncate_file(&self, path: &Path, bytes: u64) {
        let mut state = self.lock();
        let file = state.file_at(path);
        file.cut = true;
        file.contents
            .change(move |contents| contents.truncate(bytes));
        file.sync();
    }
}
