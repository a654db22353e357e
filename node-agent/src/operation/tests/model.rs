//! A model that predicts the results of calls. The model contains which volumes are mounted, but no
//! details of these mounts. This module compares the results of random calls with the model on both
//! kernels; the module `lives` also injects faults.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::Path;

use belay_server::call::{Failure, Kind};
use belay_server::request::AccessMode;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::bench::{Form, Verb, Volume, World};
use super::is_nightly;
use crate::kernel::Kernel;
use crate::kernel::fake::Picture;

const CASES: u32 = 30;
const CASES_NIGHTLY: u32 = 1_000;
pub(crate) const STEPS_MAX: usize = 24;
const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Block, Form::Btrfs];
const READERS: [Form; 2] = [Form::Ext4, Form::Block];
/// The number of volumes that [`volumes_and_readers`] returns.
pub(crate) const VOLUMES: usize = FORMS.len() + READERS.len();

/// The expected state of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) staged: bool,
    pub(crate) targets: BTreeSet<u8>,
    /// Whether a pod has written to the volume.
    pub(crate) written: bool,
    /// Whether a process other than the agent has removed or truncated the volume's file.
    pub(crate) harmed: bool,
    /// Whether the volume's file was ever enlarged.
    pub(crate) grown: bool,
}

/// The expected result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Refused(Kind),
    /// The call is refused for any reason.
    RefusedSomehow,
    /// The call succeeds because there is nothing to do, or is refused with this kind of failure.
    DoneOrRefused(Kind),
    /// Either the call is refused without any change, or the call succeeds.
    Either,
}

impl Answer {
    /// Whether the result is as expected.
    pub(crate) fn is(self, result: &Result<(), Failure>) -> bool {
        match (self, result) {
            (Answer::Either, _) | (Answer::Done, Ok(())) | (Answer::RefusedSomehow, Err(_)) => true,
            (Answer::DoneOrRefused(_), Ok(())) => true,
            (Answer::Refused(kind) | Answer::DoneOrRefused(kind), Err(failure)) => {
                failure.kind == kind
            }
            (Answer::Done, Err(_)) | (Answer::Refused(_) | Answer::RefusedSomehow, Ok(())) => false,
        }
    }

    pub(crate) fn may_be_done(self) -> bool {
        matches!(
            self,
            Answer::Done | Answer::Either | Answer::DoneOrRefused(_)
        )
    }
}

impl Known {
    /// Returns the expected result of a call without faults.
    pub(crate) fn expected(&self, volume: &Volume, verb: Verb) -> Answer {
        let one_only = volume.mode == AccessMode::SingleNodeSingleWriter;
        let precondition = Answer::Refused(Kind::Precondition);
        match verb {
            Verb::Unstage if !self.targets.is_empty() => precondition,
            Verb::Publish(_) if !self.staged => precondition,
            Verb::Expand if !self.staged => Answer::Refused(Kind::NotFound),
            Verb::Stats if !self.targets.contains(&1) => Answer::Refused(Kind::NotFound),
            // The agent also reports the health of a volume that is not staged on this node.
            Verb::Health => Answer::Either,
            // NodeUnstageVolume and NodeUnpublishVolume succeed even if there is little or nothing
            // to remove.
            Verb::Unstage | Verb::Unpublish(_) => Answer::Done,
            Verb::Publish(target) if one_only && self.targets.iter().any(|t| *t != target) => {
                match self.harmed {
                    true => Answer::RefusedSomehow,
                    false => precondition,
                }
            }
            _ if self.harmed => Answer::Either,
            // A filesystem grows by multiples of its block size or group size.
            Verb::Expand
                if self.grown && volume.mode.is_read_only() && volume.form != Form::Block =>
            {
                Answer::DoneOrRefused(Kind::Precondition)
            }
            _ => Answer::Done,
        }
    }

