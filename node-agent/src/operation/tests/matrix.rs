//! Tests each operation with a failure at each system call, with a crash at each system call, and
//! with a power loss after each system call.
//!
//! After a failure, a repetition of the call must succeed, and the call that undoes it must succeed
//! as well. If NodeStageVolume or NodePublishVolume reports that nothing was changed, nothing may
//! be left, because the kubelet may forget the volume. After a power loss, nothing is mounted, so
//! the kubelet stages the volume again (module `power`).

use std::panic::{AssertUnwindSafe, catch_unwind};

use belay_server::call::{Certainty, Failure, Kind};
use belay_server::request::AccessMode;

use super::bench::{Form, GROWN_BYTES, MIB, PASSPHRASE, Verb, Volume, World, hear};
use super::is_nightly;
use super::power::{SURVIVE, lose_power};
use super::simulated::{Media, Simulated};
use crate::kernel::fake::{Call, Damage, Died, Fake, Fault, Holds, Picture, Plug};
use crate::operation::Node;

const ERRNOS: [&str; 6] = ["EIO", "EBUSY", "ENOENT", "EPERM", "ENOSPC", "EINVAL"];
/// Maximum number of attempts after which a call of the kubelet must succeed.
const ATTEMPTS_MAX: usize = 3;
const DATA: &[u8] = b"what a pod has written";
// No other code writes at this offset.
const DATA_AT: u64 = 50 * MIB;

/// An event before the call under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Call(Verb),
    /// A call during which the agent crashes right after the first system call with this name.
    Died(Verb, &'static str),
    /// The agent is restarted, so that its mount index contains only the results of the startup
    /// scan.
    Restart,
    /// The controller enlarges the file.
    Grow,
    /// A pod writes data.
    Data,
    /// The Secret has another passphrase, and the previous one.
    Passphrase,
    /// From now on, the volume is attached read-only.
    Reader,
    /// The ext4 has errors, and its superblock records that it has errors.
    Damaged,
    /// The cloud detaches the disk while the volume is staged.
    Unplug,
    /// The cloud attaches the disk again, and the agent handles the uevent.
    Replug,
    /// A second agent binds the staged device to the staging path as well.
    Stack,
}

/// A call under test, and the situation in which it is made.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) media: Media,
    name: &'static str,
    form: Form,
    is_encrypted: bool,
    pub(super) before: &'static [Before],
    pub(super) verb: Verb,
    /// The calls that undo the operation.
    pub(super) undo: &'static [Verb],
}

