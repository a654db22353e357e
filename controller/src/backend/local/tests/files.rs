//! Backing files: which files are opened and with which flags, their sizes, and their attributes.

use super::{Bed, delete, order, snapshot_order};
use crate::backend::local::files::{Files, Use};
use belay_contract::drivers::local::{BYTES, Claim, NEW};
use belay_server::call::Kind;
use rustix::fs::{CWD, FileType, Mode, SeekFrom, XattrFlags};
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
            store.resize(volume.id.as_str(), 2 * MIB).unwrap_err(),
            delete(&store, volume.id.as_str()).unwrap_err(),
            store.cut(&snapshot_order("snap", &volume)).unwrap_err(),
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
        delete(&store, volume.id.as_str()).unwrap();
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
fn a_file_records_its_size_and_only_once_it_has_it() {
    let (_dir, files) = files();
    let file = files.begin("vol-1").unwrap();
    file.enlarge(MIB).unwrap();
    assert_eq!(file.recorded_bytes(), Ok(None));
    assert_eq!(files.recorded_bytes("vol-1"), Ok(0));
    for (bytes, recorded) in [(MIB, MIB), (2 * MIB, 2 * MIB), (MIB, 2 * MIB)] {
        file.grow(bytes).unwrap();
        assert_eq!(file.recorded_bytes(), Ok(Some(recorded)));
        assert_eq!(files.recorded_bytes("vol-1"), Ok(recorded));
    }
    assert_eq!(file.bytes(), Ok(2 * MIB));
    let mut value = [0; 16];
    let read = rustix::fs::lgetxattr(files.path_of("vol-1"), BYTES, &mut value);
    assert_eq!(&value[..read.unwrap()], b"2097152");
}

#[test]
fn a_file_is_new_until_its_attribute_says_that_its_use_begins_or_is_gone() {
    let (_dir, files) = files();
    let file = files.begin("vol-1").unwrap();
    assert_eq!(file.use_so_far(), Ok(Use::Used));
    file.mark_new().unwrap();
    let path = files.path_of("vol-1");
    let mut value = [0; 8];
    let read = rustix::fs::lgetxattr(&path, NEW, &mut value);
    assert_eq!(&value[..read.unwrap()], b"1");
    assert_eq!(file.use_so_far(), Ok(Use::New));
    let uuid: &[u8] = b"7b0b2f4c-60a3-4b6e-9b0c-3b8d8a9f3f5e";
    for (value, used) in [
        (uuid, Use::Formatting),
        (b"0", Use::Used),
        (b"", Use::Used),
        (b"unknown", Use::Used),
    ] {
        rustix::fs::lsetxattr(&path, NEW, value, XattrFlags::empty()).unwrap();
        assert_eq!(file.use_so_far(), Ok(used));
    }
    rustix::fs::lremovexattr(&path, NEW).unwrap();
    assert_eq!(file.use_so_far(), Ok(Use::Used));
}

#[test]
fn only_the_claim_that_a_file_has_is_ended() {
    let (_dir, files) = files();
    let file = files.begin("vol-1").unwrap();
    let [copy, other] = ["snap-1", "snap-2"].map(|id| Claim::Copy(id.to_owned()));
    let claims = [Claim::Delete, Claim::Deleting, copy];
    file.end_claim(&other).unwrap();
    for claim in claims {
        file.claim(&claim).unwrap();
        file.end_claim(&other).unwrap();
        assert_eq!(file.claimed(), Ok(Some(claim.clone())));
        file.end_claim(&claim).unwrap();
        assert_eq!(file.claimed(), Ok(None));
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
    // The truncation was detected before anything was written.
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
    backing.grow(2 * MIB).unwrap();
    let before = changed();
    // The kernel's clock for time stamps advances only every few milliseconds.
    while {
        fs::write(files.path_of("clock"), b"").unwrap();
        let clock = fs::metadata(files.path_of("clock")).unwrap();
        (clock.ctime(), clock.ctime_nsec()) == before
    } {}
    backing.grow(2 * MIB).unwrap();
    assert_eq!(changed(), before);
}
