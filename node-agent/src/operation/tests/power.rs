//! Tests of a power loss after any system call. Each unsynced change may be lost or survive,
//! independently of other changes. After the reboot, the kubelet makes its calls again. All calls
//! must succeed, a volume that was in use must not be formatted, and synced data must be intact.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use belay_contract::drivers::local::{IS_NEW, NEW};
use belay_server::call::Kind;

use super::bench::{BYTES, Form, GROWN_BYTES, MIB, Verb, Volume, World};
use super::is_nightly;
use super::matrix::{Before, Case, Good, Row, Run, take_back};
use super::simulated::{Media, Simulated};
use crate::device::loop_path;
use crate::kernel::fake::{Call, Died, Fake, Fault, Holds, Survives};
use crate::kernel::{Kernel, Open};
use crate::operation::Node;

/// The unsynced changes that survive the power loss.
pub(super) const SURVIVE: [Survives; 3] =
    [Survives::Nothing, Survives::Everything, Survives::Some(1)];
const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];
/// The clock of the machine, in seconds since 1970.
const NOW: u64 = 1_800_000_000;
/// The number of random subsets of the unsynced changes with which each power loss is simulated.
const PARTS: u64 = 8;
const PARTS_NIGHTLY: u64 = 100;
/// The media, the filesystem type to format, and the system call at which an earlier format was
/// killed.
type Begun = (Media, Form, Killed);

const BEGUN: [Begun; 11] = [
    (Media::Files, Form::Ext4, Killed::Never),
    (Media::Files, Form::Xfs, Killed::Never),
    (Media::Files, Form::Btrfs, Killed::Never),
    (Media::Files, Form::Xfs, Killed::AtFirst("fsetxattr")),
    (Media::Files, Form::Xfs, Killed::AtFirst("mkfs write")),
    (Media::Files, Form::Xfs, Killed::AtLast("mkfs write")),
    (Media::Disks, Form::Ext4, Killed::Never),
    (Media::Disks, Form::Xfs, Killed::Never),
    (Media::Disks, Form::Btrfs, Killed::Never),
    (Media::Disks, Form::Xfs, Killed::AtFirst("mkfs write")),
    (Media::Disks, Form::Xfs, Killed::AtLast("mkfs write")),
];
/// The formats of encrypted volumes.
const BEGUN_ENCRYPTED: [Begun; 5] = [
    (Media::Files, Form::Ext4, Killed::Never),
    (Media::Files, Form::Xfs, Killed::AtFirst("cryptsetup write")),
    (Media::Files, Form::Xfs, Killed::AtFirst("mkfs write")),
    (Media::Disks, Form::Ext4, Killed::AtLast("mkfs write")),
    (Media::Disks, Form::Xfs, Killed::AtFirst("cryptsetup write")),
];

