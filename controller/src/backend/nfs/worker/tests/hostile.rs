//! Tests links, files and renames in the path of a volume: no file outside of the volume may be
//! changed.

use super::*;
use std::cell::Cell;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_link_in_a_path_is_not_followed() {
    for link in ["a", "a/b"] {
        for to in ["outside", "share/other", "share", "outside/precious"] {
            let share = Share::new();
            share.write("other/file");
            let path = share.path(link);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(share.dir.path().join(to), &path).unwrap();
            for dir in [link.to_owned(), format!("{link}/c"), format!("{link}/c/d")] {
                let order = volume(&dir, "pvc-1");
                for named_so in [false, true] {
                    let order = NewVolume {
                        is_named_so: named_so,
                        ..order.clone()
                    };
                    share.create(&order).unwrap_err();
                }
                for policy in [OnDelete::Delete, OnDelete::Archive] {
                    share.delete(&old(&order, policy)).unwrap_err();
                }
                share.delete(&old(&order, OnDelete::Retain)).unwrap();
            }
            assert_eq!(names(&share.path("other")), ["file"]);
            assert!(path.is_symlink());
            share.assert_outside();
        }
    }
}

#[test]
fn a_link_in_the_place_of_belays_own_directories_is_not_followed() {
    for own in [".belay", ".belay/claims", ".belay/trash"] {
        let share = Share::new();
        let path = share.path(own);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(share.outside(), &path).unwrap();
        share.write("data/file");
        let order = adopting(volume("data", "pvc-1"));
        let deleted = share.delete(&old(&order, OnDelete::Delete));
        refused(deleted, Kind::Precondition, own);
        if own != ".belay/trash" {
            refused(share.create(&plain("x")), Kind::Precondition, own);
        }
        assert_eq!(names(&share.path("data")), ["file"]);
        share.assert_outside();
    }
}

/// If other users can write in Belay's directory, they can forge records.
#[test]
fn a_directory_of_belays_own_that_others_can_write_in_is_not_trusted() {
    for own in [".belay", ".belay/claims", ".belay/tmp", ".belay/trash"] {
        let share = Share::new();
        let order = plain("pvc-1");
        share.create(&order).unwrap();
        share.write("pvc-1/file");
        fs::create_dir_all(share.path(own)).unwrap();
        fs::set_permissions(share.path(own), fs::Permissions::from_mode(0o770)).unwrap();
        let words = format!("directory {own} in the share: has mode 0770");
        let created = share.create(&plain("pvc-2"));
        let deleted = share.delete(&old(&order, OnDelete::Delete));
        match own {
            ".belay/trash" => {
                refused(deleted, Kind::Precondition, &words);
                created.unwrap();
            }
            ".belay/tmp" => refused(created, Kind::Precondition, &words),
            _ => {
                refused(created, Kind::Precondition, &words);
                refused(deleted, Kind::Precondition, &words);
                let looked = share.perform(&Work::Lookup(order.at.clone()));
                refused(looked, Kind::Precondition, &words);
            }
        }
        if own != ".belay/tmp" {
            assert_eq!(names(&share.path("pvc-1")), ["file"]);
        }
        fs::set_permissions(share.path(own), fs::Permissions::from_mode(0o700)).unwrap();
        share.delete(&old(&order, OnDelete::Delete)).unwrap();
    }
}

#[test]
fn what_is_no_directory_is_not_deleted() {
    for policy in [OnDelete::Delete, OnDelete::Archive] {
        let share = Share::new();
        share.write("data");
        let deleted = share.delete(&old(&volume("data", "pvc-1"), policy));
        refused(deleted, Kind::Precondition, "is no directory on the server");
        assert_eq!(names(&share.path("")), ["data"]);
    }
}

/// Only a call of another program can contain paths that [`Dir`] refuses.
#[test]
fn a_path_that_leads_out_of_the_share_fails_in_the_kernel_too() {
    let share = Share::new();
    let outside = share.outside();
    let outside = outside.to_str().unwrap();
    for hostile in [
        "../outside",
        "a/../../outside",
        "..",
        outside,
        "/etc",
        "../outside/precious",
    ] {
        let at = Owned {
            dir: Dir::unchecked(hostile),
            name: "pvc-1".to_owned(),
            adopts: true,
        };
        let order = NewVolume {
            at,
            is_named_so: true,
            ..plain("x")
        };
        fs::create_dir_all(share.path("a")).unwrap();
        share.create(&order).ok();
        for policy in [OnDelete::Archive, OnDelete::Delete] {
            share.delete(&old(&order, policy)).ok();
        }
        share.assert_outside();
        assert!(share.path("a").is_dir());
    }
}

