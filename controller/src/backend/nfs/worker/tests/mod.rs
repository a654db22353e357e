//! Tests the worker's calls in a local directory that replaces the share.

mod archives;
mod calls;
mod claimed;
mod claims;
mod copied;
mod copied_dropped;
mod copied_failing;
mod copied_files;
mod creations;
mod failing;
pub(super) mod hostile;
pub(super) mod killed;
mod left;
mod overtaken;
mod policies;
mod renamed;
mod repeated;
mod slow;
mod snapshots;
mod snapshots_attributes;
mod snapshots_changed;
mod snapshots_hostile;
mod snapshots_late;
mod stale;
mod tenants;
mod verbs;

use super::super::call::{Done, ExistingVolume, NewVolume, OldVolume, Owned, Work};
use super::super::id::OnDelete;
use super::super::path::Dir;
use super::layout::file_name;
use super::perform;
use super::tree::{self, Tree};
use belay_server::call::{Failure, Kind};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A share, next to a directory that no call may touch.
struct Share {
    dir: TempDir,
}

impl Share {
    fn new() -> Self {
        // Use a filesystem in memory if possible, since the tests sync each claim in thousands of
        // shares.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let dir = dir.unwrap();
        fs::create_dir(dir.path().join("share")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/precious"), "data").unwrap();
        Self { dir }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join("share").join(below)
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    fn tree(&self) -> Tree {
        tree::Share::Local(self.path("")).afresh().unwrap()
    }

    fn perform(&self, work: &Work) -> Result<Done, Failure> {
        self.perform_until(work, Instant::now() + Duration::from_secs(600))
    }

    fn perform_until(&self, work: &Work, end: Instant) -> Result<Done, Failure> {
        let tree = self.tree();
        perform((&tree, &tree), work, end, &|_| {})
    }

    fn create(&self, order: &NewVolume) -> Result<ExistingVolume, Failure> {
        match self.perform(&Work::Create(order.clone()))? {
            Done::Volume(Some(seen)) => Ok(seen),
            other => panic!("{other:?}"),
        }
    }

    fn delete(&self, order: &OldVolume) -> Result<(), Failure> {
        self.delete_or_leave(order).map(drop)
    }

    /// Returns the reason why a directory with the volume's name was left.
    fn delete_or_leave(&self, order: &OldVolume) -> Result<Option<String>, Failure> {
        match self.perform(&Work::Delete(order.clone()))? {
            Done::Deleted(why) => Ok(why),
            other => panic!("{other:?}"),
        }
    }

    fn lookup(&self, at: &Owned) -> Option<ExistingVolume> {
        match self.perform(&Work::Lookup(at.clone())).unwrap() {
            Done::Volume(seen) => seen,
            other => panic!("{other:?}"),
        }
    }

    /// Writes a file, and creates its parent directories.
    fn write(&self, below: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, below).unwrap();
    }

    /// Asserts that no claims and no trash are left, and that no file outside of the share was
    /// changed.
    fn assert_clean(&self) {
        for own in [".belay/claims", ".belay/tmp", ".belay/trash"] {
            assert_eq!(names(&self.path(own)), [""; 0], "{own}");
        }
        self.assert_outside();
    }

    fn assert_outside(&self) {
        assert_eq!(names(&self.outside()), ["precious"]);
        assert_eq!(fs::read(self.outside().join("precious")).unwrap(), b"data");
    }
}

/// Returns the names in a directory, sorted. Returns no names if the directory does not exist.
fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn owned(dir: &str, name: &str) -> Owned {
    Owned {
        dir: Dir::read(dir).unwrap().unwrap(),
        name: name.to_owned(),
        adopts: false,
    }
}

/// Returns the creation of the volume by a controller with `--nfs-adopt`, which adopts directories
/// without a claim.
fn adopting(volume: NewVolume) -> NewVolume {
    let at = Owned {
        adopts: true,
        ..volume.at
    };
    NewVolume { at, ..volume }
}

/// Returns a volume of a class with a `subDir`.
fn volume(dir: &str, name: &str) -> NewVolume {
    NewVolume {
        at: owned(dir, name),
        is_named_so: false,
        on_delete: OnDelete::Delete,
        bytes: 7,
        permissions: None,
    }
}

/// Returns a volume of a class without a `subDir`.
fn plain(name: &str) -> NewVolume {
    NewVolume {
        is_named_so: true,
        ..volume(name, name)
    }
}

/// Returns the deletion of the volume by a controller with this default policy.
fn old(volume: &NewVolume, default: OnDelete) -> OldVolume {
    OldVolume {
        at: volume.at.clone(),
        on_delete: None,
        default,
    }
}

/// Returns a volume with the policy `archive`, and its deletion.
fn archived(name: &str) -> (NewVolume, OldVolume) {
    let order = NewVolume {
        on_delete: OnDelete::Archive,
        ..volume("ns/data", name)
    };
    let deletion = old(&order, OnDelete::Archive);
    (order, deletion)
}

/// Returns the path of the file with the claim on a directory.
fn claim_of(share: &Share, dir: &str) -> PathBuf {
    let dir = Dir::read(dir).unwrap().unwrap();
    let path = share.path(".belay/claims").join(file_name(&dir));
    let found = names(&path);
    assert_eq!(found.len(), 1, "{found:?}");
    path.join(&found[0])
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Failure>, kind: Kind, words: &str) {
    let failure = result.unwrap_err();
    assert_eq!(failure.kind, kind, "{failure}");
    assert!(failure.message.contains(words), "{failure}");
}
