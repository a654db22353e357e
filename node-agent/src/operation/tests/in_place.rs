//! Tests that statistics are read on the event loop only if no system call can block.

use std::path::{Path, PathBuf};

use belay_server::call::Failure;
use belay_server::request::Stats;

use super::bench::{BYTES, Form, Verb, Volume, World};
use super::simulated::Simulated;
use super::suite::all_ok;
use crate::kernel::fake::{Fake, Trouble};
use crate::operation::{self, Node, Thread, VolumeStats, run};
use crate::work::{Operation, Progress};

/// A published volume and an agent.
struct Bench {
    world: Simulated,
    node: Node<Fake>,
    volume: Volume,
}

impl Bench {
    fn new(form: Form) -> Bench {
        let world = Simulated::new();
        let volume = world.volume("vol", form);
        let node = world.start();
        all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
        Bench {
            world,
            node,
            volume,
        }
    }

    fn read(&self, path: &Path, thread: Thread) -> Option<VolumeStats> {
        self.answer(path, self.volume.staging(), thread).unwrap()
    }

    fn answer(
        &self,
        path: &Path,
        staging: PathBuf,
        thread: Thread,
    ) -> Result<Option<VolumeStats>, Failure> {
        let request = Stats {
            id: self.volume.volume_id(),
            volume_path: path.to_owned(),
            staging: Some(staging),
        };
        let progress = Progress::default();
        run(&self.node, &progress, Operation::Stats, |cx| {
            operation::stats(cx, &request, thread)
        })
    }

    /// Reads the statistics on the pool. Returns whether the next statistics can be read on the
    /// event loop.
    fn next(&self) -> bool {
        let read = self.read(&self.target(), Thread::Pool);
        assert!(read.is_some(), "on the pool");
        let volume = self.volume.volume_id();
        let index = &self.node.index;
        index.is_read_in_place(&self.target(), &volume).unwrap()
    }

    /// Reads the statistics on the event loop, where the simulated kernel reports a system call
    /// that may block as a violation.
    fn on_loop(&self, path: &Path) -> Option<VolumeStats> {
        self.world.machine.never_wait_here(true);
        let read = self.read(path, Thread::Only);
        self.world.machine.never_wait_here(false);
        assert_eq!(self.world.machine.violations(), Vec::<String>::new());
        read
    }

    fn target(&self) -> PathBuf {
        self.volume.target(1)
    }
}

#[test]
fn statistics_are_read_in_place_where_nothing_can_wait() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block] {
        let bench = Bench::new(form);
        let is_in_place = matches!(form, Form::Ext4 | Form::Xfs);
        // Read the statistics twice: the first time after startup, and a later time.
        for _ in 0..2 {
            let read = bench.on_loop(&bench.target());
            if is_in_place {
                let stats = bench.volume.condition(&bench.node).unwrap();
                assert_eq!(read, Some(stats));
            } else {
                assert_eq!(read, None, "{form:?}");
            }
            assert_eq!(bench.next(), is_in_place, "{form:?}");
        }
        bench.world.machine.keep_quotas();
        assert_eq!(bench.on_loop(&bench.target()), None);
        assert!(!bench.next());
    }
}

/// The mount options of a btrfs contain its subvolume, which the kernel may have to read from the
/// disk.
#[test]
fn the_options_of_a_btrfs_are_not_read_in_place() {
    let bench = Bench::new(Form::Btrfs);
    bench.world.machine.begin(None);
    assert_eq!(bench.on_loop(&bench.target()), None);
    let calls = bench.world.machine.end();
    let names: Vec<_> = calls.iter().map(|call| call.name).collect();
    // The statx(2) call queries the root of the mount.
    assert_eq!(names, ["openat2 RESOLVE_CACHED", "statx"]);
}

#[test]
fn what_must_be_read_on_the_pool_is_not_even_looked_up_in_place_again() {
    for form in [Form::Btrfs, Form::Block] {
        let bench = Bench::new(form);
        assert!(!bench.next());
        bench.world.machine.begin(None);
        let read = bench.on_loop(&bench.target());
        assert_eq!(read, None, "{form:?}");
        assert_eq!(bench.world.machine.end(), []);
    }
}

