//! A full filesystem below the state directory. On btrfs, an overwrite takes new blocks unless the
//! file is NOCOW, and reserved blocks suffice only for the first overwrite. On xfs, an attribute
//! cannot be set without free blocks.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::rig::{Disk, Pair, TestDir, orders, run, text};

const DISK_BYTES: u64 = 512 << 20;
/// The number of volumes; on a btrfs without NOCOW, not all of them can be deleted.
const VOLUMES: usize = 20;
/// The files that fill the filesystem.
const FILLING: [(&str, usize); 2] = [("filling", 1 << 20), ("and the rest", 4096)];

/// Fills the filesystem until nothing can be written.
fn fill(directory: &Path) {
    for (name, bytes) in FILLING {
        let mut file = File::create_new(directory.join(name)).expect("create");
        let block = vec![1; bytes];
        while file
            .write_all(&block)
            .and_then(|()| file.sync_data())
            .is_ok()
        {}
    }
}

/// Deletes and lists volumes, before and after a restart.
fn expect_deletions(pair: &mut Pair, volumes: &[String]) {
    let state = pair.site().top.join("state");
    fill(&state);
    for half in volumes.chunks(VOLUMES / 2) {
        let controller = pair.site().controller();
        for volume in half {
            controller.delete(orders::delete(volume)).expect("delete");
        }
        pair.restart_controller();
        pair.ledger();
    }
    for (name, _) in FILLING {
        fs::remove_file(state.join(name)).expect("unlink");
    }
}

fn with_volumes(filesystem: &str, act: impl FnOnce(&mut Pair, &[String])) {
    let test_dir = TestDir::new();
    let disk = Disk::of(&test_dir, filesystem, "state", DISK_BYTES);
    let mut pair = Pair::on(test_dir, disk);
    let controller = pair.site().controller();
    let volumes: Vec<_> = (0..VOLUMES)
        .map(|number| {
            let create = orders::create(&format!("pvc-{number}"), "block");
            let created = controller.create(create).expect("create");
            created.volume.expect("a volume").volume_id
        })
        .collect();
    act(&mut pair, &volumes);
    pair.end();
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_are_deleted_on_a_full_disk() {
    for filesystem in ["btrfs", "xfs", "ext4"] {
        with_volumes(filesystem, expect_deletions);
    }
}

/// New files in a compressed directory cannot be NOCOW, so copying the database at each start would
/// gain nothing.
#[test]
#[ignore = "needs root: make test"]
fn a_database_in_a_compressed_directory_is_served_and_not_copied() {
    with_volumes("btrfs", |pair, volumes| {
        pair.stop_controller();
        let state = pair.site().top.join("state");
        run("chattr", &["+c", text(&state)]);
        let (database, copied) = (state.join("state.redb"), state.join("copied"));
        run("cp", &["--reflink=never", text(&database), text(&copied)]);
        fs::rename(&copied, &database).expect("rename");
        let inode = || fs::metadata(&database).expect("stat").ino();
        let before = inode();
        pair.restart_controller();
        assert_eq!(inode(), before);
        assert!(!state.join("state.redb.new").exists());
        for volume in volumes {
            let delete = orders::delete(volume);
            pair.site().controller().delete(delete).expect("delete");
        }
    });
}