/// A tenant that has the volume mounted replaces directories by links while the volume is removed.
#[test]
fn renames_during_a_deletion_lead_nowhere_else() {
    let share = Share::new();
    let order = plain("pvc-1");
    for _ in 0..30 {
        share.create(&order).unwrap();
        for n in 0..20 {
            share.write(&format!("pvc-1/{n}/{n}/file"));
        }
        // The tenant has the directory itself mounted, so the mount remains usable after the
        // directory is moved.
        let mount: std::os::fd::OwnedFd = fs::File::open(share.path("pvc-1")).unwrap().into();
        let (outside, stop) = (share.outside(), AtomicBool::new(false));
        let failed = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Ignore errors: the tenant's system calls fail once the name is removed.
                while !stop.load(Ordering::Relaxed) {
                    for n in 0..20 {
                        let (name, away) = (n.to_string(), format!("away-{n}"));
                        rustix::fs::renameat(&mount, &name, &mount, &away).ok();
                        rustix::fs::symlinkat(&outside, &mount, &name).ok();
                        let below = format!("{away}/{n}");
                        rustix::fs::renameat(&mount, &below, &mount, format!("up-{n}")).ok();
                    }
                }
            });
            // If this thread panicked, the test would wait forever for the second thread.
            let failed = loop {
                match share.delete(&old(&order, OnDelete::Delete)) {
                    Ok(()) => break None,
                    Err(failure) if failure.kind == Kind::Busy => {}
                    Err(failure) => break Some(failure),
                }
            };
            stop.store(true, Ordering::Relaxed);
            failed
        });
        assert!(failed.is_none(), "{failed:?}");
        assert_eq!(names(&share.path("")), [".belay"]);
        share.assert_clean();
    }
}

/// The parent directory belongs to a tenant, who replaces the volume's directory by a link.
#[test]
fn a_volume_that_is_exchanged_for_a_link_is_not_followed() {
    let share = Share::new();
    let order = volume("ns/data", "pvc-1");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (data, away) = (share.path("ns/data"), share.path("ns/away"));
            while !stop.load(Ordering::Relaxed) {
                // Ignore errors: the worker may have removed the file first.
                fs::rename(&data, &away).ok();
                symlink(share.outside(), &data).ok();
                fs::remove_file(&data).ok();
                fs::rename(&away, &data).ok();
            }
        });
        for _ in 0..300 {
            fs::create_dir_all(share.path("ns")).ok();
            share.create(&order).ok();
            share.delete(&old(&order, OnDelete::Delete)).ok();
        }
        stop.store(true, Ordering::Relaxed);
    });
    share.assert_outside();
}

thread_local! {
    /// Number of names in memory: the current and the largest number.
    static NAMES: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// A count of the names that a deletion has in memory.
pub(in super::super) struct Held(usize);

impl Held {
    pub(in super::super) fn names(count: usize) -> Self {
        let (now, most) = NAMES.get();
        NAMES.set((now + count, most.max(now + count)));
        Self(count)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (now, most) = NAMES.get();
        NAMES.set((now - self.0, most));
    }
}

/// In each directory, the first subdirectory is entered before any file is removed.
#[test]
fn deep_directories_with_many_files_are_removed_with_few_names_in_memory() {
    let share = Share::new();
    let order = volume("data", "pvc-1");
    share.create(&order).unwrap();
    let mut path = "data".to_owned();
    for _ in 0..12 {
        path.push_str("/0");
        for n in 0..400 {
            share.write(&format!("{path}/{n:03}"));
        }
    }
    share.delete(&old(&order, OnDelete::Delete)).unwrap();
    assert!(!share.path("data").exists());
    assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
    let (now, most) = NAMES.get();
    assert_eq!(now, 0);
    // The volume has 4800 names.
    assert!((64..2000).contains(&most), "{most}");
}
