//! Tests the effects of the calls.

use super::*;
use std::os::unix::fs::{PermissionsExt as _, symlink};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_volume_is_created_found_and_deleted() {
    let share = Share::new();
    let order = plain("pvc-1");
    assert_eq!(share.lookup(&order.at), None);
    let seen = ExistingVolume {
        bytes: 7,
        is_deleting: false,
        source: None,
    };
    assert_eq!(share.create(&order).unwrap(), seen);
    assert_eq!(share.lookup(&order.at), Some(seen.clone()));
    assert_eq!(mode(&share.path(".belay")), 0o700);
    assert_eq!(names(&share.path(".belay/claims")).len(), 1);
    let larger = NewVolume {
        bytes: 9,
        ..order.clone()
    };
    assert_eq!(
        share.create(&larger).unwrap(),
        seen,
        "the recorded size is the answer"
    );
    share.write("pvc-1/file");
    share.delete(&old(&order, OnDelete::Delete)).unwrap();
    assert_eq!(share.lookup(&order.at), None);
    assert_eq!(names(&share.path("")), [".belay"]);
    share.assert_clean();
    share.delete(&old(&order, OnDelete::Delete)).unwrap();
}

#[test]
fn the_directory_has_the_mode_that_was_asked_for() {
    let share = Share::new();
    for (name, permissions) in [("a", 0o777), ("b", 0o1777), ("c", 0o2750)] {
        let order = NewVolume {
            permissions: Some(permissions),
            ..plain(name)
        };
        share.create(&order).unwrap();
        assert_eq!(mode(&share.path(name)), permissions);
    }
}

#[test]
fn the_recorded_policy_decides_and_not_the_default_of_today() {
    let share = Share::new();
    for (name, recorded) in [
        ("delete", OnDelete::Delete),
        ("retain", OnDelete::Retain),
        ("archive", OnDelete::Archive),
    ] {
        let order = NewVolume {
            on_delete: recorded,
            ..plain(name)
        };
        share.create(&order).unwrap();
        share.write(&format!("{name}/file"));
        let other = match recorded {
            OnDelete::Delete => OnDelete::Retain,
            _ => OnDelete::Delete,
        };
        // The second call finds the volume deleted.
        for _ in 0..2 {
            share.delete(&old(&order, other)).unwrap();
        }
    }
    assert_eq!(
        names(&share.path("")),
        [".belay", "archived-archive", "retain"]
    );
    assert_eq!(names(&share.path("retain")), ["file"]);
    assert_eq!(names(&share.path(".belay/claims")).len(), 2);
    assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
}

/// Other processes may write to the filesystem of the share, so the test compares the free space
/// several times.
#[test]
fn the_room_is_that_of_the_shares_filesystem_and_nothing_is_written() {
    let share = Share::new();
    let is_measured = |_| match share.perform(&Work::Measure) {
        Ok(Done::Measured(bytes)) => {
            let found = rustix::fs::statvfs(share.path("")).unwrap();
            bytes > 0 && bytes == found.f_bavail * found.f_frsize
        }
        other => panic!("{other:?}"),
    };
    assert!((0..1000).any(is_measured));
    assert_eq!(names(&share.path("")), [""; 0]);
}

#[test]
fn a_volume_has_the_space_of_its_directory_and_a_missing_volume_has_none() {
    let share = Share::new();
    let order = plain("pvc-1");
    let inspected = || match share.perform(&Work::Inspect(order.at.clone())) {
        Ok(Done::Inspected(free)) => free,
        other => panic!("{other:?}"),
    };
    assert_eq!(inspected(), None);
    share.create(&order).unwrap();
    let free = inspected().unwrap();
    assert!(free.bytes > 0 && free.files != Some(0), "{free:?}");
    fs::remove_dir(share.path("pvc-1")).unwrap();
    assert_eq!(inspected(), None);
}

#[test]
fn neither_the_id_nor_the_claim_allows_more_than_the_other() {
    let (delete, archive, retain) = (OnDelete::Delete, OnDelete::Archive, OnDelete::Retain);
    for (recorded, says, left) in [
        (delete, delete, None),
        (delete, archive, Some("archived-pvc-1")),
        (delete, retain, Some("pvc-1")),
        (archive, delete, Some("archived-pvc-1")),
        (archive, retain, Some("pvc-1")),
        (retain, delete, Some("pvc-1")),
        (retain, archive, Some("pvc-1")),
    ] {
        let share = Share::new();
        let order = NewVolume {
            on_delete: recorded,
            ..plain("pvc-1")
        };
        share.create(&order).unwrap();
        share.write("pvc-1/file");
        let deletion = OldVolume {
            on_delete: Some(says),
            ..old(&order, delete)
        };
        share.delete(&deletion).unwrap();
        let mut found = names(&share.path(""));
        found.retain(|name| name != ".belay");
        assert_eq!(found, Vec::from_iter(left), "{recorded} {says}");
        if let Some(left) = left {
            assert_eq!(names(&share.path(left)), ["file"], "{recorded} {says}");
        }
    }
}

