//! Statistics on the event loop: where no call can wait, and nowhere else.

use std::path::{Path, PathBuf};

use belay_server::request::Stats;

use super::bench::{BYTES, Form, Verb, Volume, World};
use super::simulated::Simulated;
use crate::kernel::fake::Fake;
use crate::operation::{self, Node, Read, Thread, run};
use crate::work::{Operation, Progress};

/// A published volume, and an agent.
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
        for verb in [Verb::Stage, Verb::Publish(1)] {
            volume.call(&node, verb).unwrap();
        }
        Bench {
            world,
            node,
            volume,
        }
    }

    fn read(&self, path: &Path, thread: Thread) -> Read {
        let request = Stats {
            id: self.volume.volume_id(),
            volume_path: path.to_owned(),
            staging: Some(self.volume.staging()),
        };
        let progress = Progress::default();
        let read = run(&self.node, &progress, Operation::Stats, |cx| {
            operation::stats(cx, &request, thread)
        });
        read.unwrap()
    }

    /// Where the pool allows the next ones to be read.
    fn next(&self) -> Thread {
        match self.read(&self.target(), Thread::Pool) {
            Read::Done(_, next) => next,
            Read::WantsPool => panic!("on the pool"),
        }
    }

    /// The answer on the event loop; a call that may wait is a violation.
    fn on_loop(&self, path: &Path) -> Read {
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
        let expected = match form {
            Form::Ext4 | Form::Xfs => Thread::Only,
            _ => Thread::Pool,
        };
        assert_eq!(bench.next(), expected, "{form:?}");
        if expected == Thread::Only {
            let stats = bench.volume.condition(&bench.node).unwrap();
            let read = bench.on_loop(&bench.target());
            assert_eq!(read, Read::Done(stats, Thread::Only));
        }
        bench.world.machine.keep_quotas();
        assert_eq!(bench.next(), Thread::Pool);
        if form != Form::Block {
            assert_eq!(bench.on_loop(&bench.target()), Read::WantsPool);
        }
    }
}

#[test]
fn an_ext4_that_can_have_project_quotas_is_read_on_the_pool_whatever_its_options_show() {
    let bench = Bench::new(Form::Ext4);
    bench.world.machine.add_projects(&bench.volume.file());
    assert_eq!(bench.next(), Thread::Pool);
}

#[test]
fn a_path_that_is_not_known_as_the_volumes_is_not_even_looked_up_in_place() {
    let bench = Bench::new(Form::Ext4);
    bench.world.machine.begin(None);
    let read = bench.on_loop(&bench.target().join("inner"));
    assert_eq!(read, Read::WantsPool);
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
    let is_pool = matches!(read.unwrap(), Read::Done(_, Thread::Pool));
    assert!(is_pool);
}

#[test]
fn statistics_of_a_mount_that_was_not_proven_yet_are_not_read_in_place() {
    let mut bench = Bench::new(Form::Ext4);
    assert_eq!(bench.next(), Thread::Only);
    bench.node = bench.world.start();
    assert_eq!(bench.on_loop(&bench.target()), Read::WantsPool);
    assert_eq!(bench.next(), Thread::Only);
    let is_read = matches!(bench.on_loop(&bench.target()), Read::Done(..));
    assert!(is_read);
}

#[test]
fn a_file_that_was_removed_or_replaced_is_not_judged_in_place() {
    let bench = Bench::new(Form::Ext4);
    let conditions = || bench.volume.condition(&bench.node).unwrap().conditions;
    bench.world.remove_file(&bench.volume.file());
    assert_eq!(bench.on_loop(&bench.target()), Read::WantsPool);
    assert!(!conditions().is_empty());
    bench.world.make_file(&bench.volume.file(), BYTES);
    assert_eq!(bench.on_loop(&bench.target()), Read::WantsPool);
    assert!(!conditions().is_empty());
}