const STAGED: Before = Before::Call(Verb::Stage);
const PUBLISHED: Before = Before::Call(Verb::Publish(1));
const UNSTAGED: Before = Before::Call(Verb::Unstage);
const UNPUBLISHED: Before = Before::Call(Verb::Unpublish(1));
const RESTART: Before = Before::Restart;
const GROW: Before = Before::Grow;
const DATA_IN: Before = Before::Data;
const READER: Before = Before::Reader;
const DAMAGED: Before = Before::Damaged;
/// An unstaged volume with a filesystem and data.
const FORMATTED: &[Before] = &[STAGED, DATA_IN, UNSTAGED];
const FORMATTED_GROWN: &[Before] = &[STAGED, DATA_IN, UNSTAGED, GROW];
const FORMATTED_READ: &[Before] = &[STAGED, DATA_IN, UNSTAGED, READER];
/// An unstaged volume in whose filesystem the kernel has found errors.
const FORMATTED_DAMAGED: &[Before] = &[STAGED, DATA_IN, UNSTAGED, DAMAGED];
const DAMAGED_READ: &[Before] = &[STAGED, DATA_IN, UNSTAGED, DAMAGED, READER];
const HALF_REPAIRED: &[Before] = &[
    STAGED,
    DATA_IN,
    UNSTAGED,
    DAMAGED,
    Before::Died(Verb::Stage, "e2fsck write"),
];
const READ: &[Before] = &[STAGED, DATA_IN, UNSTAGED, READER, STAGED, PUBLISHED];
/// A device that was bound for writing by an agent that then crashed.
const BOUND_READ: &[Before] = &[Before::Died(Verb::Stage, "LOOP_CONFIGURE"), DATA_IN, READER];
const STAGED_RESTARTED: &[Before] = &[STAGED, DATA_IN, RESTART];
const IN_USE: &[Before] = &[STAGED, DATA_IN, PUBLISHED];
const IN_USE_RESTARTED: &[Before] = &[STAGED, DATA_IN, PUBLISHED, RESTART];
const IN_USE_GROWN: &[Before] = &[STAGED, DATA_IN, PUBLISHED, GROW];
const BOUND_ONLY: &[Before] = &[Before::Died(Verb::Stage, "LOOP_CONFIGURE")];
/// The time of the machine's clock in cases that depend on the time, in seconds since 1970.
const NOW: u64 = 1_800_000_000;
const HALF_FORMATTED: &[Before] = &[Before::Died(Verb::Stage, "mkfs write")];
const HALF_ENCRYPTED: &[Before] = &[Before::Died(Verb::Stage, "cryptsetup write")];
const NEW_PASSPHRASE: &[Before] = &[STAGED, DATA_IN, UNSTAGED, Before::Passphrase];
const HALF_REPLACED: &[Before] = &[
    STAGED,
    DATA_IN,
    UNSTAGED,
    Before::Passphrase,
    Before::Died(Verb::Stage, "cryptsetup write"),
];
/// A killed agent has opened the encrypted device, but not used it.
const HALF_OPENED: &[Before] = &[Before::Died(Verb::Stage, "DM_TABLE_LOAD")];
const HALF_PUBLISHED: &[Before] = &[STAGED, DATA_IN, Before::Died(Verb::Publish(1), "mkdir")];
const HALF_UNPUBLISHED: &[Before] = &[
    STAGED,
    PUBLISHED,
    Before::Died(Verb::Unpublish(1), "umount2"),
];
const HALF_UNSTAGED: &[Before] = &[STAGED, DATA_IN, Before::Died(Verb::Unstage, "umount2")];
const UNPLUG: Before = Before::Unplug;
const UNPLUGGED: &[Before] = &[STAGED, DATA_IN, PUBLISHED, UNPUBLISHED, UNPLUG];
const UNPLUGGED_RESTARTED: &[Before] = &[STAGED, DATA_IN, RESTART, UNPLUG];
const LOST: &[Before] = &[STAGED, DATA_IN, UNPLUG, RESTART];
const IN_USE_LOST: &[Before] = &[STAGED, DATA_IN, PUBLISHED, UNPLUG, RESTART];
const BACK: &[Before] = &[STAGED, DATA_IN, UNPLUG, Before::Replug];
const BACK_RESTARTED: &[Before] = &[STAGED, DATA_IN, UNPLUG, Before::Replug, RESTART];
const STACKED: &[Before] = &[STAGED, DATA_IN, Before::Stack, UNPLUG];
const STACKED_RESTARTED: &[Before] = &[STAGED, DATA_IN, Before::Stack, UNPLUG, RESTART];
const ALL_BACK: &[Verb] = &[Verb::Unpublish(2), Verb::Unpublish(1), Verb::Unstage];

const fn case(
    name: &'static str,
    form: Form,
    before: &'static [Before],
    verb: Verb,
    undo: &'static [Verb],
) -> Case {
    Case {
        media: Media::Files,
        name,
        form,
        is_encrypted: false,
        before,
        verb,
        undo,
    }
}

