//! Backing files: which files are opened and with which flags, their sizes, and their second names.

use super::{Bed, attach_order, order};
use crate::backend::local::files::Files;
use belay_contract::drivers::local::DETACH;
use belay_server::call::Kind;
use rustix::fs::{CWD, FileType, Mode, SeekFrom};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn files() -> (tempfile::TempDir, Files) {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path().join("files")).unwrap();
    (dir, files)
}

/// Creates an object with the name of a volume's file that is not a regular file.
fn foreign(kind: &str, path: &Path) {
    match kind {
        "directory" => fs::create_dir(path).unwrap(),
        "FIFO" => {
            rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        }
        "socket" => drop(UnixListener::bind(path).unwrap()),
        "link" => symlink("sibling", path).unwrap(),
        _ => unreachable!("{kind}"),
    }
}

#[test]
fn what_is_no_regular_file_is_neither_opened_nor_called_truncated() {
    for kind in ["directory", "FIFO", "socket", "link"] {
        let (_dir, files) = files();
        files.begin("sibling").unwrap().grow(MIB).unwrap();
        foreign(kind, &files.path_of("vol-1"));
        for found in [files.get("vol-1"), files.get_for_reading("vol-1")] {
            let failure = found.unwrap_err();
            assert_eq!(failure.kind, Kind::Precondition, "{kind}: {failure}");
            let is = "/files/vol-1: is not a regular file; move it away and restore the file";
            assert!(failure.message.ends_with(is), "{kind}: {failure}");
        }
    }
}

#[test]
fn no_call_changes_a_volume_whose_file_gave_way_to_another_kind() {
    for kind in ["directory", "FIFO", "socket", "link"] {
        let bed = Bed::new();
        let store = bed.open();
        drop(store.create(&order("sibling", MIB), None).unwrap());
        let volume = store.create(&order("pvc-1", MIB), None).unwrap();
        let (path, away) = (bed.file(volume.id.as_str()), bed.file("away"));
        fs::rename(&path, &away).unwrap();
        foreign(kind, &path);
        let failures = [
            store.attach(&attach_order(&volume, "node-1")).unwrap_err(),
            store.resize(volume.id.as_str(), 2 * MIB).unwrap_err(),
            store.delete(volume.id.as_str()).unwrap_err(),
        ];
        for failure in failures {
            assert_eq!(failure.kind, Kind::Precondition, "{kind}: {failure}");
            let is = "is not a regular file";
            assert!(failure.message.contains(is), "{kind}: {failure}");
        }
        assert!(fs::symlink_metadata(&path).is_ok());
        match kind {
            "directory" => fs::remove_dir(&path).unwrap(),
            _ => fs::remove_file(&path).unwrap(),
        }
        fs::rename(&away, &path).unwrap();
        store.attach(&attach_order(&volume, "node-1")).unwrap();
    }
}

/// Returns the flags of this process's descriptors of the file (proc(5)).
fn flags_of(path: &Path) -> Vec<u32> {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ours = descriptors.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == path));
    let flags = ours.map(|entry| {
        let info = Path::new("/proc/self/fdinfo").join(entry.file_name());
        let info = fs::read_to_string(info).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        u32::from_str_radix(flags.unwrap().trim(), 8).unwrap()
    });
    flags.collect()
}

#[test]
fn an_opened_file_passes_to_no_child_and_its_open_waits_for_no_lease() {
    let (dir, files) = files();
    drop(files.begin("vol-1").unwrap());
    let path = dir.path().canonicalize().unwrap().join("files/vol-1");
    for is_writer in [true, false] {
        let _open = match is_writer {
            true => files.get("vol-1").unwrap(),
            false => files.get_for_reading("vol-1").unwrap(),
        };
        let flags = flags_of(&path);
        assert_eq!(flags.len(), 1);
        for (flag, name) in [
            (libc::O_CLOEXEC, "O_CLOEXEC"),
            (libc::O_NONBLOCK, "O_NONBLOCK"),
        ] {
            assert_ne!(flags[0] & flag.unsigned_abs(), 0, "{name}");
        }
        let access = u32::from(is_writer) * libc::O_RDWR.unsigned_abs();
        assert_eq!(flags[0] & libc::O_ACCMODE.unsigned_abs(), access);
    }
}

#[test]
fn the_largest_file_is_the_last_offset_that_the_filesystem_accepts() {
    let (dir, files) = files();
    let any = File::create(dir.path().join("any")).unwrap();
    let largest = files.largest(&any);
    assert!(largest >= 1 << 40, "{largest}");
    assert_eq!(
        rustix::fs::seek(&any, SeekFrom::Start(largest)),
        Ok(largest)
    );
    if largest < i64::MAX.unsigned_abs() {
        let beyond = rustix::fs::seek(&any, SeekFrom::Start(largest + 1));
        assert_eq!(beyond, Err(Errno::INVAL));
    }
}