    /// Returns the volume's mounts in the simulated kernel, without use of the agent's mount index.
    pub(crate) fn seen(&self, picture: &Picture, volume: &Volume) -> Known {
        let is_mounted = |path: &Path| {
            let line = format!("mount {}:", path.display());
            !picture.beginning_with(&[&line]).is_empty()
        };
        let staging = volume.staging();
        Known {
            staged: is_mounted(&staging) || is_mounted(&staging.join("device")),
            targets: [1, 2]
                .into_iter()
                .filter(|n| is_mounted(&volume.target(*n)))
                .collect(),
            ..self.clone()
        }
    }

    /// Returns the expected mounts after a successful call.
    pub(crate) fn after(&self, verb: Verb) -> Known {
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

/// The kind of error in a wrong request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wrong {
    /// The request contains the paths of one volume and the ID of a different volume.
    Folders(usize),
    /// The request contains a different filesystem type, or requests a raw device instead of a
    /// filesystem.
    Form(Form),
}

/// Returns the volume in a wrong request, and the expected result, which must not change anything.
/// Returns `None` if the request would be valid.
pub(crate) fn wrongly(
    volumes: &[Volume],
    known: &[Known],
    number: usize,
    wrong: Wrong,
    verb: Verb,
) -> Option<(Volume, Answer)> {
    let mut volume = volumes[number].clone();
    let own = &known[number];
    let answer = match wrong {
        Wrong::Folders(other) if other == number => return None,
        Wrong::Folders(other) => {
            volume.folder.clone_from(&volumes[other].folder);
            let there = &known[other];
            match verb {
                Verb::Stage if !own.staged && !there.staged => return None,
                Verb::Unstage if there.staged => Answer::RefusedSomehow,
                // If the volume's file was removed, the agent cannot detect that the volume is
                // staged at a different path.
                Verb::Unstage if own.staged && own.harmed => Answer::Either,
                Verb::Unstage if own.staged => Answer::RefusedSomehow,
                Verb::Unpublish(target) if there.targets.contains(&target) => {
                    Answer::RefusedSomehow
                }
                // Nothing is mounted at these paths.
                Verb::Unstage | Verb::Unpublish(_) => Answer::Done,
                Verb::Health => Answer::Either,
                Verb::Stage | Verb::Publish(_) | Verb::Expand | Verb::Stats => {
                    Answer::RefusedSomehow
                }
            }
        }
        Wrong::Form(form) => {
            let is_block = |form| form == Form::Block;
            let is_other = match verb {
                Verb::Stage => own.staged && form != volume.form,
                Verb::Publish(_) => is_block(form) != is_block(volume.form),
                _ => false,
            };
            volume.form = form;
            if !is_other {
                return None;
            }
            Answer::RefusedSomehow
        }
    };
    Some((volume, answer))
}

/// Returns a configuration that runs `cases` lifecycles. If a test fails, the seed is printed, with
/// which the same lifecycles can be repeated.
pub(crate) fn config(cases: u32) -> Config {
    let mut config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(RandomState::new().build_hasher().finish());
    }
    println!("repeat with PROPTEST_RNG_SEED={}", config.rng_seed);
    config
}

pub(crate) fn verb() -> impl Strategy<Value = Verb> {
    prop_oneof![
        3 => Just(Verb::Stage),
        2 => Just(Verb::Unstage),
        4 => (1..=2_u8).prop_map(Verb::Publish),
        3 => (1..=2_u8).prop_map(Verb::Unpublish),
        1 => Just(Verb::Expand),
        1 => Just(Verb::Stats),
        1 => Just(Verb::Health),
    ]
}

pub(crate) fn wrong() -> impl Strategy<Value = Wrong> {
    prop_oneof![
        (0..VOLUMES).prop_map(Wrong::Folders),
        prop::sample::select(&FORMS[..]).prop_map(Wrong::Form),
    ]
}

/// Returns one volume of each form. The access mode of the second volume allows only one target.
pub(crate) fn volumes(world: &impl World) -> Vec<Volume> {
    let named = (0..).zip(FORMS);
    let mut volumes: Vec<_> = named
        .map(|(number, form)| world.volume(&format!("vol-{number}"), form))
        .collect();
    volumes[1].mode = AccessMode::SingleNodeSingleWriter;
    volumes
}