/// The path of the mount leads through a filesystem whose server must be queried.
#[test]
fn a_path_through_a_silent_server_is_read_on_the_pool() {
    for is_first in [true, false] {
        let bench = Bench::new(Form::Ext4);
        assert!(is_first || bench.next());
        let directory = bench.target().parent().unwrap().to_owned();
        bench.world.machine.silence(&directory);
        assert_eq!(bench.on_loop(&bench.target()), None);
    }
}

/// Only the staging path shows whether the volume was requested read-only, and a lookup of that
/// path may block.
#[test]
fn a_filesystem_that_is_read_only_is_read_on_the_pool() {
    let bench = Bench::new(Form::Ext4);
    let machine = &bench.world.machine;
    machine.trouble(&bench.target(), Trouble::ReadOnly);
    machine.silence(bench.volume.staging().parent().unwrap());
    assert_eq!(bench.on_loop(&bench.target()), None);
}

#[test]
fn a_staging_path_outside_the_kubelets_directory_is_refused_on_the_pool() {
    let bench = Bench::new(Form::Ext4);
    let answer = |staging: &Path, thread| bench.answer(&bench.target(), staging.into(), thread);
    let elsewhere = Path::new("/elsewhere");
    for staging in [elsewhere, &bench.world.base().join("../elsewhere")] {
        assert_eq!(answer(staging, Thread::Only), Ok(None));
    }
    let failure = answer(elsewhere, Thread::Pool).unwrap_err();
    assert!(failure.message.contains("staging_target_path"), "{failure}");
}

/// The agent finds the quotas in the superblock, even if the volume was staged before the agent
/// started.
#[test]
fn an_ext4_that_can_have_project_quotas_is_read_on_the_pool_whatever_its_options_show() {
    let mut bench = Bench::new(Form::Ext4);
    let down = [Verb::Unpublish(1), Verb::Unstage];
    all_ok(&bench.node, &bench.volume, &down);
    bench.world.machine.add_projects(&bench.volume.file());
    let up = [Verb::Stage, Verb::Publish(1)];
    all_ok(&bench.node, &bench.volume, &up);
    for _ in 0..2 {
        assert_eq!(bench.on_loop(&bench.target()), None);
        assert!(!bench.next());
        bench.node = bench.world.start();
    }
}

#[test]
fn a_path_that_is_not_known_as_the_volumes_is_not_even_looked_up_in_place() {
    let bench = Bench::new(Form::Ext4);
    bench.world.machine.begin(None);
    let read = bench.on_loop(&bench.target().join("inner"));
    assert_eq!(read, None);
    assert_eq!(bench.world.machine.end(), []);
}

#[test]
fn a_target_on_another_volume_is_read_on_the_pool() {
    let bench = Bench::new(Form::Ext4);
    let mut inner = bench.world.volume("inner", Form::Xfs);
    inner.mode = belay_server::request::AccessMode::MultiNodeMultiWriter;
    inner.call(&bench.node, Verb::Stage).unwrap();
    let target = bench.target().join("inner");
    inner
        .publish_at(&bench.node, &target, Thread::Pool)
        .unwrap();
    let request = Stats {
        id: inner.volume_id(),
        volume_path: target,
        staging: None,
    };
    let progress = Progress::default();
    let read = run(&bench.node, &progress, Operation::Stats, |cx| {
        operation::stats(cx, &request, Thread::Pool)
    });
    assert!(read.unwrap().is_some());
    let index = &bench.node.index;
    let is_in_place = index.is_read_in_place(&request.volume_path, &request.id);
    assert_eq!(is_in_place, Some(false));
}

#[test]
fn statistics_of_a_mount_that_was_not_proven_yet_are_not_read_in_place() {
    let mut bench = Bench::new(Form::Ext4);
    assert!(bench.next());
    bench.node = bench.world.start();
    assert_eq!(bench.on_loop(&bench.target()), None);
    assert!(bench.next());
    let is_read = bench.on_loop(&bench.target()).is_some();
    assert!(is_read);
}

#[test]
fn a_file_that_was_removed_or_replaced_is_not_judged_in_place() {
    let bench = Bench::new(Form::Ext4);
    let conditions = || bench.volume.condition(&bench.node).unwrap().conditions;
    bench.world.remove_file(&bench.volume.file());
    assert_eq!(bench.on_loop(&bench.target()), None);
    assert!(!conditions().is_empty());
    bench.world.make_file(&bench.volume.file(), BYTES);
    assert_eq!(bench.on_loop(&bench.target()), None);
    assert!(!conditions().is_empty());
}
