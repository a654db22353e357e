//! Deletions that are stopped at each step while another program, or another call, goes on.

use super::slow::{Step, during, repeated, slow_at_each};
use super::*;
use std::cell::Cell;
use std::os::unix::fs::symlink;
use std::rc::Rc;

/// An operator has to move something away.
fn unless_in_the_way(result: Result<(), Failure>) -> Result<(), Failure> {
    match result {
        Err(failure) if failure.kind == Kind::Precondition => Ok(()),
        result => result,
    }
}

/// Where the file of the volume is: in one place.
fn place_of(share: &Share, file: &str) -> PathBuf {
    let trash = share.path(".belay/trash");
    let in_trash = names(&trash)
        .into_iter()
        .map(|own| trash.join(own).join("volume"));
    let places = [share.path("ns/data"), share.path("archived-ns/data")];
    let has = |place: &PathBuf| place.join(file).exists();
    let found: Vec<_> = places.into_iter().chain(in_trash).filter(has).collect();
    assert_eq!(found.len(), 1, "{file}: {found:?}");
    found[0].clone()
}

#[test]
fn a_program_that_takes_the_name_of_an_archive_meanwhile_loses_nothing() {
    let order = NewVolume {
        on_delete: OnDelete::Archive,
        ..volume("ns/data", "pvc-1")
    };
    let deletion = old(&order, OnDelete::Archive);
    let foreign = |share: &Share| share.path("archived-ns/data/foreign");
    let steps = slow_at_each(
        |share| {
            share.create(&order).unwrap();
            share.write("ns/data/file");
        },
        |share| unless_in_the_way(share.delete(&deletion)),
        |share| {
            // Unless the archive is there.
            if !share.path("archived-ns/data").exists() {
                share.write("archived-ns/data/foreign");
            }
        },
        |share| {
            let was_taken = foreign(share).exists();
            place_of(share, "file");
            match repeated(share, &deletion) {
                Ok(()) => assert!(!was_taken),
                Err(failure) => {
                    assert!(was_taken, "{failure}");
                    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
                    assert_eq!(names(&share.path("archived-ns/data")), ["foreign"]);
                    // As the message says.
                    fs::rename(share.path("archived-ns"), share.path("kept")).unwrap();
                    repeated(share, &deletion).unwrap();
                }
            }
            assert_eq!(names(&share.path("archived-ns/data")), ["file"]);
            assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
        },
    );
    assert!(steps > 40, "{steps}");
}

/// Of csi-driver-nfs. Its directory is handed to a later volume of Belay.
#[test]
fn a_slow_deletion_of_a_volume_without_a_claim_removes_nothing_that_came_later() {
    let order = volume("ns/data", "pvc-1");
    let later = volume("ns/data", "pvc-2");
    for policy in [OnDelete::Delete, OnDelete::Archive, OnDelete::Retain] {
        let deletion = OldVolume {
            on_delete: Some(policy),
            ..old(&order, policy)
        };
        let steps = slow_at_each(
            |share| share.write("ns/data/file"),
            |share| share.delete(&deletion),
            |share| {
                repeated(share, &deletion).unwrap();
                if policy != OnDelete::Retain {
                    share.create(&later).unwrap();
                    share.write("ns/data/later");
                }
            },
            |share| {
                let left = match policy {
                    OnDelete::Retain => "file",
                    _ => "later",
                };
                assert_eq!(names(&share.path("ns/data")), [left], "{policy}");
                let has_archive = share.path("archived-ns/data/file").exists();
                assert_eq!(has_archive, policy == OnDelete::Archive);
                assert_eq!(
                    share.look(&later.at).is_some(),
                    policy != OnDelete::Retain,
                    "{policy}"
                );
            },
        );
        assert!(steps > 10, "{policy}: {steps}");
    }
}

/// Both say that it is done, and what has its name then is another program's.
#[test]
fn of_two_deletions_at_once_neither_removes_what_another_program_makes_then() {
    for policy in [OnDelete::Delete, OnDelete::Archive] {
        let order = NewVolume {
            on_delete: policy,
            ..volume("ns/data", "pvc-1")
        };
        let deletion = old(&order, policy);
        slow_at_each(
            |share| {
                share.create(&order).unwrap();
                share.write("ns/data/file");
            },
            |share| share.delete(&deletion),
            |share| {
                repeated(share, &deletion).unwrap();
                share.write("ns/data/restored");
            },
            |share| {
                assert_eq!(names(&share.path("ns/data")), ["restored"], "{policy}");
                repeated(share, &deletion).unwrap();
                assert_eq!(names(&share.path("ns/data")), ["restored"], "{policy}");
            },
        );
    }
}

/// It was retained, moved away, and a later volume has its directory.
#[test]
fn a_slow_retention_changes_nothing_of_a_later_volume() {
    let order = NewVolume {
        on_delete: OnDelete::Retain,
        ..volume("ns/data", "pvc-1")
    };
    let later = volume("ns/data", "pvc-2");
    let deletion = old(&order, OnDelete::Retain);
    slow_at_each(
        |share| {
            share.create(&order).unwrap();
            share.write("ns/data/file");
        },
        |share| share.delete(&deletion),
        |share| {
            repeated(share, &deletion).unwrap();
            fs::rename(share.path("ns"), share.path("kept")).unwrap();
            share.create(&later).unwrap();
            share.write("ns/data/later");
        },
        |share| {
            assert_eq!(names(&share.path("ns/data")), ["later"]);
            assert_eq!(names(&share.path("kept/data")), ["file"]);
            assert_eq!(claim_of(share, "ns/data").extension().unwrap(), "ready");
            assert!(share.look(&later.at).is_some());
        },
    );
}

/// The directory of the volume, wherever it is.
fn volume_of(share: &Share) -> Option<PathBuf> {
    let trash = share.path(".belay/trash");
    let moved = names(&trash).into_iter().flat_map(|own| {
        let own = trash.join(own);
        names(&own).into_iter().map(move |name| own.join(name))
    });
    let mut places = moved.chain([share.path("ns/data")]);
    places.find(|place| place.join("mark").exists() || place.join("last").exists())
}

/// A tenant has it mounted, and puts something else in the place of what was listed.
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

/// Creates a file in the directory, so often, when it is about to be removed.
fn refilled(share: &Share, times: usize) -> impl FnMut(Step) + use<> {
    let trash = share.path(".belay/trash");
    let mut made = 0;
    move |step| {
        let moved = names(&trash).into_iter().flat_map(|own| {
            let own = trash.join(own);
            names(&own).into_iter().map(move |name| own.join(name))
        });
        for volume in moved.collect::<Vec<_>>() {
            if step == Step::Change && made < times && names(&volume).is_empty() {
                fs::write(volume.join("new"), "").unwrap();
                made += 1;
            }
        }
    }
}

#[test]
fn a_directory_that_a_tenant_fills_meanwhile_is_emptied_again_some_times() {
    let order = volume("ns/data", "pvc-1");
    let deletion = old(&order, OnDelete::Delete);
    for (times, is_removed) in [(5, true), (usize::MAX, false)] {
        let share = Share::new();
        share.create(&order).unwrap();
        share.write("ns/data/file");
        let result = during(refilled(&share, times), || share.delete(&deletion));
        match is_removed {
            true => result.unwrap(),
            false => refused(result, Kind::Busy, "files are still created in it"),
        }
        share.delete(&deletion).unwrap();
        share.assert_clean();
    }
}

/// Neither descriptors nor paths grow with the depth.
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
