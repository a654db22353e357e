//! Tests snapshots and restores whose worker is killed before each change, that are slow or
//! refused, or that use archives of csi-driver-nfs.

use super::super::super::call::{
    Archived, NewSnapshot, Restoring, SnapshotSeen, Source, snapshot_of,
};
use super::super::tar::Entry;
use super::killed::{fail, killed_at_each, was_left};
use super::slow::slow_at_each;
use super::*;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::process::Command;

pub(super) const VOLUME: &str = "filer#share#from#pvc-1#";
const ID: &str = "filer#share#cut#cut#pvc-1";

pub(super) fn archived() -> Archived {
    Archived {
        dir: Dir::single("cut"),
        source: "pvc-1".to_owned(),
        id: ID.to_owned(),
    }
}

/// Returns the call that creates a snapshot of the volume `from`.
pub(super) fn cutting() -> NewSnapshot {
    NewSnapshot {
        at: archived(),
        from: Source {
            at: adopting(volume("from", "pvc-1")).at,
            id: VOLUME.to_owned(),
            share: None,
        },
    }
}

pub(super) fn restoring(volume: NewVolume) -> Restoring {
    Restoring {
        volume,
        from: archived(),
        share: None,
    }
}

pub(super) fn restored() -> Restoring {
    restoring(volume("ns/copy", "pvc-2"))
}

/// Returns an entry that the test can restore as a user other than root, since only root can change
/// the owner of a file.
pub(super) fn of_this_user() -> Entry {
    Entry {
        user: rustix::process::geteuid().as_raw(),
        group: rustix::process::getegid().as_raw(),
        ..Entry::default()
    }
}