#[test]
fn a_file_records_its_size_but_when_it_is_made() {
    let (_dir, files) = files();
    let file = files.begin("vol-1").unwrap();
    let (one, two) = (MIB, 2 * MIB);
    for (bytes, recorded) in [(one, 0), (one, one), (two, two), (one, two)] {
        file.grow(bytes).unwrap();
        assert_eq!(file.grown_to(), Ok(recorded));
        assert_eq!(files.grown_to("vol-1"), Ok(recorded));
    }
    assert_eq!(file.bytes(), Ok(2 * MIB));
}

#[test]
fn a_file_may_be_written_while_a_process_has_it_open_for_writing() {
    let (_dir, files) = files();
    let writer = files.begin("vol-1").unwrap();
    let reader = files.get_for_reading("vol-1").unwrap();
    assert!(reader.may_be_written());
    drop(writer);
    assert!(!reader.may_be_written());
}

#[test]
fn a_pending_detach_stands_on_the_file_until_it_is_attached_again() {
    let (_dir, files) = files();
    let file = files.begin("vol-1").unwrap();
    let path = files.path_of("vol-1");
    let is_pending = || rustix::fs::lgetxattr(&path, DETACH, &mut [0; 8]).is_ok();
    file.leave_there().unwrap();
    assert!(!is_pending());
    file.want_back();
    assert!(is_pending());
    file.leave_there().unwrap();
    assert!(!is_pending());
}

#[test]
fn a_file_that_is_set_aside_keeps_its_content_under_a_name_of_its_own() {
    let (_dir, files) = files();
    assert_eq!(files.inode("vol-1"), Ok(None));
    let file = files.begin("vol-1").unwrap();
    assert_eq!(files.inode("vol-1").unwrap(), Some(file.inode().unwrap()));
    let aside = [1, 2].map(|_| files.set_aside("vol-1").unwrap());
    files.remove("vol-1").unwrap();
    assert_eq!(files.inode("vol-1"), Ok(None));
    assert_ne!(aside[0], aside[1]);
    for path in &aside {
        assert_eq!(fs::metadata(path).unwrap().nlink(), 2, "{}", path.display());
    }
}

fn shorten(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(MIB - 1).unwrap();
}

#[test]
fn a_copy_of_a_file_that_is_truncated_before_or_meanwhile_is_refused() {
    let (_dir, files) = files();
    let path = files.path_of("from");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    fs::write(files.path_of("to"), b"kept").unwrap();
    let (from, to) = (files.get("from").unwrap(), files.get("to").unwrap());
    let cut_meanwhile = || {
        shorten(&path);
        true
    };
    let refused = to.copy(&from, MIB, cut_meanwhile).unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition, "{refused}");
    fs::write(files.path_of("to"), b"kept").unwrap();
    let refused = to.copy(&from, MIB, || true).unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition, "{refused}");
    // The object was found before anything was written.
    assert_eq!(fs::read(files.path_of("to")).unwrap(), b"kept");
}

#[test]
fn a_query_of_the_lock_does_not_keep_it() {
    let (_dir, files) = files();
    let backing = files.begin("vol-1").unwrap();
    assert_eq!(backing.is_locked(), Ok(false));
    let other = File::open(files.path_of("vol-1")).unwrap();
    other.try_lock().unwrap();
    assert_eq!(backing.is_locked(), Ok(true));
}

/// A change of the time stamps would look like a change of the content while the file is copied.
#[test]
fn a_file_that_has_the_size_is_not_touched_by_growing_it() {
    let (_dir, files) = files();
    let backing = files.begin("vol-1").unwrap();
    let changed = || {
        let stat = fs::metadata(files.path_of("vol-1")).unwrap();
        (stat.ctime(), stat.ctime_nsec())
    };
    // The second enlargement records the size.
    backing.grow(MIB).unwrap();
    backing.grow(2 * MIB).unwrap();
    let before = changed();
    // The clock of time stamps ticks every few milliseconds.
    while {
        fs::write(files.path_of("clock"), b"").unwrap();
        let clock = fs::metadata(files.path_of("clock")).unwrap();
        (clock.ctime(), clock.ctime_nsec()) == before
    } {}
    backing.grow(2 * MIB).unwrap();
    assert_eq!(changed(), before);
}