/// Returns a case of an encrypted volume.
const fn luks(
    name: &'static str,
    form: Form,
    before: &'static [Before],
    verb: Verb,
    undo: &'static [Verb],
) -> Case {
    Case {
        is_encrypted: true,
        ..case(name, form, before, verb, undo)
    }
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    case("stage, blank", Form::Ext4, &[], Verb::Stage, &[Verb::Unstage]),
    case("stage, blank", Form::Xfs, &[], Verb::Stage, &[Verb::Unstage]),
    case("stage, blank", Form::Btrfs, &[], Verb::Stage, &[Verb::Unstage]),
    case("stage", Form::Block, &[], Verb::Stage, &[Verb::Unstage]),
    case("stage, formatted", Form::Ext4, FORMATTED, Verb::Stage, &[Verb::Unstage]),
    case("stage, formatted", Form::Xfs, FORMATTED, Verb::Stage, &[Verb::Unstage]),
    case("stage, formatted", Form::Btrfs, FORMATTED, Verb::Stage, &[Verb::Unstage]),
    case("stage, with data", Form::Block, &[DATA_IN], Verb::Stage, &[Verb::Unstage]),
    case("stage, grown", Form::Ext4, FORMATTED_GROWN, Verb::Stage, &[Verb::Unstage]),
    case("stage, grown", Form::Xfs, FORMATTED_GROWN, Verb::Stage, &[Verb::Unstage]),
    case("stage, grown", Form::Btrfs, FORMATTED_GROWN, Verb::Stage, &[Verb::Unstage]),
    case("stage, damaged", Form::Ext4, FORMATTED_DAMAGED, Verb::Stage, &[Verb::Unstage]),
    case("stage, half repaired", Form::Ext4, HALF_REPAIRED, Verb::Stage, &[Verb::Unstage]),
    case("stage, damaged, reader", Form::Ext4, DAMAGED_READ, Verb::Stage, &[Verb::Unstage]),
    case("stage again", Form::Ext4, STAGED_RESTARTED, Verb::Stage, &[Verb::Unstage]),
    case("stage again", Form::Btrfs, STAGED_RESTARTED, Verb::Stage, &[Verb::Unstage]),
    case("stage again, grown", Form::Ext4, &[STAGED, DATA_IN, GROW], Verb::Stage, &[Verb::Unstage]),
    case("stage again", Form::Block, STAGED_RESTARTED, Verb::Stage, &[Verb::Unstage]),
    case("publish", Form::Ext4, &[STAGED, DATA_IN], Verb::Publish(1), ALL_BACK),
    case("publish", Form::Btrfs, &[STAGED, DATA_IN], Verb::Publish(1), ALL_BACK),
    case("publish", Form::Block, &[STAGED, DATA_IN], Verb::Publish(1), ALL_BACK),
    case("publish, restarted", Form::Ext4, STAGED_RESTARTED, Verb::Publish(1), ALL_BACK),
    case("publish, restarted", Form::Btrfs, STAGED_RESTARTED, Verb::Publish(1), ALL_BACK),
    case("publish, restarted", Form::Block, STAGED_RESTARTED, Verb::Publish(1), ALL_BACK),
    case("publish, second", Form::Ext4, IN_USE, Verb::Publish(2), ALL_BACK),
    case("publish, second", Form::Btrfs, IN_USE, Verb::Publish(2), ALL_BACK),
    case("publish, second", Form::Block, IN_USE, Verb::Publish(2), ALL_BACK),
    case("publish again", Form::Ext4, IN_USE, Verb::Publish(1), ALL_BACK),
    case("publish again", Form::Btrfs, IN_USE, Verb::Publish(1), ALL_BACK),
    case("unpublish", Form::Ext4, IN_USE, Verb::Unpublish(1), ALL_BACK),
    case("unpublish", Form::Btrfs, IN_USE, Verb::Unpublish(1), ALL_BACK),
    case("unpublish", Form::Block, IN_USE, Verb::Unpublish(1), ALL_BACK),
    case("unpublish, restarted", Form::Ext4, IN_USE_RESTARTED, Verb::Unpublish(1), ALL_BACK),
    case("unpublish, restarted", Form::Btrfs, IN_USE_RESTARTED, Verb::Unpublish(1), ALL_BACK),
    case("unpublish, restarted", Form::Block, IN_USE_RESTARTED, Verb::Unpublish(1), ALL_BACK),
    case("unstage", Form::Ext4, &[STAGED, DATA_IN], Verb::Unstage, ALL_BACK),
    case("unstage", Form::Xfs, &[STAGED, DATA_IN], Verb::Unstage, ALL_BACK),
    case("unstage", Form::Btrfs, &[STAGED, DATA_IN], Verb::Unstage, ALL_BACK),
    case("unstage", Form::Block, &[STAGED, DATA_IN], Verb::Unstage, ALL_BACK),
    case("unstage, restarted", Form::Ext4, STAGED_RESTARTED, Verb::Unstage, ALL_BACK),
    case("unstage, restarted", Form::Btrfs, STAGED_RESTARTED, Verb::Unstage, ALL_BACK),
    case("unstage, restarted", Form::Block, STAGED_RESTARTED, Verb::Unstage, ALL_BACK),
    case("unstage of nothing", Form::Ext4, &[], Verb::Unstage, ALL_BACK),
    case("stage, bound only", Form::Block, BOUND_ONLY, Verb::Stage, &[Verb::Unstage]),
    case("unstage, bound only", Form::Block, BOUND_ONLY, Verb::Unstage, &[Verb::Unstage]),
    case("stage, half formatted", Form::Ext4, HALF_FORMATTED, Verb::Stage, &[Verb::Unstage]),
    case("stage, half formatted", Form::Xfs, HALF_FORMATTED, Verb::Stage, &[Verb::Unstage]),
    case("publish, half done", Form::Ext4, HALF_PUBLISHED, Verb::Publish(1), ALL_BACK),
    case("unpublish, half done", Form::Ext4, HALF_UNPUBLISHED, Verb::Unpublish(1), ALL_BACK),
    case("stage, half unstaged", Form::Ext4, HALF_UNSTAGED, Verb::Stage, &[Verb::Unstage]),
    case("stage, half unstaged", Form::Block, HALF_UNSTAGED, Verb::Stage, &[Verb::Unstage]),
    case("unstage, half done", Form::Block, HALF_UNSTAGED, Verb::Unstage, &[Verb::Unstage]),
    case("stage, reader", Form::Ext4, FORMATTED_READ, Verb::Stage, &[Verb::Unstage]),
    case("stage, reader", Form::Xfs, FORMATTED_READ, Verb::Stage, &[Verb::Unstage]),
    case("stage, reader", Form::Btrfs, FORMATTED_READ, Verb::Stage, &[Verb::Unstage]),
    case("stage, reader", Form::Block, &[DATA_IN, READER], Verb::Stage, &[Verb::Unstage]),
    case("stage, bound to write", Form::Block, BOUND_READ, Verb::Stage, &[Verb::Unstage]),
    case("publish, reader", Form::Ext4, READ, Verb::Publish(2), ALL_BACK),
    case("publish, reader", Form::Block, READ, Verb::Publish(2), ALL_BACK),
    case("unpublish, reader", Form::Ext4, READ, Verb::Unpublish(1), ALL_BACK),
    case("unstage, reader", Form::Block, &[DATA_IN, READER, STAGED], Verb::Unstage, ALL_BACK),
    case("expand", Form::Ext4, IN_USE_GROWN, Verb::Expand, ALL_BACK),
    case("expand", Form::Xfs, IN_USE_GROWN, Verb::Expand, ALL_BACK),
    case("expand", Form::Btrfs, IN_USE_GROWN, Verb::Expand, ALL_BACK),
    case("expand", Form::Block, IN_USE_GROWN, Verb::Expand, ALL_BACK),
    case("stats", Form::Ext4, IN_USE, Verb::Stats, ALL_BACK),
    case("stats", Form::Btrfs, IN_USE, Verb::Stats, ALL_BACK),
    case("stats", Form::Block, IN_USE, Verb::Stats, ALL_BACK),
    case("health", Form::Ext4, IN_USE, Verb::Health, ALL_BACK),
    case("health", Form::Btrfs, IN_USE_RESTARTED, Verb::Health, ALL_BACK),
    case("health", Form::Block, IN_USE, Verb::Health, ALL_BACK),
    luks("stage, blank", Form::Ext4, &[], Verb::Stage, &[Verb::Unstage]),
    luks("stage, half a header", Form::Block, HALF_ENCRYPTED, Verb::Stage, &[Verb::Unstage]),
    luks("stage, header only", Form::Xfs, HALF_OPENED, Verb::Stage, &[Verb::Unstage]),
    luks("stage, half formatted", Form::Ext4, HALF_FORMATTED, Verb::Stage, &[Verb::Unstage]),
    luks("stage, formatted", Form::Btrfs, FORMATTED, Verb::Stage, &[Verb::Unstage]),
    luks("stage, with data", Form::Block, FORMATTED, Verb::Stage, &[Verb::Unstage]),
    luks("stage, grown", Form::Ext4, FORMATTED_GROWN, Verb::Stage, &[Verb::Unstage]),
    luks("stage, reader", Form::Ext4, FORMATTED_READ, Verb::Stage, &[Verb::Unstage]),
    luks("stage, half unstaged", Form::Ext4, HALF_UNSTAGED, Verb::Stage, &[Verb::Unstage]),
    luks("stage, new passphrase", Form::Ext4, NEW_PASSPHRASE, Verb::Stage, &[Verb::Unstage]),
    luks("stage, new passphrase", Form::Block, HALF_REPLACED, Verb::Stage, &[Verb::Unstage]),
    luks("stage again", Form::Ext4, STAGED_RESTARTED, Verb::Stage, &[Verb::Unstage]),
    luks("stage again", Form::Block, STAGED_RESTARTED, Verb::Stage, &[Verb::Unstage]),
    luks("publish", Form::Block, &[STAGED, DATA_IN], Verb::Publish(1), ALL_BACK),
    luks("expand", Form::Ext4, IN_USE_GROWN, Verb::Expand, ALL_BACK),
    luks("expand", Form::Block, IN_USE_GROWN, Verb::Expand, ALL_BACK),
    luks("unstage", Form::Ext4, &[STAGED, DATA_IN], Verb::Unstage, ALL_BACK),
    luks("unstage, restarted", Form::Block, STAGED_RESTARTED, Verb::Unstage, ALL_BACK),
    luks("unstage, half done", Form::Ext4, HALF_UNSTAGED, Verb::Unstage, &[Verb::Unstage]),
    luks("unstage, mapper only", Form::Ext4, HALF_OPENED, Verb::Unstage, &[Verb::Unstage]),
];