#[test]
fn a_volume_of_csi_driver_nfs_is_deleted_by_the_policy_of_its_id() {
    let share = Share::new();
    for (name, policy) in [
        ("ns/a", OnDelete::Delete),
        ("ns/b", OnDelete::Retain),
        ("ns/c", OnDelete::Archive),
    ] {
        let order = adopting(volume(name, "pvc-1"));
        share.write(&format!("{name}/file"));
        let seen = share.lookup(&order.at).unwrap();
        assert_eq!((seen.bytes, seen.is_deleting), (0, false));
        share.delete(&old(&order, policy)).unwrap();
    }
    assert_eq!(names(&share.path("ns")), ["b"]);
    assert_eq!(names(&share.path("archived-ns")), ["c"]);
}

#[test]
fn empty_directories_above_a_deleted_volume_are_removed_and_others_are_not() {
    let share = Share::new();
    let (one, two) = (volume("a/b/c/d", "pvc-1"), volume("a/b/x", "pvc-2"));
    share.create(&one).unwrap();
    share.create(&two).unwrap();
    share.delete(&old(&one, OnDelete::Delete)).unwrap();
    assert_eq!(names(&share.path("a/b")), ["x"]);
    share.delete(&old(&two, OnDelete::Delete)).unwrap();
    assert_eq!(names(&share.path("")), [".belay"]);
    share.assert_clean();
}

/// The older archive belongs to a volume of Belay, or to another program.
#[test]
fn an_archive_replaces_no_older_one() {
    for is_claimed in [true, false] {
        let share = Share::new();
        if is_claimed {
            let (earlier, deletion) = archived("pvc-0");
            share.create(&earlier).unwrap();
            share.write("ns/data/old");
            share.delete(&deletion).unwrap();
        } else {
            share.write("archived-ns/data/old");
        }
        let (order, deletion) = archived("pvc-1");
        share.create(&order).unwrap();
        share.write("ns/data/new");
        let words = match is_claimed {
            true => "is the archive of volume \"pvc-0\", so no archive goes there",
            false => "cannot become archived-ns/data, which exists",
        };
        refused(share.delete(&deletion), Kind::Precondition, words);
        assert_eq!(names(&share.path("archived-ns/data")), ["old"]);
        assert_eq!(names(&share.path("ns/data")), ["new"]);
        assert_eq!(claim_of(&share, "ns/data").extension().unwrap(), "ready");
        // The operator moves the older archive away.
        fs::rename(share.path("archived-ns"), share.path("kept")).unwrap();
        share.delete(&deletion).unwrap();
        assert_eq!(names(&share.path("archived-ns/data")), ["new"]);
        assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
    }
}

#[test]
fn no_archive_goes_into_another_volume() {
    let share = Share::new();
    share.create(&volume("archived-ns", "pvc-2")).unwrap();
    let order = adopting(volume("ns/data", "pvc-1"));
    share.write("ns/data/file");
    let deletion = old(&order, OnDelete::Archive);
    refused(
        share.delete(&deletion),
        Kind::Precondition,
        "volume \"pvc-2\"",
    );
    assert_eq!(names(&share.path("archived-ns")), [""; 0]);
    assert_eq!(names(&share.path("ns/data")), ["file"]);
}

#[test]
fn a_deletion_without_time_stops_and_the_next_one_continues() {
    let share = Share::new();
    let order = plain("pvc-1");
    share.create(&order).unwrap();
    for n in 0..50 {
        share.write(&format!("pvc-1/{n}/file"));
    }
    let work = Work::Delete(old(&order, OnDelete::Delete));
    let stopped = share.perform_until(&work, Instant::now());
    refused(stopped, Kind::Busy, "still being removed");
    assert!(!share.path("pvc-1").exists());
    assert!(share.lookup(&order.at).unwrap().is_deleting);
    let create = Work::Create(order.clone());
    let created = share.perform_until(&create, Instant::now());
    refused(created, Kind::Busy, "still being removed");
    // For example, an operator has restored a backup since the deletion.
    share.write("pvc-1/restored");
    share.delete(&old(&order, OnDelete::Delete)).unwrap();
    assert_eq!(names(&share.path("pvc-1")), ["restored"]);
    share.assert_clean();
}

#[test]
fn any_file_is_removed_and_no_link_is_followed() {
    let share = Share::new();
    let order = plain("pvc-1");
    share.create(&order).unwrap();
    for name in ["file", "with space", "\u{e9}", "-rf", "*"] {
        share.write(&format!("pvc-1/{name}"));
    }
    symlink(share.outside(), share.path("pvc-1/link")).unwrap();
    symlink("..", share.path("pvc-1/up")).unwrap();
    symlink("nowhere", share.path("pvc-1/broken")).unwrap();
    fs::hard_link(share.outside().join("precious"), share.path("pvc-1/hard")).unwrap();
    let fifo = share.path("pvc-1/fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff\n");
    fs::write(share.path("pvc-1").join(odd), "").unwrap();
    // Create more names than are kept in memory at once.
    for n in 0..5000 {
        fs::File::create(share.path(&format!("pvc-1/{n}"))).unwrap();
    }
    share.delete(&old(&order, OnDelete::Delete)).unwrap();
    share.assert_clean();
}

#[test]
fn a_ready_volume_without_its_directory_is_not_created_again() {
    let share = Share::new();
    let order = plain("pvc-1");
    share.create(&order).unwrap();
    fs::remove_dir(share.path("pvc-1")).unwrap();
    assert_eq!(share.lookup(&order.at), None);
    refused(
        share.create(&order),
        Kind::Precondition,
        "is missing in the share",
    );
    share.delete(&old(&order, OnDelete::Delete)).unwrap();
    share.create(&order).unwrap();
}
