//! Tests the removal of a directory in the trash while a tenant changes files in it.

use super::slow::{Step, during, repeated, slow_at_each};
use super::*;
use std::cell::Cell;
use std::os::unix::fs::symlink;
use std::rc::Rc;

/// Returns the current path of the volume's directory, in the share or in the trash.
fn volume_of(share: &Share) -> Option<PathBuf> {
    let places = moved(&share.path(".belay/trash")).into_iter();
    let mut places = places.chain([share.path("ns/data")]);
    places.find(|place| place.join("mark").exists() || place.join("last").exists())
}

/// A tenant has the volume mounted, and replaces files after they were listed.
#[test]
fn what_a_tenant_exchanges_meanwhile_is_removed_as_what_it_is() {
    let order = volume("ns/data", "pvc-1");
    let exchanged = Cell::new(0);
    slow_at_each(
        |share| {
            share.create(&order).unwrap();
            for name in ["mark", "file", "directory/file", "empty/", "last"] {
                match name.strip_suffix('/') {
                    None => share.write(&format!("ns/data/{name}")),
                    Some(name) => fs::create_dir(share.path("ns/data").join(name)).unwrap(),
                }
            }
        },
        |share| share.delete(&old(&order, OnDelete::Delete)),
        |share| {
            let Some(volume) = volume_of(share) else {
                return;
            };
            let (file, directory) = (volume.join("file"), volume.join("directory"));
            if fs::remove_file(&file).is_ok() {
                fs::create_dir_all(file.join("below")).unwrap();
                fs::write(file.join("below/file"), "").unwrap();
                exchanged.set(exchanged.get() + 1);
            }
            if fs::rename(&directory, volume.join("moved")).is_ok() {
                symlink(share.outside(), &directory).unwrap();
            }
            if fs::remove_dir(volume.join("empty")).is_ok() {
                symlink(share.outside().join("precious"), volume.join("empty")).unwrap();
            }
        },
        |share| {
            repeated(share, &old(&order, OnDelete::Delete)).unwrap();
            assert_eq!(names(&share.path("")), [".belay"]);
            share.assert_clean();
        },
    );
    assert!(exchanged.get() > 10, "{}", exchanged.get());
}

/// Returns the files and directories that were moved to the trash.
pub(super) fn moved(trash: &Path) -> Vec<PathBuf> {
    let own = names(trash).into_iter().map(|own| trash.join(own));
    let all = own.flat_map(|own| names(&own).into_iter().map(move |name| own.join(name)));
    all.collect()
}

/// Creates this number of files, each in an empty directory that the worker is about to remove.
fn refilled(times: usize, all: impl Fn() -> Vec<PathBuf>) -> impl FnMut(Step) {
    let mut made = 0;
    move |step| {
        for directory in all() {
            if step == Step::Change && made < times && names(&directory).is_empty() {
                fs::write(directory.join("new"), "").unwrap();
                made += 1;
            }
        }
    }
}

#[test]
fn a_directory_that_a_tenant_fills_meanwhile_is_emptied_again_some_times() {
    let order = volume("ns/data", "pvc-1");
    let deletion = old(&order, OnDelete::Delete);
    for (times, is_removed) in [(15, true), (16, false)] {
        let share = Share::new();
        share.create(&order).unwrap();
        share.write("ns/data/file");
        let trash = share.path(".belay/trash");
        let refilled = refilled(times, move || moved(&trash));
        let result = during(refilled, || share.delete(&deletion));
        match is_removed {
            true => result.unwrap(),
            false => refused(result, Kind::Busy, "files are still created in it"),
        }
        share.delete(&deletion).unwrap();
        share.assert_clean();
    }
}

/// Slower calls of the same deletion move further directories to the trash.
#[test]
fn trash_that_is_filled_meanwhile_is_emptied_again_some_times() {
    let order = volume("ns/data", "pvc-1");
    let deletion = old(&order, OnDelete::Delete);
    for (times, is_removed) in [(7, true), (8, false)] {
        let share = Share::new();
        share.create(&order).unwrap();
        let trash = share.path(".belay/trash");
        // Files appear in the trash only after the volume was moved to the trash.
        let volume = share.path("ns/data");
        let own = move || match volume.exists() {
            true => Vec::new(),
            false => names(&trash)
                .into_iter()
                .map(|own| trash.join(own))
                .collect(),
        };
        let result = during(refilled(times, own), || share.delete(&deletion));
        match is_removed {
            true => result.unwrap(),
            false => refused(result, Kind::Busy, "another call changes its volume"),
        }
        share.delete(&deletion).unwrap();
        share.assert_clean();
    }
}

/// Neither the number of descriptors nor the length of paths grows with the depth.
#[test]
fn what_is_deep_is_moved_up() {
    let share = Share::new();
    let order = volume("data", "pvc-1");
    share.create(&order).unwrap();
    share.write(&format!("data{}/file", "/d".repeat(100)));
    let trash = share.path(".belay/trash");
    let moved = Rc::new(Cell::new(0));
    let look = {
        let moved = moved.clone();
        move |_| {
            for own in names(&trash) {
                moved.set(moved.get().max(names(&trash.join(own)).len()));
            }
        }
    };
    during(look, || share.delete(&old(&order, OnDelete::Delete))).unwrap();
    assert_eq!(moved.get(), 2);
    share.assert_clean();
}

/// A tenant has moved the directory that the worker is about to move to the top of the trash.
#[test]
fn what_a_tenant_moves_from_the_depth_is_removed_where_it_is() {
    let order = volume("ns/data", "pvc-1");
    let renamed = Cell::new(0);
    slow_at_each(
        |share| {
            share.create(&order).unwrap();
            share.write(&format!("ns/data{}/file", "/d".repeat(36)));
        },
        |share| {
            share.delete(&old(&order, OnDelete::Delete)).unwrap();
            Ok(())
        },
        |share| {
            for volume in moved(&share.path(".belay/trash")) {
                let deep = volume.join("d/".repeat(32));
                let is_renamed = fs::rename(deep, volume.join("renamed")).is_ok();
                renamed.set(renamed.get() + usize::from(is_renamed));
            }
        },
        Share::assert_clean,
    );
    assert!(renamed.get() > 32, "{renamed:?}");
}