/// Cases of volumes whose disk was removed.
#[rustfmt::skip]
const OF_DISKS: &[Case] = &[
    case("unstage, disk removed", Form::Ext4, UNPLUGGED_RESTARTED, Verb::Unstage, ALL_BACK),
    case("unstage, disk removed", Form::Btrfs, UNPLUGGED_RESTARTED, Verb::Unstage, ALL_BACK),
    case("unstage, disk removed", Form::Ext4, LOST, Verb::Unstage, ALL_BACK),
    case("unstage, disk removed", Form::Btrfs, LOST, Verb::Unstage, ALL_BACK),
    case("unstage, disk removed", Form::Block, UNPLUGGED, Verb::Unstage, ALL_BACK),
    case("unstage, disk removed", Form::Block, UNPLUGGED_RESTARTED, Verb::Unstage, ALL_BACK),
    case("unstage, disk removed", Form::Block, LOST, Verb::Unstage, ALL_BACK),
    case("unstage, stacked", Form::Block, STACKED, Verb::Unstage, ALL_BACK),
    case("unstage, stacked", Form::Block, STACKED_RESTARTED, Verb::Unstage, ALL_BACK),
    case("stage, disk back", Form::Ext4, BACK, Verb::Stage, ALL_BACK),
    case("stage, disk back", Form::Xfs, BACK_RESTARTED, Verb::Stage, ALL_BACK),
    case("stage, disk back", Form::Btrfs, BACK, Verb::Stage, ALL_BACK),
    case("stage, disk back", Form::Btrfs, BACK_RESTARTED, Verb::Stage, ALL_BACK),
    case("stage, disk back", Form::Block, BACK, Verb::Stage, ALL_BACK),
    case("stage, disk back", Form::Block, BACK_RESTARTED, Verb::Stage, ALL_BACK),
    case("unpublish, disk removed", Form::Btrfs, IN_USE_LOST, Verb::Unpublish(1), ALL_BACK),
    case("unpublish, disk removed", Form::Block, IN_USE_LOST, Verb::Unpublish(1), ALL_BACK),
    luks("unstage, disk removed", Form::Ext4, LOST, Verb::Unstage, ALL_BACK),
    luks("unstage, disk removed", Form::Block, LOST, Verb::Unstage, ALL_BACK),
    luks("stage, disk back", Form::Ext4, BACK, Verb::Stage, ALL_BACK),
    luks("stage, disk back", Form::Block, BACK_RESTARTED, Verb::Stage, ALL_BACK),
];