/// The system call of NodeStageVolume after which an earlier agent was killed.
#[derive(Clone, Copy, Debug)]
enum Killed {
    Never,
    AtFirst(&'static str),
    AtLast(&'static str),
}

/// Simulates a power loss at a system call. Afterwards, stages and publishes the volume again, or
/// unpublishes and unstages it.
pub(super) fn lose_power(
    case: &Case,
    good: &Good,
    fault: Fault,
    row: &mut Row,
) -> Result<(), String> {
    let anew = || {
        let run = Run::new(case);
        match run.go(Some(fault)).0 {
            None => Ok(run.restart()),
            Some(_) => Err("the power was not lost"),
        }
    };
    let run = anew()?;
    run.check()?;
    repeat_alone(&run)?;
    come_up(&run)?;
    good.is_after(&run)?;
    take_back(&run, good)?;
    take_back(&anew()?, good)?;
    row.off += 1;
    Ok(())
}

/// Repeats only the call under test. Nothing is staged now, so a call that requires a staged volume
/// must be refused.
fn repeat_alone(run: &Run<'_>) -> Result<(), String> {
    let verb = run.case.verb;
    match verb {
        Verb::Publish(_) | Verb::Expand | Verb::Stats => match run.volume.call(&run.node, verb) {
            Err(failure) if matches!(failure.kind, Kind::Precondition | Kind::NotFound) => Ok(()),
            other => Err(format!("nothing is staged, and {verb:?} returns {other:?}")),
        },
        _ => run.repeat(verb),
    }?;
    run.check()
}

/// Makes the calls by which a kubelet stages and publishes the volume again, and then repeats the
/// call under test.
fn come_up(run: &Run<'_>) -> Result<(), String> {
    for before in run.case.before {
        if let Before::Call(verb) = before {
            run.repeat(*verb)?;
        }
    }
    run.repeat(run.case.verb)?;
    run.check()
}

/// Empties the volume's file as if the disk had lost its blocks, but keeps the attribute that the
/// volume was in use.
fn lose_data(world: &Simulated, volume: &Volume) {
    world.machine.truncate_file(&volume.file(), 0);
    world.make_file(&volume.file(), BYTES);
}

fn is_formatted_anew(world: &Simulated, volume: &Volume) -> bool {
    world.machine.holds(&volume.file()) != Holds::Nothing || !world.machine.violations().is_empty()
}

/// Stages the volume. Returns whether the agent was killed or the machine lost power during the
/// call.
pub(super) fn ends_in_stage(
    world: &Simulated,
    node: &Node<Fake>,
    volume: &Volume,
    fault: Fault,
) -> bool {
    world.machine.begin(Some(fault));
    let ended = catch_unwind(AssertUnwindSafe(|| volume.call(node, Verb::Stage)));
    world.machine.end();
    match ended {
        Ok(staged) => {
            staged.unwrap();
            false
        }
        Err(payload) if payload.is::<Died>() => true,
        Err(panic) => resume_unwind(panic),
    }
}

/// Only this record shows that a raw volume was in use, because unsynced data of its pod may be
/// lost.
#[test]
fn that_a_volume_was_staged_outlives_a_power_loss_and_keeps_it_from_being_formatted() {
    for form in FORMS {
        for survives in SURVIVE {
            let world = Simulated::new();
            let mut volume = world.volume("vol", form);
            volume.call(&world.start(), Verb::Stage).unwrap();
            world.machine.power_off(survives);
            lose_data(&world, &volume);
            volume.form = match form {
                Form::Block => Form::Ext4,
                form => form,
            };
            let staged = volume.call(&world.start(), Verb::Stage);
            assert!(
                staged.is_err_and(|failure| failure.kind == Kind::Precondition),
                "{form:?}, {survives:?}"
            );
            assert!(
                !is_formatted_anew(&world, &volume),
                "{form:?}, {survives:?}"
            );
        }
    }
}

/// Stages the volume with a fault, and then again without the fault, which must succeed. Returns
/// the number of system calls of the first call.
fn stage_twice(world: &Simulated, volume: &Volume, fault: Fault) -> usize {
    let node = world.start();
    world.machine.begin(Some(fault));
    let ended = catch_unwind(AssertUnwindSafe(|| volume.call(&node, Verb::Stage)));
    let calls = world.machine.end().len();
    if let Err(payload) = ended
        && !payload.is::<Died>()
    {
        resume_unwind(payload);
    }
    drop(node);
    volume.call(&world.start(), Verb::Stage).unwrap();
    calls
}

/// The second NodeStageVolume call finds attributes that the first call has set but not synced.
#[test]
fn what_a_broken_stage_has_not_synced_the_next_one_does() {
    let breaks: [fn(usize) -> Fault; 2] = [Fault::Die, |at| Fault::Fail(at, "EIO")];
    for (form, fault) in FORMS.map(|form| breaks.map(|fault| (form, fault))).concat() {
        for at in 1.. {
            let what = format!("{form:?}, {:?}", fault(at));
            let world = Simulated::new();
            let mut volume = world.volume("vol", form);
            let calls = stage_twice(&world, &volume, fault(at));
            world.machine.power_off(Survives::Nothing);
            volume.call(&world.start(), Verb::Stage).unwrap();
            assert_eq!(world.machine.violations(), Vec::<String>::new(), "{what}");
            world.machine.power_off(Survives::Nothing);
            lose_data(&world, &volume);
            volume.form = match form {
                Form::Block => Form::Ext4,
                form => form,
            };
            let staged = volume.call(&world.start(), Verb::Stage);
            let is_refused = staged.is_err_and(|failure| failure.kind == Kind::Precondition);
            assert!(is_refused && !is_formatted_anew(&world, &volume), "{what}");
            if at > calls {
                break;
            }
        }
    }
}

/// Returns a blank volume. If the volume is a disk, it was attached recently, so that only samples
/// of it are read.
fn blank(media: Media, form: Form, is_encrypted: bool) -> (Simulated, Volume) {
    let world = Simulated::of(media);
    let mut volume = world.volume("vol", form);
    if is_encrypted {
        volume = volume.encrypted();
    }
    if media == Media::Disks {
        world.machine.discard(&volume.file());
        world.machine.set_clock(NOW);
        volume.attached_at = Some(NOW);
    }
    (world, volume)
}

/// Returns the system calls of NodeStageVolume for the volume.
fn calls_of_stage(world: &Simulated, volume: &Volume) -> Vec<Call> {
    let node = world.start();
    world.machine.begin(None);
    volume.call(&node, Verb::Stage).unwrap();
    world.machine.end()
}

/// Returns a blank volume after an agent was killed during NodeStageVolume.
fn begun((media, form, killed): Begun, is_encrypted: bool) -> (Simulated, Volume) {
    let (world, volume) = blank(media, form, is_encrypted);
    let fault = match killed {
        Killed::Never => return (world, volume),
        Killed::AtFirst(name) => Fault::DieAfter(name),
        Killed::AtLast(name) => {
            let (world, volume) = blank(media, form, is_encrypted);
            let node = world.start();
            let stage = || volume.call(&node, Verb::Stage).unwrap();
            Fault::Die(world.last_call(stage, |call| call.name == name))
        }
    };
    assert!(ends_in_stage(&world, &world.start(), &volume, fault));
    (world, volume)
}

/// Returns the positions of system calls that change something. A power loss at any other system
/// call has the same effect as a power loss at the next changing system call.
fn changes(calls: Vec<Call>) -> impl Iterator<Item = usize> {
    let changes = (1..).zip(calls);
    let changes =
        changes.filter(|(_, call)| !matches!(call.name, "pread" | "statx" | "lseek" | "fgetxattr"));
    changes.map(|(at, _)| at)
}

/// Simulates power losses with many subsets of the unsynced changes at each system call of a
/// NodeStageVolume call that formats the volume, because only the order of these writes matters.
/// Repeats this after an earlier agent was killed during the same call.
#[test]
fn a_format_that_lost_its_power_comes_to_its_end_whatever_part_of_it_survives() {
    let encrypted = BEGUN_ENCRYPTED.map(|it| (it, true));
    for (begin, is_encrypted) in BEGUN.map(|it| (it, false)).into_iter().chain(encrypted) {
        let (world, volume) = begun(begin, is_encrypted);
        for at in changes(calls_of_stage(&world, &volume)) {
            let parts = if is_nightly() { PARTS_NIGHTLY } else { PARTS };
            for part in 0..parts {
                let (world, volume) = begun(begin, is_encrypted);
                let node = world.start();
                let fault = Fault::PowerOff(at, Survives::Some(part));
                assert!(ends_in_stage(&world, &node, &volume, fault));
                drop(node);
                let what = format!("{begin:?}, encrypted {is_encrypted}, {fault:?}");
                for verb in [Verb::Stage, Verb::Publish(1), Verb::Stats] {
                    let done = volume.call(&world.start(), verb);
                    assert!(done.is_ok(), "{what}, {verb:?}: {done:?}");
                }
                assert_eq!(world.machine.violations(), Vec::<String>::new(), "{what}");
            }
        }
    }
}

/// If a removed format mark reappeared after the volume was used, this mark would permit a second
/// format.
#[test]
fn no_mark_of_a_disk_outlives_what_its_first_user_synced() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        let (world, volume) = blank(Media::Disks, form, false);
        for at in changes(calls_of_stage(&world, &volume)) {
            let (world, mut volume) = blank(Media::Disks, form, false);
            ends_in_stage(&world, &world.start(), &volume, Fault::Die(at));
            volume.call(&world.start(), Verb::Stage).unwrap();
            // A pod syncs data.
            let kernel = world.kernel();
            let pod = kernel
                .open(Path::new("/dev/vda"), Open::DeviceRead)
                .unwrap();
            kernel.fsync(&pod).unwrap();
            drop(pod);
            world.machine.power_off(Survives::Nothing);
            let what = format!("{form:?}, killed at {at}");
            let holds = world.machine.holds(&volume.file());
            assert!(matches!(holds, Holds::Filesystem(..)), "{what}: {holds:?}");
            // The superblock is lost, and with it all evidence that the volume is in use.
            world.write_file(&volume.file(), 0, &[0; 128 << 10]);
            world.write_file(&volume.file(), 200 * MIB, b"data");
            volume.content = "used";
            let staged = volume.call(&world.start(), Verb::Stage);
            let is_refused = staged.is_err_and(|failure| failure.kind == Kind::Precondition);
            assert!(is_refused, "{what}");
            assert_eq!(world.machine.violations(), Vec::<String>::new(), "{what}");
        }
    }
}