impl Share {
    pub(super) fn cut(&self, order: &NewSnapshot) -> Result<SnapshotSeen, Failure> {
        match self.perform(&Work::Cut(order.clone()))? {
            Done::Snapshot(Some(seen)) => Ok(seen),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn restore(&self, order: &Restoring) -> Result<ExistingVolume, Failure> {
        match self.perform(&Work::Restore(order.clone()))? {
            Done::Volume(Some(seen)) => Ok(seen),
            other => panic!("{other:?}"),
        }
    }

    fn discard(&self) -> Result<Option<String>, Failure> {
        match self.perform(&Work::Discard(archived()))? {
            Done::Deleted(why) => Ok(why),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn find(&self) -> Option<SnapshotSeen> {
        match self.perform(&Work::Find(archived())).unwrap() {
            Done::Snapshot(seen) => seen,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn archive(&self) -> PathBuf {
        self.path("cut/pvc-1.tar.gz")
    }

    /// Unpacks the archive with GNU tar. Returns the directory of the files.
    fn unpacked(&self, name: &str) -> PathBuf {
        let to = self.dir.path().join(name);
        fs::create_dir_all(&to).unwrap();
        let mut tar = Command::new("tar");
        tar.args(["-xzf", "-", "-C"]).arg(&to);
        tar.stdin(fs::File::open(self.archive()).unwrap());
        let output = tar.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        to
    }

    pub(super) fn assert_no_temporary(&self) {
        assert_eq!(names(&self.path(".belay/snapshots")), [""; 0]);
        self.assert_outside();
    }
}

/// Kills the creation of a snapshot before each of its changes.
fn cut_killed_at_each(after: impl Fn(&Share, bool)) -> usize {
    let cut = |share: &Share| share.cut(&cutting()).map(drop);
    killed_at_each(Share::make_source, cut, after)
}

#[test]
fn a_snapshot_that_was_killed_is_made_by_the_next_call_and_not_again_by_a_later_one() {
    let killed = cut_killed_at_each(|share, is_done| {
        let found = share.find();
        assert!(found.is_some() || !is_done);
        if found.is_some() {
            let unpacked = share.unpacked("unpacked");
            assert_eq!(names(&unpacked), ["a", "file", "link", "other"]);
        }
        let first = share.cut(&cutting()).unwrap();
        let file = fs::metadata(share.archive()).unwrap();
        assert_eq!(
            (first.bytes, found.unwrap_or(first.clone())),
            (file.len(), first.clone())
        );
        assert_eq!(first.volume.as_deref(), Some(VOLUME));
        share.write("from/later");
        assert_eq!(share.cut(&cutting()).unwrap(), first);
        assert_eq!(fs::metadata(share.archive()).unwrap().ino(), file.ino());
        share.restore(&restored()).unwrap();
        fs::remove_file(share.path("from/later")).unwrap();
        share.assert_copied();
        assert_eq!(share.discard().unwrap(), None);
        share.assert_no_temporary();
        assert_eq!(share.discard().unwrap(), None);
        assert_eq!(names(&share.path("")), [".belay", "from", "ns"]);
    });
    assert!(killed > 8, "{killed}");
}

#[test]
fn a_restore_that_was_killed_is_made_by_the_next_call() {
    let killed = killed_at_each(
        |share| {
            share.make_source();
            share.cut(&cutting()).unwrap();
        },
        |share| share.restore(&restored()).map(drop),
        |share, is_done| {
            let found = share.lookup(&restored().volume.at);
            assert!(found.is_some() || !is_done);
            for _ in 0..2 {
                let seen = share.restore(&restored()).unwrap();
                let source = seen.source.as_deref().and_then(snapshot_of);
                assert_eq!((seen.bytes, source), (7, Some(ID)));
            }
            share.assert_copied();
            let volume = old(&restored().volume, OnDelete::Delete);
            share.delete(&volume).unwrap();
            assert_eq!(names(&share.path("")), [".belay", "cut", "from"]);
            assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
        },
    );
    assert!(killed > 40, "{killed}");
}

#[test]
fn a_deletion_of_a_snapshot_that_was_killed_is_completed_by_the_next_one() {
    let killed = killed_at_each(
        |share| {
            share.make_source();
            share.cut(&cutting()).unwrap();
            // A killed call for another snapshot has left this file.
            let like = share.path(".belay/snapshots/x");
            fs::write(like, "of another snapshot").unwrap();
        },
        |share| share.discard().map(drop),
        |share, is_done| {
            assert_eq!(share.find().is_some(), !is_done && share.archive().exists());
            share.discard().unwrap();
            assert_eq!(names(&share.path("")), [".belay", "from"]);
            assert_eq!(names(&share.path(".belay/snapshots")), ["x"]);
            assert_eq!(names(&share.path("from")), ["a", "file", "link", "other"]);
        },
    );
    assert_eq!(killed, 3, "two names, and the directory");
}

/// The server executes a request of a killed worker after the next worker has created the snapshot,
/// or after the snapshot was deleted.
#[test]
fn a_late_request_of_a_snapshot_replaces_nothing_and_brings_nothing_back() {
    for is_deleted in [false, true] {
        let kept = std::cell::Cell::new(None);
        let changes = slow_at_each(
            Share::make_source,
            |share| share.cut(&cutting()).map(drop),
            |share| {
                share.write("from/later");
                share.cut(&cutting()).unwrap();
                kept.set(Some(fs::read(share.archive()).unwrap()));
                if is_deleted {
                    share.discard().unwrap();
                }
            },
            |share| {
                let kept = kept.take().unwrap();
                match share.find() {
                    Some(_) if !is_deleted => {
                        assert!(fs::read(share.archive()).unwrap() == kept);
                    }
                    Some(_) => {
                        // The call began after the snapshot was deleted.
                        assert!(share.unpacked("unpacked").join("later").exists());
                    }
                    None => assert!(is_deleted),
                }
                share.assert_no_temporary();
            },
        );
        assert!(changes > 20, "{changes}");
    }
}

#[test]
fn a_snapshot_of_a_volume_that_is_deleted_meanwhile_is_whole_or_is_not_made() {
    let made = std::cell::Cell::new((0, 0));
    slow_at_each(
        Share::make_source,
        |share| match share.cut(&cutting()) {
            Err(failure) if failure.kind == Kind::NotFound => Ok(()),
            result => result.map(drop),
        },
        |share| {
            let volume = old(&volume("from", "pvc-1"), OnDelete::Delete);
            share.delete(&volume).unwrap();
        },
        |share| {
            let (whole, none) = made.get();
            match share.find() {
                Some(_) => {
                    made.set((whole + 1, none));
                    let unpacked = share.unpacked("unpacked");
                    assert_eq!(names(&unpacked), ["a", "file", "link", "other"]);
                }
                None => made.set((whole, none + 1)),
            }
            share.assert_no_temporary();
        },
    );
    let (whole, none) = made.get();
    assert!(whole > 3 && none > 10, "{whole} {none}");
}

fn failing_at_each(errno: Errno) -> Vec<Result<SnapshotSeen, Failure>> {
    let mut results = Vec::new();
    loop {
        let share = Share::new();
        share.make_source();
        fail(results.len(), errno);
        let result = share.cut(&cutting());
        if was_left() {
            result.unwrap();
            return results;
        }
        if let Err(Failure {
            kind: Kind::Quota, ..
        }) = result
        {
            assert_eq!(names(&share.path("")), [".belay", "from"]);
        }
        results.push(result);
        share.cut(&cutting()).unwrap();
        share.restore(&restored()).unwrap();
        share.assert_copied();
        share.discard().unwrap();
        share.assert_no_temporary();
    }
}

#[test]
fn no_snapshot_counts_as_made_that_the_server_does_not_confirm() {
    for (errno, kind) in [(Errno::IO, Kind::Unreachable), (Errno::NOSPC, Kind::Quota)] {
        let results = failing_at_each(errno);
        // The last change removes the temporary name of the archive.
        let made = results.iter().filter(|result| result.is_ok()).count();
        assert!(made <= 1 && results.len() > 8, "{results:?}");
        for failure in results.into_iter().filter_map(Result::err) {
            assert_eq!(failure.kind, kind, "{failure}");
        }
    }
}

#[test]
fn a_name_is_that_of_one_snapshot_and_of_no_volume() {
    let share = Share::new();
    share.make_source();
    share.cut(&cutting()).unwrap();
    let other = NewSnapshot {
        at: Archived {
            source: "pvc-9".to_owned(),
            ..archived()
        },
        from: Source {
            at: owned("other", "pvc-9"),
            ..cutting().from
        },
    };
    let words = "has the file \"pvc-1.tar.gz\", so it is that of another snapshot";
    refused(share.cut(&other), Kind::Incompatible, words);
    let same_name = NewSnapshot {
        from: Source {
            id: "filer#elsewhere#from#pvc-1#".to_owned(),
            ..cutting().from
        },
        ..cutting()
    };
    let words = "is that of a snapshot of volume filer#share#from#pvc-1#";
    refused(share.cut(&same_name), Kind::Incompatible, words);
    let as_volume = share.create(&volume("cut", "pvc-9"));
    refused(as_volume, Kind::Incompatible, "exists in the share");
    // If the class contains no `subDir`, the directory has the name of the volume.
    let mut named_so = volume("cut", "cut");
    named_so.is_named_so = true;
    let named_so = share.create(&named_so);
    refused(named_so, Kind::Incompatible, "exists in the share");
    assert!(share.find().is_some());
    share.discard().unwrap();
    // All files in the volume's directory belong to the volume, whatever their names are.
    share.create(&volume("cut", "pvc-9")).unwrap();
    share.write("cut/pvc-1.tar.gz");
    let words = "is the directory of volume \"pvc-9\"";
    refused(share.cut(&cutting()), Kind::Incompatible, words);
    assert_eq!(share.find(), None);
    let left = share.discard().unwrap().unwrap();
    assert!(left.contains(words), "{left}");
    assert!(share.archive().exists());
    refused(share.restore(&restored()), Kind::NotFound, "does not exist");
    assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
}

#[test]
fn a_deletion_takes_the_archive_alone_and_follows_no_link() {
    let share = Share::new();
    share.make_source();
    share.cut(&cutting()).unwrap();
    share.write("cut/notes");
    let left = share.discard().unwrap().unwrap();
    assert!(left.contains("has other files"), "{left}");
    assert_eq!(names(&share.path("cut")), ["notes"]);
    fs::remove_file(share.path("cut/notes")).unwrap();
    symlink(share.outside().join("precious"), share.archive()).unwrap();
    refused(share.cut(&cutting()), Kind::Precondition, "ELOOP");
    assert_eq!(share.discard().unwrap(), None);
    symlink(share.outside(), share.path("cut")).unwrap();
    fs::write(share.outside().join("pvc-1.tar.gz"), "").unwrap();
    let words = "exists in the share, and is no directory";
    refused(share.cut(&cutting()), Kind::Incompatible, words);
    refused(share.discard(), Kind::Precondition, "is no directory");
    fs::remove_file(share.path("cut")).unwrap();
    assert_eq!(share.discard().unwrap(), None);
    fs::remove_file(share.outside().join("pvc-1.tar.gz")).unwrap();
    share.assert_no_temporary();
}

#[test]
fn what_killed_calls_have_left_of_other_snapshots_is_removed_after_an_hour() {
    let share = Share::new();
    share.make_source();
    share.cut(&cutting()).unwrap();
    share.discard().unwrap();
    let (old, new) = (
        share.path(".belay/snapshots/a.1"),
        share.path(".belay/snapshots/b.2"),
    );
    for path in [&old, &new] {
        fs::write(path, "half").unwrap();
    }
    let file = fs::File::options().write(true).open(&old).unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(2 * 3600))
        .unwrap();
    share.cut(&cutting()).unwrap();
    assert_eq!(names(&share.path(".belay/snapshots")), ["b.2"]);
}

/// GNU tar compares the archive with the volume: content, types, owners, modes, and times to the
/// nanosecond.
#[test]
fn gnu_tar_reads_what_is_in_the_volume() {
    let share = Share::new();
    share.make_source();
    let from = share.path("from");
    let long = from.join("long/".repeat(30));
    fs::create_dir_all(&long).unwrap();
    fs::write(long.join("n".repeat(200)), "content").unwrap();
    symlink("to/".repeat(60), long.join("link")).unwrap();
    fs::write(from.join(OsStr::from_bytes(b"not \xff utf-8")), "strange").unwrap();
    let bytes: Vec<u8> = (0..900_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(from.join("large"), &bytes).unwrap();
    fs::hard_link(from.join("large"), from.join("large too")).unwrap();
    for (name, size) in [("sparse", 50 << 20), ("full", 5000), ("ends", 30 << 20)] {
        let file = fs::File::create(from.join(name)).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(b"data", size / 3).unwrap();
        if name == "ends" {
            file.write_all_at(b"end", size - 3).unwrap();
        }
    }
    let attribute = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&long, "user.a=b", b"value", attribute).unwrap();
    share.cut(&cutting()).unwrap();
    let archive = fs::File::open(share.archive()).unwrap();
    assert!(archive.metadata().unwrap().len() < 5 << 20);
    let mut tar = Command::new("tar");
    tar.args(["--compare", "--gzip", "--file=-", "--directory"])
        .arg(&from);
    let output = tar.stdin(archive).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    // GNU tar reports the record of files with several names, which only Belay uses.
    let unknown = "tar: Ignoring unknown extended header keyword 'BELAY.links'";
    let others: Vec<_> = said.lines().filter(|line| *line != unknown).collect();
    assert_eq!((output.status.code(), others), (Some(0), vec![]));
    let to = share.unpacked("unpacked");
    let blocks = fs::metadata(to.join("sparse")).unwrap().blocks();
    assert!(blocks < 1000, "{blocks}");
}

/// Archives the source with the tar command of csi-driver-nfs, compressed or not.
fn of_another_program(share: &Share, is_compressed: bool) -> PathBuf {
    share.make_source();
    fs::create_dir(share.path("cut")).unwrap();
    let (flags, name) = match is_compressed {
        true => ("-czf", "pvc-1.tar.gz"),
        false => ("-cf", "pvc-1.tar"),
    };
    let path = share.path("cut").join(name);
    let mut tar = Command::new("tar");
    tar.arg("-C")
        .arg(share.path("from"))
        .arg(flags)
        .arg(&path)
        .arg(".");
    assert!(tar.status().unwrap().success());
    path
}

#[test]
fn a_snapshot_of_another_program_is_found_restored_and_deleted() {
    for is_compressed in [true, false] {
        let share = Share::new();
        let path = of_another_program(&share, is_compressed);
        let before = fs::read(&path).unwrap();
        share.write("from/later");
        let seen = share.cut(&cutting()).unwrap();
        assert_eq!((seen.bytes, &seen.volume), (before.len() as u64, &None));
        assert_eq!(seen.created, fs::metadata(&path).unwrap().mtime());
        assert_eq!(share.find(), Some(seen));
        assert!(fs::read(&path).unwrap() == before);
        fs::remove_file(share.path("from/later")).unwrap();
        share.restore(&restored()).unwrap();
        share.assert_copied();
        assert_eq!(share.discard().unwrap(), None);
        assert!(!share.path("cut").exists());
    }
}

#[test]
fn half_an_archive_of_another_program_is_neither_a_snapshot_nor_restored() {
    for is_compressed in [true, false] {
        let share = Share::new();
        let path = of_another_program(&share, is_compressed);
        let whole = fs::read(&path).unwrap();
        let end = whole.iter().rposition(|byte| *byte != 0).unwrap();
        for length in [1, 10, end / 3, end / 2, end - 1, 0] {
            fs::write(&path, &whole[..length]).unwrap();
            let words = "damaged or not complete";
            refused(share.cut(&cutting()), Kind::Precondition, words);
            refused(share.restore(&restored()), Kind::Precondition, words);
            assert_eq!(fs::read(&path).unwrap().len(), length);
            assert!(!share.path("ns").exists(), "{length}");
            assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
        }
    }
}