/// Returns all cases for files and for disks. Cases that require a bound loop device exist only for
/// files.
fn cases() -> Vec<Case> {
    let of_both = CASES.iter().filter(|case| {
        let is_of_loop = |before: &Before| matches!(before, Before::Died(_, "LOOP_CONFIGURE"));
        !case.before.iter().any(is_of_loop)
    });
    let of_disks = of_both.chain(OF_DISKS).map(|case| Case {
        media: Media::Disks,
        ..*case
    });
    CASES.iter().copied().chain(of_disks).collect()
}

fn cases_named(name: &str) -> Vec<Case> {
    let mut cases = cases();
    cases.retain(|case| case.name == name);
    cases
}

/// A machine in the situation of a case.
pub(super) struct Run<'a> {
    pub(super) case: &'a Case,
    pub(super) world: Simulated,
    pub(super) volume: Volume,
    pub(super) node: Node<Fake>,
}

/// The visible state of the machine, and the content of the volume's file.
type View = (Picture, Holds);

impl Case {
    /// Returns the name of the case in the table.
    fn title(&self) -> String {
        let suffix = if self.is_encrypted { ", luks" } else { "" };
        format!("{}{suffix}", self.name)
    }

    /// Whether the volume has no filesystem yet.
    fn is_format(&self) -> bool {
        self.is_encrypted || self.before == HALF_FORMATTED || self.name == "stage, blank"
    }
}

