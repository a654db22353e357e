//! Random calls in random order, with failures, deaths and restarts, against a model of what they
//! must come to. The model knows what is mounted and nothing of how.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use belay_server::failure::{Certainty, Failure, Kind};
use belay_server::request::AccessMode;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::bench::{BYTES, Form, MIB, Verb, Volume, World};
use super::is_nightly;
use super::simulated::Simulated;
use crate::kernel::Kernel;
use crate::kernel::fake::{Died, Fake, Fault, Picture};
use crate::operation::Node;

const CASES: u32 = 1_000;
const CASES_NIGHTLY: u32 = 100_000;
const STEPS_MAX: usize = 24;
/// On both kernels, without failures; a real call takes milliseconds.
const CASES_PLAIN: u32 = 30;
const CASES_PLAIN_NIGHTLY: u32 = 1_000;
/// More than any operation makes.
const CALLS_MAX: usize = 72;
const DATA_AT: u64 = 50 * MIB;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Call(usize, Verb, Option<Fault>),
    Restart,
    /// The controller grows a volume.
    Grow(usize),
}

/// What is known of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    staged: bool,
    targets: BTreeSet<u8>,
    /// A pod has written to it.
    written: bool,
}

impl Known {
    /// What the call must say when nothing goes wrong.
    fn expected(&self, volume: &Volume, verb: Verb) -> Result<(), Kind> {
        let one_only = volume.mode == AccessMode::SingleNodeSingleWriter;
        match verb {
            Verb::Publish(_) if !self.staged => Err(Kind::Precondition),
            Verb::Publish(target) if one_only && self.targets.iter().any(|t| *t != target) => {
                Err(Kind::Precondition)
            }
            Verb::Unstage if !self.targets.is_empty() => Err(Kind::Precondition),
            Verb::Expand if !self.staged => Err(Kind::NotFound),
            Verb::Stats if !self.targets.contains(&1) => Err(Kind::NotFound),
            _ => Ok(()),
        }
    }

    /// What is mounted when the call is done.
    fn after(&self, verb: Verb) -> Known {
        let mut known = self.clone();
        match verb {
            Verb::Stage => known.staged = true,
            Verb::Unstage => known.staged = false,
            Verb::Publish(target) => drop(known.targets.insert(target)),
            Verb::Unpublish(target) => drop(known.targets.remove(&target)),
            Verb::Expand | Verb::Stats | Verb::Health => {}
        }
        known
    }
}