/// A process that has the device open may have written data that is still in the page cache; the
/// file's map of holes does not show this data.
#[test]
fn what_is_in_the_cache_of_a_leftover_device_is_no_blank() {
    let world = Simulated::new();
    let mut volume = world.volume("vol", Form::Block);
    let node = world.start();
    volume.call(&node, Verb::Stage).unwrap();
    let kernel = world.kernel();
    let [number] = kernel.loop_bound().unwrap()[..] else {
        panic!("one device is bound");
    };
    let pod = kernel.open(&loop_path(number), Open::FileWrite).unwrap();
    assert_eq!(kernel.pwrite(&pod, b"data", 300 * MIB).unwrap(), 4);
    // An operator removes the attribute that records the use of the volume.
    let file = kernel.open(&volume.file(), Open::FileWrite).unwrap();
    kernel.set_xattr(&file, NEW, IS_NEW).unwrap();
    drop(file);
    let staged = volume.staging().join("device");
    kernel.umount(&staged).unwrap();
    kernel.unlink(&staged).unwrap();
    drop(node);
    volume.form = Form::Ext4;
    let failure = volume.call(&world.start(), Verb::Stage).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    assert!(failure.message.contains("unknown data"), "{failure}");
    drop(pod);
    assert_eq!(world.machine.violations(), Vec::<String>::new());
    assert_eq!(
        world.machine.read_file(&volume.file(), 300 * MIB, 4),
        b"data"
    );
}

/// If a power loss undoes the growth of a filesystem, the next NodeStageVolume call grows the
/// filesystem to the size of its device again.
#[test]
fn a_growth_is_made_again_where_the_power_loss_took_it_back() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        for survives in SURVIVE {
            let world = Simulated::new();
            let volume = world.volume("vol", form);
            let node = world.start();
            volume.call(&node, Verb::Stage).unwrap();
            world.make_file(&volume.file(), GROWN_BYTES);
            volume.call(&node, Verb::Expand).unwrap();
            world.machine.power_off(survives);
            drop(node);
            volume.call(&world.start(), Verb::Stage).unwrap();
            let held = world.machine.holds(&volume.file());
            let is_grown = matches!(held, Holds::Filesystem(_, GROWN_BYTES, 1));
            assert!(is_grown, "{form:?}, {survives:?}: {held:?}");
        }
    }
}