/// Returns the volumes of [`volumes`], and also read-only volumes that are already formatted.
pub(crate) fn volumes_and_readers(world: &impl World) -> Vec<Volume> {
    let mut volumes = volumes(world);
    for (number, form) in (volumes.len()..).zip(READERS) {
        let mut volume = world.volume(&format!("vol-{number}"), form);
        let node = world.start();
        for verb in [Verb::Stage, Verb::Unstage] {
            volume.call(&node, verb).unwrap();
        }
        volume.mode = AccessMode::MultiNodeReaderOnly;
        volumes.push(volume);
    }
    volumes
}

/// A call, whether the agent is restarted before the call, and the error in the request.
#[derive(Clone, Debug)]
struct Step {
    volume: usize,
    verb: Verb,
    restart: bool,
    wrong: Option<Wrong>,
}

fn step() -> impl Strategy<Value = Step> {
    let restart = prop::bool::weighted(0.1);
    let wrong = prop::option::weighted(0.2, wrong());
    (0..VOLUMES, verb(), restart, wrong).prop_map(|(volume, verb, restart, wrong)| Step {
        volume,
        verb,
        restart,
        wrong,
    })
}

on_both! {
    random_lives_without_failures_keep_to_the_model
}

/// All volumes are unstaged at the end of each lifecycle, and are used again in the next lifecycle.
fn random_lives_without_failures_keep_to_the_model<W: World>(world: &W) {
    let cases = if is_nightly() { CASES_NIGHTLY } else { CASES };
    let volumes = volumes_and_readers(world);
    let lives = prop::collection::vec(step(), 1..STEPS_MAX);
    let ended = TestRunner::new(config(cases)).run(&lives, |steps| {
        let mut node = Some(world.start_swept());
        let mut known = vec![Known::default(); volumes.len()];
        let all_back = (0..volumes.len()).flat_map(|volume| {
            let back = [Verb::Unpublish(1), Verb::Unpublish(2), Verb::Unstage];
            back.map(|verb| Step {
                volume,
                verb,
                restart: false,
                wrong: None,
            })
        });
        for step in steps.into_iter().chain(all_back) {
            if step.restart {
                drop(node.take());
                node = Some(world.start_swept());
            }
            let node = node.as_ref().unwrap();
            let right = || {
                let volume = volumes[step.volume].clone();
                let expected = known[step.volume].expected(&volume, step.verb);
                Some((volume, expected))
            };
            let asked = match step.wrong {
                None => right(),
                Some(wrong) => wrongly(&volumes, &known, step.volume, wrong, step.verb),
            };
            let Some((volume, expected)) = asked else {
                continue;
            };
            let result = volume.call(node, step.verb);
            prop_assert!(expected.is(&result), "{:?}: {:?}", step, result);
            if result.is_ok() && step.wrong.is_none() {
                known[step.volume] = known[step.volume].after(step.verb);
            }
            for (volume, known) in volumes.iter().zip(&known) {
                prop_assert_eq!(&mounted(&node.kernel, volume), known, "{:?}", step);
            }
        }
        drop(node);
        prop_assert_eq!(world.left(), Vec::<String>::new());
        Ok(())
    });
    if let Err(error) = ended {
        panic!("{error}");
    }
}

/// Returns the state of a volume according to the kernel's mounts.
fn mounted(kernel: &impl Kernel, volume: &Volume) -> Known {
    let is_mounted = |path: &Path| matches!(kernel.look(path), Ok(Some(stat)) if stat.mount_root);
    let staging = volume.staging();
    Known {
        staged: is_mounted(&staging) || is_mounted(&staging.join("device")),
        targets: [1, 2]
            .into_iter()
            .filter(|n| is_mounted(&volume.target(*n)))
            .collect(),
        ..Known::default()
    }
}
