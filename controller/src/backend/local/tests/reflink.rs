//! The same on a real xfs, which shares blocks. Needs root, and a mount namespace of its own.

use super::{Bed, MIB, attach_order, of_snapshot, of_volume, order, snapshot_order};
use crate::backend::Content;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

/// A fresh xfs in a file, mounted while this lives.
struct Xfs {
    dir: tempfile::TempDir,
}

impl Xfs {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (image, mounted) = (dir.path().join("image"), dir.path().join("mounted"));
        File::create(&image).unwrap().set_len(4 << 30).unwrap();
        fs::create_dir(&mounted).unwrap();
        run("mkfs.xfs", &["-q"], &[&image]);
        // The loop device goes with the mount.
        run("mount", &["-o", "loop"], &[&image, &mounted]);
        Self { dir }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("mounted")
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        run("umount", &[], &[&self.path()]);
    }
}

fn run(program: &str, flags: &[&str], paths: &[&Path]) {
    let status = Command::new(program).args(flags).args(paths).status();
    assert!(status.unwrap().success(), "{program} {flags:?} {paths:?}");
}

#[test]
#[ignore = "mounts: needs root and a mount namespace of its own"]
fn a_volume_in_use_is_cut_and_cloned_at_once() {
    let xfs = Xfs::new();
    let bed = Bed::beneath(&xfs.path());
    let store = bed.open();
    // Larger than the filesystem: a copy could not even be tried.
    let volume = store.create(&order("pvc-1", 1 << 40), None).unwrap();
    let id = volume.id.as_str();
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    let file = File::options().write(true).open(bed.file(id)).unwrap();
    file.try_lock().unwrap();
    for at in [0, 1 << 39, (1 << 40) - 4] {
        file.write_all_at(b"kept", at).unwrap();
    }
    let snapshot = store.cut(&snapshot_order("snap", &volume)).unwrap();
    assert!(snapshot.ready);
    file.write_all_at(b"lost", 0).unwrap();
    let clone = store
        .create(&order("pvc-2", 1 << 40), of_volume(&volume).as_ref())
        .unwrap();
    let restored = store
        .create(
            &order("pvc-3", (1 << 40) + MIB),
            of_snapshot(&snapshot).as_ref(),
        )
        .unwrap();
    for (volume, first) in [(&clone, b"lost"), (&restored, b"kept")] {
        let file = File::open(bed.file(volume.id.as_str())).unwrap();
        assert_eq!(file.metadata().unwrap().len(), volume.bytes);
        for (at, expected) in [(0, first), (1 << 39, b"kept"), ((1 << 40) - 4, b"kept")] {
            let mut read = [0; 4];
            file.read_exact_at(&mut read, at).unwrap();
            assert_eq!(&read, expected, "{at}");
        }
        let attached = store.attach(&attach_order(volume, "node-1")).unwrap();
        assert_eq!(attached.content, Content::Populated);
    }
}

#[test]
#[ignore = "mounts: needs root and a mount namespace of its own"]
fn what_is_cut_from_a_new_volume_in_use_stays_new() {
    let xfs = Xfs::new();
    let bed = Bed::beneath(&xfs.path());
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    let snapshot = store.cut(&snapshot_order("snap", &volume)).unwrap();
    let restored = store
        .create(&order("pvc-2", MIB), of_snapshot(&snapshot).as_ref())
        .unwrap();
    let attached = store.attach(&attach_order(&restored, "node-1")).unwrap();
    assert_eq!(attached.content, Content::New);
}