impl<'a> Run<'a> {
    pub(super) fn new(case: &'a Case) -> Run<'a> {
        let world = Simulated::of(case.media);
        let mut volume = match case.before.contains(&UNPLUG) {
            true => world.volume_of_kubelet("vol", case.form),
            false => world.volume("vol", case.form),
        };
        if case.is_encrypted {
            volume = volume.encrypted();
        }
        if case.media == Media::Disks && case.is_format() {
            world.machine.discard(&volume.file());
            world.machine.set_clock(NOW);
            volume.attached_at = Some(NOW);
        }
        let mut node = world.start();
        for before in case.before {
            match before {
                Before::Call(verb) => volume.call(&node, *verb).unwrap(),
                Before::Died(verb, call) => {
                    world.machine.begin(Some(Fault::DieAfter(call)));
                    let died = catch_unwind(AssertUnwindSafe(|| volume.call(&node, *verb)));
                    assert!(died.is_err(), "{verb:?} of {} makes no {call}", case.name);
                    node = world.start();
                }
                Before::Restart => node = world.start(),
                Before::Grow => world.grow(&volume, GROWN_BYTES),
                Before::Reader => volume.mode = AccessMode::MultiNodeReaderOnly,
                Before::Passphrase => volume.replace_passphrase(),
                Before::Damaged => world.machine.damage(&volume.file(), Damage::Slight),
                Before::Data => world.write_file(&volume.file(), DATA_AT, DATA),
                Before::Unplug => world.machine.unplug(&volume.file()),
                Before::Replug => {
                    let plug = Plug::virtio(&volume.file(), &volume.id);
                    world.machine.plug(plug);
                    hear(&node).unwrap();
                }
                Before::Stack => {
                    let staged = volume.staging_mount();
                    world.machine.stack(&staged, &staged);
                }
            }
        }
        Run {
            case,
            world,
            volume,
            node,
        }
    }

    /// Makes the call under test with this fault. The returned result is `None` if the process
    /// crashed.
    pub(super) fn go(&self, fault: Option<Fault>) -> (Option<Result<(), Failure>>, Vec<Call>) {
        self.world.machine.begin(fault);
        let call = || self.volume.call(&self.node, self.case.verb);
        let ended = catch_unwind(AssertUnwindSafe(call));
        let calls = self.world.machine.end();
        let has_passphrase = |call: &Call| call.object.contains(PASSPHRASE);
        assert!(!calls.iter().any(has_passphrase), "{calls:?}");
        if let Ok(Err(failure)) = &ended {
            assert!(!failure.message.contains(PASSPHRASE), "{failure}");
        }
        match ended {
            Ok(result) => (Some(result), calls),
            Err(payload) if payload.is::<Died>() => (None, calls),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    pub(super) fn restart(self) -> Run<'a> {
        let Run {
            case,
            world,
            volume,
            node,
        } = self;
        drop(node);
        let node = world.start();
        Run {
            case,
            world,
            volume,
            node,
        }
    }

    fn view(&self) -> View {
        let machine = &self.world.machine;
        (machine.picture(), machine.holds(&self.volume.file()))
    }

    /// Repeats the call until it succeeds.
    pub(super) fn repeat(&self, verb: Verb) -> Result<(), String> {
        let mut last = None;
        for _ in 0..ATTEMPTS_MAX {
            match self.volume.call(&self.node, verb) {
                Ok(()) => return Ok(()),
                Err(failure) => last = Some(failure),
            }
        }
        Err(format!("{verb:?} is refused forever: {}", last.unwrap()))
    }

    pub(super) fn undo(&self) -> Result<(), String> {
        self.case
            .undo
            .iter()
            .try_for_each(|verb| self.repeat(*verb))
    }

    /// Checks the invariants that hold in each case.
    pub(super) fn check(&self) -> Result<(), String> {
        let violations = self.world.machine.violations();
        if !violations.is_empty() {
            return Err(violations.join("; "));
        }
        let read = |at| {
            self.world
                .machine
                .read_file(&self.volume.file(), at, DATA.len())
        };
        if self.case.before.contains(&DATA_IN) && read(DATA_AT) != DATA {
            return Err("the pod's data is lost".to_owned());
        }
        Ok(())
    }
}

/// The states of the machine before and after a run without a fault.
pub(super) struct Good {
    before: View,
    after: View,
    undone: Picture,
    calls: Vec<Call>,
}

impl Good {
    fn of(case: &Case) -> Good {
        let run = Run::new(case);
        let before = run.view();
        let (result, calls) = run.go(None);
        result.unwrap().unwrap();
        let after = run.view();
        run.undo().unwrap();
        run.check().unwrap();
        assert_eq!(run.world.left(), Vec::<String>::new(), "{}", case.name);
        assert!(!run.world.machine.has_text(PASSPHRASE), "{}", case.name);
        let undone = run.view().0;
        Good {
            before,
            after,
            undone,
            calls,
        }
    }

    pub(super) fn is_after(&self, run: &Run<'_>) -> Result<(), String> {
        let (picture, holds) = run.view();
        if picture != self.after.0 {
            return Err(format!(
                "the state after success differs:\n{}",
                picture.difference(&self.after.0)
            ));
        }
        match (&holds, &self.after.1) {
            // The format was repeated, which is allowed because the first filesystem was never
            // used.
            (Holds::Filesystem(fs, bytes, _), Holds::Filesystem(fs2, bytes2, _))
                if (fs, bytes) == (fs2, bytes2) =>
            {
                Ok(())
            }
            (holds, wanted) if holds == wanted => Ok(()),
            (holds, wanted) => Err(format!("the file contains {holds:?}, not {wanted:?}")),
        }
    }
}

/// The numbers of runs of one case, by result.
#[derive(Default)]
pub(super) struct Row {
    /// Number of calls that succeeded despite the fault.
    done: usize,
    /// Number of calls that failed without changing anything.
    as_before: usize,
    /// Number of calls that failed after some changes, which the next call completed.
    finished_later: usize,
    /// Number of calls during which the agent crashed; the next call after a restart succeeded.
    died: usize,
    /// Number of power losses after which the calls of the kubelet succeeded.
    pub(super) off: usize,
}

/// System calls that enlarge a filesystem.
const GROWS: [&str; 3] = [
    "EXT4_IOC_RESIZE_FS",
    "XFS_IOC_FSGROWFSDATA",
    "BTRFS_IOC_RESIZE",
];

/// Lets a system call fail, and then makes either the same call again, or the call that undoes it.
fn fail(case: &Case, good: &Good, fault: Fault, row: &mut Row) -> Result<(), String> {
    let run = Run::new(case);
    let (result, _) = run.go(Some(fault));
    let result = result.ok_or("the process crashed")?;
    run.check()?;
    let picture = run.view().0;
    // The failed call may have removed what an earlier crash had left.
    let left = match case.name.contains(" again") {
        // If the call is a repetition, even the mount of the first call must not be left, because
        // the kubelet forgets the volume after a final error.
        true => picture.beyond(&good.undone),
        false => picture.beyond(&good.before.0),
    };
    let comes_up = matches!(case.verb, Verb::Stage | Verb::Publish(_));
    match result {
        // Only a failure to grow the filesystem may be ignored, because the next call grows the
        // filesystem.
        Ok(()) if good.is_after(&run).is_err() && is_resize(good, fault) => row.done += 1,
        Ok(()) => {
            good.is_after(&run)?;
            row.done += 1;
        }
        Err(failure)
            if comes_up && !left.is_empty() && failure.certainty != Certainty::MayBeRunning =>
        {
            return Err(format!(
                "\"{failure}\" reports that nothing is left, but there is:\n{}",
                left.join("\n")
            ));
        }
        Err(_) if picture == good.before.0 || comes_up && left.is_empty() => row.as_before += 1,
        Err(_) => row.finished_later += 1,
    }
    settle(&run, good)?;
    let run = Run::new(case);
    drop(run.go(Some(fault)));
    take_back(&run, good)
}

fn is_resize(good: &Good, fault: Fault) -> bool {
    let (Fault::Fail(at, _) | Fault::FailFrom(at, _)) = fault else {
        return false;
    };
    let is_growth = |call: &Call| GROWS.contains(&call.name);
    good.calls
        .get(at - 1..)
        .is_some_and(|calls| calls.iter().any(is_growth))
}

/// Lets the agent crash after a system call, restarts it, and then makes the same call, or the call
/// that undoes it.
fn die(case: &Case, good: &Good, fault: Fault, row: &mut Row) -> Result<(), String> {
    let dead = || {
        let run = Run::new(case);
        match run.go(Some(fault)).0 {
            None => Ok(run.restart()),
            Some(_) => Err("the process did not crash".to_owned()),
        }
    };
    settle(&dead()?, good)?;
    take_back(&dead()?, good)?;
    row.died += 1;
    Ok(())
}

fn settle(run: &Run<'_>, good: &Good) -> Result<(), String> {
    run.repeat(run.case.verb)?;
    run.check()?;
    good.is_after(run)
}

pub(super) fn take_back(run: &Run<'_>, good: &Good) -> Result<(), String> {
    run.undo()?;
    run.check()?;
    let picture = run.view().0;
    match picture == good.undone {
        true => Ok(()),
        false => Err(format!(
            "after {:?} something is left:\n{}",
            run.case.undo,
            picture.difference(&good.undone)
        )),
    }
}

#[test]
#[ignore = "takes minutes: make matrices"]
fn no_failure_death_or_power_loss_at_any_call_leaves_a_hole() {
    let mut holes = Vec::new();
    let mut table = vec![format!(
        "{:<5} {:<28} {:<5} {:>5} {:>6} {:>9} {:>14} {:>6} {:>9}",
        "on",
        "operation",
        "form",
        "calls",
        "done",
        "as before",
        "finished later",
        "deaths",
        "power off"
    )];
    for case in &cases() {
        let good = Good::of(case);
        let mut row = Row::default();
        for (at, call) in (1..).zip(&good.calls) {
            let once = ERRNOS.map(|errno| Fault::Fail(at, errno));
            let from_here = ["EIO", "EBUSY"].map(|errno| Fault::FailFrom(at, errno));
            let faults = once.into_iter().chain(from_here).chain([Fault::Die(at)]);
            // After a power loss, neither the removed disk nor its mounts exist.
            let losses = SURVIVE.iter().filter(|_| !case.before.contains(&UNPLUG));
            let faults = faults.chain(losses.map(|part| Fault::PowerOff(at, *part)));
            for fault in faults {
                let outcome = match fault {
                    Fault::Die(_) => die(case, &good, fault, &mut row),
                    Fault::PowerOff(..) => lose_power(case, &good, fault, &mut row),
                    _ => fail(case, &good, fault, &mut row),
                };
                if let Err(why) = outcome {
                    let (name, form, media) = (case.title(), case.form, case.media);
                    let (call, object) = (call.name, &call.object);
                    holes.push(format!(
                        "{media:?}: {name} {form:?}, {fault:?} {call} {object}: {why}"
                    ));
                }
            }
        }
        table.push(format!(
            "{:<5} {:<28} {:<5} {:>5} {:>6} {:>9} {:>14} {:>6} {:>9}",
            format!("{:?}", case.media),
            case.title(),
            format!("{:?}", case.form),
            good.calls.len(),
            row.done,
            row.as_before,
            row.finished_later,
            row.died,
            row.off
        ));
    }
    println!("{}", table.join("\n"));
    assert!(
        holes.is_empty(),
        "{} holes:\n{}",
        holes.len(),
        holes.join("\n")
    );
}

/// All data of the pod is accessible although the filesystem has its old size.
#[test]
fn a_growth_that_the_kernel_refuses_does_not_fail_a_stage() {
    for case in &cases_named("stage, grown") {
        let good = Good::of(case);
        let at = good
            .calls
            .iter()
            .position(|call| GROWS.contains(&call.name));
        for errno in ERRNOS {
            let run = Run::new(case);
            let (result, _) = run.go(Some(Fault::Fail(at.unwrap() + 1, errno)));
            assert!(
                matches!(result, Some(Ok(()))),
                "{:?}: {result:?}",
                case.form
            );
            run.check().unwrap();
        }
    }
}

/// In the nightly run, the second crash occurs at each system call of the recovery; otherwise, the
/// second crash occurs at only one of these system calls.
#[test]
#[ignore = "takes minutes: make matrices"]
fn death_while_recovering_from_death_leaves_no_hole() {
    for case in &cases() {
        let good = Good::of(case);
        let last = good.calls.len();
        for first in 1..=last {
            let some = 1 + first * 7 % last;
            let seconds = if is_nightly() { 1..=last } else { some..=some };
            for second in seconds {
                let deaths = [first, second].map(Fault::Die);
                let recovered = || {
                    let mut run = Run::new(case);
                    for death in deaths {
                        // If the recovery makes fewer system calls than this, no crash occurs and
                        // the recovery succeeds.
                        run = match run.go(Some(death)).0 {
                            None => run.restart(),
                            Some(_) => run,
                        };
                    }
                    run
                };
                let outcome =
                    settle(&recovered(), &good).and_then(|()| take_back(&recovered(), &good));
                if let Err(why) = outcome {
                    let (media, name, form) = (case.media, case.title(), case.form);
                    panic!("{media:?}: {name} {form:?}, {deaths:?}: {why}");
                }
            }
        }
    }
}

/// System calls that never block on a disk, according to the documentation of the trait. A lock may
/// be held during these system calls.
const QUICK: [&str; 5] = [
    "statx",
    "open O_PATH",
    "open_tree",
    "mount_setattr",
    "move_mount",
];

/// A hung call must not delay calls for other volumes. There is one exception: if two volumes have
/// received the same free loop device, both have the device open for a moment, and only one volume
/// gets it. If the open by the other volume hangs, unstaging the first volume is delayed, and the
/// error says so.
#[test]
fn a_call_that_hangs_holds_up_no_other_volume() {
    let life = [
        Verb::Stage,
        Verb::Publish(1),
        Verb::Stats,
        Verb::Unpublish(1),
    ];
    for case in &cases() {
        let good = Good::of(case);
        for (at, call) in (1..).zip(&good.calls) {
            if QUICK.contains(&call.name) {
                continue;
            }
            let run = Run::new(case);
            let machine = &run.world.machine;
            let other = run.world.volume("other", Form::Ext4);
            machine.begin(Some(Fault::Hang(at)));
            let (hung, lived, unstaged) = std::thread::scope(|scope| {
                let hung = scope.spawn(|| run.volume.call(&run.node, case.verb));
                machine.wait_for_hang();
                let mut calls = life.iter();
                let lived = calls.try_for_each(|verb| other.call(&run.node, *verb));
                let unstaged = other.call(&run.node, Verb::Unstage);
                machine.let_go();
                (hung.join().unwrap(), lived, unstaged)
            });
            let (media, name, form) = (case.media, case.title(), case.form);
            let what = format!("{media:?}: {name} {form:?}, call {at}");
            assert!(hung.is_ok() && lived.is_ok(), "{what}: {hung:?}, {lived:?}");
            let may_wait = call.object.starts_with("/dev/loop");
            match unstaged {
                Err(failure) if failure.kind == Kind::Busy && may_wait => {}
                unstaged => assert!(unstaged.is_ok(), "{what}: {unstaged:?}"),
            }
            other.call(&run.node, Verb::Unstage).unwrap();
            run.check().unwrap();
            run.undo().unwrap();
            assert_eq!(run.world.left(), Vec::<String>::new(), "{what}");
        }
    }
}
