//! A full btrfs below the state directory. On btrfs, an overwrite takes new blocks unless the file
//! is NOCOW, and reserved blocks serve only the first one.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use crate::rig::{Disk, Pair, TestDir, orders, run, text};

const DISK_BYTES: u64 = 512 << 20;
/// Without NOCOW, the first one fails.
const ROUNDS: usize = 20;

/// Returns when nothing can be written.
fn fill(directory: &Path) {
    for name in ["filling", "and the rest"] {
        let mut file = File::create_new(directory.join(name)).expect("create");
        let block = vec![1; if name == "filling" { 1 << 20 } else { 4096 }];
        while file
            .write_all(&block)
            .and_then(|()| file.sync_data())
            .is_ok()
        {}
    }
}

/// Volumes are attached, detached, listed and deleted, before and after a restart.
fn expect_changes(pair: &mut Pair, volumes: &[String]) {
    fill(&pair.site().top.join("state"));
    for volume in volumes {
        let controller = pair.site().controller();
        for _ in 0..ROUNDS {
            let attach = orders::attach(volume, "block");
            controller.attach(attach).expect("attach");
            controller.detach(orders::detach(volume)).expect("detach");
        }
        controller.delete(orders::delete(volume)).expect("delete");
        pair.restart_controller();
        pair.ledger();
    }
}

fn with_volumes(act: impl FnOnce(&mut Pair, &[String])) {
    let test_dir = TestDir::new();
    let disk = Disk::of(&test_dir, "btrfs", "state", DISK_BYTES);
    let mut pair = Pair::on(test_dir, disk);
    let controller = pair.site().controller();
    let volumes = ["one", "two"].map(|name| {
        let create = orders::create(name, "block");
        let created = controller.create(create).expect("create");
        created.volume.expect("a volume").volume_id
    });
    act(&mut pair, &volumes);
    let state = pair.site().top.join("state");
    for name in ["filling", "and the rest"] {
        fs::remove_file(state.join(name)).expect("unlink");
    }
    pair.end();
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_are_changed_and_deleted_on_a_full_btrfs() {
    with_volumes(expect_changes);
}

#[test]
#[ignore = "needs root: make test"]
fn a_database_of_an_earlier_release_is_changed_on_a_full_btrfs() {
    with_volumes(|pair, volumes| {
        pair.stop_controller();
        let database = pair.site().top.join("state/state.redb");
        let copied = database.with_extension("copied");
        // The copy has no attributes.
        run("cp", &["--reflink=never", text(&database), text(&copied)]);
        fs::rename(&copied, &database).expect("rename");
        pair.restart_controller();
        expect_changes(pair, volumes);
    });
}