fn verb() -> impl Strategy<Value = Verb> {
    prop_oneof![
        3 => Just(Verb::Stage),
        2 => Just(Verb::Unstage),
        4 => (1..=2_u8).prop_map(Verb::Publish),
        3 => (1..=2_u8).prop_map(Verb::Unpublish),
        1 => Just(Verb::Expand),
        1 => Just(Verb::Stats),
    ]
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    let errno = prop::sample::select(&["EIO", "EBUSY", "ENOENT", "EPERM", "ENOSPC", "EINVAL"][..]);
    // Most operations make few calls.
    let at = || prop_oneof![1..12_usize, 1..CALLS_MAX];
    prop_oneof![
        5 => Just(None),
        2 => at().prop_map(|at| Some(Fault::Die(at))),
        2 => (at(), errno).prop_map(|(at, errno)| Some(Fault::Fail(at, errno))),
        1 => at().prop_map(|at| Some(Fault::FailFrom(at, "EIO"))),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let volume = || 0..4_usize;
    prop_oneof![
        20 => (volume(), verb(), fault()).prop_map(|(v, verb, fault)| Step::Call(v, verb, fault)),
        2 => Just(Step::Restart),
        1 => volume().prop_map(Step::Grow),
    ]
}

/// One of each form; the second may have one target only.
fn volumes(world: &impl World) -> Vec<Volume> {
    let forms = [Form::Ext4, Form::Xfs, Form::Block, Form::Btrfs];
    let named = (0..).zip(forms);
    let mut volumes: Vec<_> = named
        .map(|(number, form)| world.volume(&format!("vol-{number}"), form))
        .collect();
    volumes[1].mode = AccessMode::SingleNodeSingleWriter;
    volumes
}

/// A machine with four volumes, the agent on it, and what must be so.
struct Life {
    world: Simulated,
    node: Node<Fake>,
    volumes: Vec<Volume>,
    known: Vec<Known>,
    bytes: u64,
    /// What the machine held when the last step was over.
    picture: Picture,
}

impl Life {
    fn new() -> Life {
        let world = Simulated::new();
        let volumes = volumes(&world);
        let node = world.start();
        Life {
            picture: world.machine.picture(),
            world,
            node,
            known: vec![Known::default(); volumes.len()],
            volumes,
            bytes: BYTES,
        }
    }

    fn run(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Restart => self.node = self.world.start(),
            Step::Grow(volume) => {
                self.bytes += MIB;
                let file = self.volumes[*volume].file();
                self.world.make_file(&file, self.bytes);
            }
            Step::Call(volume, verb, fault) => {
                self.call(*volume, *verb, *fault)?;
                return self.check();
            }
        }
        self.picture = self.world.machine.picture();
        self.check()
    }

    fn call(&mut self, volume: usize, verb: Verb, fault: Option<Fault>) -> Result<(), String> {
        let expected = self.known[volume].expected(&self.volumes[volume], verb);
        self.world.machine.begin(fault);
        let call = || self.volumes[volume].call(&self.node, verb);
        let ended = catch_unwind(AssertUnwindSafe(call));
        let calls = self.world.machine.end().len();
        let before = std::mem::replace(&mut self.picture, self.world.machine.picture());
        let struck = match fault {
            Some(Fault::Die(at) | Fault::Fail(at, _) | Fault::FailFrom(at, _)) => at <= calls,
            _ => false,
        };
        let result = match ended {
            Ok(result) => result,
            Err(payload) if payload.is::<Died>() => {
                self.node = self.world.start();
                self.picture = self.world.machine.picture();
                return self.accept_either(volume, verb);
            }
            Err(panic) => resume_unwind(panic),
        };
        if let Err(failure) = &result {
            self.refuse_leftovers(verb, failure, struck, &before)?;
        }
        match (result, expected) {
            (Ok(()), Ok(())) => {
                self.known[volume] = self.known[volume].after(verb);
                self.done(volume, verb)
            }
            (Err(failure), Err(kind)) if failure.kind == kind || struck => Ok(()),
            (Err(_), Ok(())) if struck => self.accept_either(volume, verb),
            (result, expected) => Err(format!("it says {result:?}, not {expected:?}")),
        }
    }

    /// After a failure or a death in the middle the mounts are as before or as after.
    fn accept_either(&mut self, volume: usize, verb: Verb) -> Result<(), String> {
        let seen = self.seen(volume);
        let after = self.known[volume].after(verb);
        let expected = self.known[volume].expected(&self.volumes[volume], verb);
        let allowed = expected.is_ok() && seen == after;
        if seen != self.known[volume] && !allowed {
            return Err(format!("{seen:?} is neither before nor after"));
        }
        self.known[volume] = seen;
        Ok(())
    }

    /// Who is told that nothing was done, or that a request is wrong, need not come back.
    fn refuse_leftovers(
        &self,
        verb: Verb,
        failure: &Failure,
        struck: bool,
        before: &Picture,
    ) -> Result<(), String> {
        let comes_up = matches!(verb, Verb::Stage | Verb::Publish(_));
        let is_settled = failure.certainty != Certainty::MayBeRunning;
        let new = self.picture.beyond(before);
        match (comes_up || !struck) && is_settled && !new.is_empty() {
            true => Err(format!("\"{failure}\" has left {new:?}")),
            false => Ok(()),
        }
    }

    /// What is so after a call that said OK.
    fn done(&mut self, number: usize, verb: Verb) -> Result<(), String> {
        let (machine, volume) = (&self.world.machine, &self.volumes[number]);
        let file = volume.file();
        match verb {
            // A pod writes, or finds what it wrote before.
            Verb::Publish(_) => {
                machine.write_file(&file, DATA_AT, volume.id.as_bytes());
                self.known[number].written = true;
            }
            Verb::Unstage => {
                let (id, file) = (&volume.id, file.display());
                let left = self.picture.beginning_with(&[
                    &format!("lock of {file}"),
                    &format!("loop of {file}"),
                    &format!("file /base/staging/{id}"),
                ]);
                if !left.is_empty() {
                    return Err(format!("unstaged, but there is {left:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What is mounted of a volume, whatever anybody believes.
    fn seen(&self, number: usize) -> Known {
        let volume = &self.volumes[number];
        let is_mounted = |path: &Path| {
            let line = format!("mount {}:", path.display());
            !self.picture.beginning_with(&[&line]).is_empty()
        };
        let staging = volume.staging();
        Known {
            staged: is_mounted(&staging) || is_mounted(&staging.join("device")),
            targets: [1, 2]
                .into_iter()
                .filter(|n| is_mounted(&volume.target(*n)))
                .collect(),
            written: self.known[number].written,
        }
    }

    /// What is so at all times.
    fn check(&self) -> Result<(), String> {
        let violations = self.world.machine.violations();
        if !violations.is_empty() {
            return Err(violations.join("; "));
        }
        for (number, volume) in self.volumes.iter().enumerate() {
            let (seen, known) = (self.seen(number), &self.known[number]);
            if seen != *known {
                return Err(format!("{} is {seen:?}, not {known:?}", volume.id));
            }
            if !seen.targets.is_empty() && !seen.staged {
                return Err(format!("{} is published and not staged", volume.id));
            }
            let mounts = self.picture.beginning_with(&[
                &format!("mount {}", volume.staging().display()),
                &format!(
                    "mount {}",
                    volume.base.join("pods").join(&volume.id).display()
                ),
            ]);
            let own = format!(" of {},", volume.file().display());
            if let Some(other) = mounts.iter().find(|line| !line.contains(&own)) {
                return Err(format!("not of {}: {other}", volume.id));
            }
        }
        self.check_data()
    }

    fn check_data(&self) -> Result<(), String> {
        for (number, volume) in self.volumes.iter().enumerate() {
            let machine = &self.world.machine;
            let read = machine.read_file(&volume.file(), DATA_AT, volume.id.len());
            if self.known[number].written && read != volume.id.as_bytes() {
                return Err(format!("the data of {} is gone", volume.id));
            }
        }
        Ok(())
    }

    /// Every volume is used once more and then taken back, with nothing going wrong: whatever has
    /// happened, nothing may be refused and nothing left.
    fn end(&mut self) -> Result<(), String> {
        self.node = self.world.start();
        let all = [
            Verb::Unpublish(1),
            Verb::Unpublish(2),
            Verb::Stage,
            Verb::Publish(1),
            Verb::Stats,
            Verb::Unpublish(1),
            Verb::Unstage,
        ];
        for volume in 0..self.volumes.len() {
            for verb in all {
                self.run(&Step::Call(volume, verb, None))
                    .map_err(|why| format!("at last, {verb:?} of volume {volume}: {why}"))?;
            }
        }
        match self.world.left() {
            left if left.is_empty() => Ok(()),
            left => Err(format!("left at the end: {left:?}")),
        }
    }
}

#[test]
fn random_lives_keep_to_the_model() {
    let config = Config {
        cases: if is_nightly() { CASES_NIGHTLY } else { CASES },
        failure_persistence: None,
        ..Config::default()
    };
    let lives = prop::collection::vec(step(), 1..STEPS_MAX);
    let ended = TestRunner::new(config).run(&lives, |steps| {
        let mut life = Life::new();
        for (number, step) in steps.iter().enumerate() {
            let run = life.run(step);
            run.map_err(|why| TestCaseError::fail(format!("step {number}, {step:?}: {why}")))?;
        }
        life.end().map_err(TestCaseError::fail)
    });
    if let Err(error) = ended {
        panic!("{error}");
    }
}

on_both! {
    random_lives_without_failures_keep_to_the_model
}

/// The volumes go from one life into the next, unstaged.
fn random_lives_without_failures_keep_to_the_model<W: World>(world: &W) {
    let config = Config {
        cases: if is_nightly() {
            CASES_PLAIN_NIGHTLY
        } else {
            CASES_PLAIN
        },
        failure_persistence: None,
        ..Config::default()
    };
    let volumes = volumes(world);
    let call = (0..volumes.len(), verb(), prop::bool::weighted(0.1));
    let lives = prop::collection::vec(call, 1..STEPS_MAX);
    let ended = TestRunner::new(config).run(&lives, |calls| {
        let mut node = world.start();
        let mut known = vec![Known::default(); volumes.len()];
        let all_back = (0..volumes.len()).flat_map(|volume| {
            let back = [Verb::Unpublish(1), Verb::Unpublish(2), Verb::Unstage];
            back.map(|verb| (volume, verb, false))
        });
        for (volume, verb, restart) in calls.into_iter().chain(all_back) {
            if restart {
                node = world.start();
            }
            let (volume, known) = (&volumes[volume], &mut known[volume]);
            let result = volume.call(&node, verb).map_err(|failure| failure.kind);
            prop_assert_eq!(
                result,
                known.expected(volume, verb),
                "{:?} {}",
                verb,
                &volume.id
            );
            if result.is_ok() {
                *known = known.after(verb);
            }
            prop_assert_eq!(&mounted(&node.kernel, volume), known, "{:?}", verb);
        }
        prop_assert_eq!(world.left(), Vec::<String>::new());
        Ok(())
    });
    if let Err(error) = ended {
        panic!("{error}");
    }
}

/// What the kernel has mounted of a volume.
fn mounted(kernel: &impl Kernel, volume: &Volume) -> Known {
    let is_mounted = |path: &Path| matches!(kernel.look(path), Ok(Some(stat)) if stat.mount_root);
    let staging = volume.staging();
    Known {
        staged: is_mounted(&staging) || is_mounted(&staging.join("device")),
        targets: [1, 2]
            .into_iter()
            .filter(|n| is_mounted(&volume.target(*n)))
            .collect(),
        written: false,
    }
}
