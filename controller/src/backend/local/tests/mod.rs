//! Tests of `local` on real directories.

/// Runs each of these tests in the temporary directory, on any filesystem. As root, also runs each
/// test on an xfs, so that shared blocks are always tested.
macro_rules! everywhere {
    ($($test:ident,)+) => {
        mod here {
            $(#[test] fn $test() { super::$test(&std::env::temp_dir()); })+
        }
        mod on_xfs {
            use crate::backend::local::tests::xfs;
            $(#[test] #[ignore = "mounts an xfs; needs root: make test"]
            fn $test() { super::$test(xfs()); })+
        }
    };
}
use everywhere;

mod batch;
mod complete;
mod copied;
mod damaged;
mod deleting;
mod durable;
mod emptied;
mod facts;
mod files;
mod health;
mod ledger;
mod linked;
mod meanwhile;
mod metrics;
#[expect(dead_code, reason = "the tests of the process mount more")]
#[path = "../../../../tests/process/mounts.rs"]
mod mounts;
mod ordered;
mod questions;
mod recovery;
mod shared;
mod snapshots;
mod sources;
mod special;
mod volumes;

use super::create::Intent;
use super::delete::Deletion;
use super::recover::Recovered;
use super::snapshot;
use super::store::Store;
use super::{Config, Overcommit};
use crate::backend::{Attempt, Order, Snapshot, SnapshotOrder, Usage, Volume};
use belay_contract::drivers::local::NEW;
use belay_server::call::Failure;
use belay_server::request::{ContentSource, Context, MountFlags, Name, Secrets};
use mounts::Xfs;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Returns the mount point of an xfs that all tests of this process share. The first test creates
/// the xfs, which starts child processes. Until a child calls exec, it has copies of the
/// descriptors of other tests' locked files, and so holds their locks.
fn xfs() -> &'static Path {
    static ROOT: LazyLock<(File, PathBuf)> = LazyLock::new(|| {
        let root = Xfs::new().hidden();
        let path = format!("/proc/self/fd/{}", root.as_raw_fd());
        (root, path.into())
    });
    &ROOT.1
}

/// Opens the store of a directory. Retries while the directory is locked, since a child process of
/// another test may hold the lock for a moment.
fn opened(config: &Config) -> Result<Store, Failure> {
    let end = Instant::now() + Duration::from_secs(30);
    let is_held = |failure: &Failure| failure.message.contains("held by another");
    loop {
        let opened = Store::open(config.clone());
        if !opened.as_ref().is_err_and(is_held) || Instant::now() > end {
            return opened;
        }
        thread::yield_now();
    }
}

/// A state directory that is removed at the end.
struct Bed {
    dir: tempfile::TempDir,
    overcommit: Overcommit,
    keeps_intents: bool,
}

impl Bed {
    fn new() -> Self {
        Self::beneath(&std::env::temp_dir())
    }

    fn beneath(folder: &Path) -> Self {
        let dir = tempfile::tempdir_in(folder).unwrap();
        fs::create_dir(dir.path().join("state")).unwrap();
        Self {
            dir,
            overcommit: "1000000".parse().unwrap(),
            keeps_intents: false,
        }
    }

    fn config(&self) -> Config {
        Config {
            state_dir: self.dir.path().join("state"),
            place: None,
            overcommit: self.overcommit,
            keeps_intents: self.keeps_intents,
            require_state: false,
        }
    }

    fn open(&self) -> Store {
        self.recover().0
    }

    fn recover(&self) -> (Store, Recovered) {
        let store = opened(&self.config()).unwrap();
        let recovered = store.recover().unwrap();
        (store, recovered)
    }

    fn file(&self, id: &str) -> PathBuf {
        self.dir.path().join("state/volumes").join(id)
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("state/volumes")).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    fn snapshot_file(&self, id: &str) -> PathBuf {
        self.dir.path().join("state/snapshots").join(id)
    }

    fn snapshot_files(&self) -> usize {
        let dir = self.dir.path().join("state/snapshots");
        fs::read_dir(dir).unwrap().count()
    }

    /// Writes to a volume as its node would; after this, the file no longer counts as never used.
    fn write(&self, id: &str) {
        let file = OpenOptions::new().write(true).open(self.file(id)).unwrap();
        match rustix::fs::fremovexattr(&file, NEW) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => panic!("{errno}"),
        }
        file.write_all_at(b"data", 4096).unwrap();
        file.sync_all().unwrap();
    }
}

fn order(name: &str, bytes: u64) -> Order {
    Order {
        name: Name::new(name).unwrap(),
        attempt: Attempt::new(1, 1),
        bytes,
        usage: Usage::Block,
        mount_flags: MountFlags::default(),
        shared: false,
        parameters: Context::default(),
        topology: None,
        secrets: Secrets::default(),
    }
}

fn snapshot_order(name: &str, volume: &Volume) -> SnapshotOrder {
    SnapshotOrder {
        name: Name::new(name).unwrap(),
        attempt: Attempt::new(1, 1),
        source: volume.id.clone(),
        parameters: Context::default(),
        secrets: Secrets::default(),
    }
}

/// Creates a snapshot that is ready.
fn cut(store: &Store, order: &SnapshotOrder) -> Snapshot {
    let snapshot = store.cut(order).unwrap();
    if !snapshot.ready {
        store.copy_snapshot(&store.copies.next().unwrap()).unwrap();
    }
    store.snapshot(&snapshot.id).unwrap().unwrap()
}

fn of_snapshot(snapshot: &Snapshot) -> Option<ContentSource> {
    Some(ContentSource::Snapshot(snapshot.id.clone()))
}

fn of_volume(volume: &Volume) -> Option<ContentSource> {
    Some(ContentSource::Volume(volume.id.clone()))
}

/// Deletes a volume without waiting: fails if the node is using the file.
fn delete(store: &Store, id: &str) -> Result<(), Failure> {
    match store.try_delete(id)? {
        Deletion::Done => Ok(()),
        Deletion::InUse => Err(store.refuse_used(id)),
    }
}

fn ids(store: &Store) -> Vec<String> {
    let page = store.list(None, usize::MAX).unwrap();
    page.volumes
        .iter()
        .map(|volume| volume.id.as_str().to_owned())
        .collect()
}

fn intended(store: &Store, order: &Order) -> String {
    match store.intend(order, None).unwrap() {
        Intent::Made(id) => id,
        Intent::Exists(_) | Intent::Remains(..) => panic!("{order:?} should be new"),
    }
}

fn intended_snapshot(store: &Store, order: &SnapshotOrder) -> String {
    match store.intend_snapshot(order).unwrap() {
        snapshot::Intent::Made(id) => id,
        snapshot::Intent::Exists(_) | snapshot::Intent::Remains(_) => {
            panic!("{order:?} should be new")
        }
    }
}
