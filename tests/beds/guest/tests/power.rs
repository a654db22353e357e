//! Power cuts of a whole machine at a change of its disk: the kernel's memory and the disk's
//! write-back cache are lost. `tests/blackbox/power.rs` tries many more positions, on a model of a
//! disk; here the kernel, its block layer and its journals are real.

use belay_bed::chance::Chance;
use belay_guest::{Gone, Guest, Machine, Medium, Survival};

use crate::belay::{Volume, call, start};
use crate::rig::{boot, kernels, machine_with_state};

/// Power cuts in each run, and in `make nightly`.
const CUTS: usize = 4;
const CUTS_NIGHTLY: usize = 60;
/// A step writes to the disk this many times, more or less; later cuts hit the next step.
const CHANGES: u64 = 24;

/// The steps at which a cut is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Stage,
    Write,
    Grow,
    Unstage,
    StageAgain,
}

const STEPS: [Step; 6] = [
    Step::Stage,
    Step::Write,
    Step::Grow,
    Step::Unstage,
    Step::StageAgain,
    Step::Create,
];

/// Everything acknowledged before the cut.
#[derive(Debug, Default)]
struct Known {
    volume: Option<Volume>,
    uuid: Option<String>,
    /// Records that a pod has written and synced.
    records: u32,
    /// The size after the growth.
    total: Option<u64>,
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn what_was_acknowledged_outlives_a_power_cut_of_the_whole_machine() {
    let mut chance = Chance::new("power cuts of a guest");
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    for number in 0..if is_long { CUTS_NIGHTLY } else { CUTS } {
        let step = STEPS[number % STEPS.len()];
        let volume = *chance.pick(&["ext4", "xfs", "btrfs"]);
        let state = *chance.pick(&["ext4", "xfs"]);
        let kernel = chance.pick(&kernels()).clone();
        let change = 1 + chance.below(CHANGES);
        let survival = survival(&mut chance);
        eprintln!(
            "cut {number}: change {change} from {step:?} on, {volume} on {state}, {survival:?}"
        );
        let (machine, medium) = machine_with_state(kernel, state);
        cut(&machine, &medium, (step, change), survival, volume);
    }
}

/// Returns the part of a disk's cache that survives.
pub(crate) fn survival(chance: &mut Chance) -> Survival {
    match chance.below(4) {
        0 => Survival::Nothing,
        1 => Survival::Everything,
        _ => Survival::Some(chance.bits()),
    }
}

fn cut(
    machine: &Machine,
    medium: &Medium,
    (at, change): (Step, u64),
    survival: Survival,
    filesystem: &'static str,
) {
    let mut guest = boot(machine);
    start(&mut guest).expect("power");
    // Earlier content is on the disk.
    guest.run("sync");
    let power = guest.power();
    let arm = |step: Step| {
        if step == at {
            let power = power.clone();
            medium.cut_at(medium.changes() + change, move || power.cut());
        }
    };
    let mut known = Known::default();
    let lived = live(&mut guest, filesystem, &mut known, arm);
    eprintln!(
        "  {}, with {} records",
        if lived.is_ok() {
            "cut at the end"
        } else {
            "cut"
        },
        known.records
    );
    guest.cut();
    medium.lose_cache(survival);

    let mut guest = boot(machine);
    start(&mut guest).expect("power");
    judge(&mut guest, filesystem, &known).expect("power");
}

/// MiB of a volume, before and after its growth: what xfs needs suffices for all.
const SIZE: u64 = 320;
const GROWN: u64 = 384;

fn live(
    guest: &mut Guest<'_>,
    filesystem: &'static str,
    known: &mut Known,
    arm: impl Fn(Step),
) -> Result<(), Gone> {
    arm(Step::Create);
    let volume = Volume::create(guest, "data", filesystem, SIZE)?;
    known.volume = Some(volume.clone());
    arm(Step::Stage);
    volume.stage(guest)?;
    known.uuid = Some(volume.uuid(guest)?);
    volume.publish(guest)?;
    arm(Step::Write);
    write(guest, &volume, known)?;
    write(guest, &volume, known)?;
    arm(Step::Grow);
    volume.grow(guest, GROWN)?;
    known.total = Some(volume.total(guest)?);
    write(guest, &volume, known)?;
    arm(Step::Unstage);
    volume.unpublish(guest)?;
    volume.unstage(guest)?;
    arm(Step::StageAgain);
    volume.stage(guest)?;
    volume.publish(guest)?;
    write(guest, &volume, known)
}

/// One more record, synced. 128 KiB, so that it can survive in parts.
fn write(guest: &mut Guest<'_>, volume: &Volume, known: &mut Known) -> Result<(), Gone> {
    let (target, next) = (volume.target(), known.records + 1);
    call(
        guest,
        &format!(
            "{} >{target}/record-{next}
             sync {target}/record-{next} {target}",
            record(next)
        ),
    )?;
    known.records = next;
    Ok(())
}

/// The shell prints a record.
pub(crate) fn record(number: u32) -> String {
    format!("yes 'record {number} of a pod' | head -c 131072")
}

/// After the power is back: the same calls, and everything that was acknowledged is there.
fn judge(guest: &mut Guest<'_>, filesystem: &'static str, known: &Known) -> Result<(), Gone> {
    let volume = Volume::create(guest, "data", filesystem, SIZE)?;
    if let Some(known) = &known.volume {
        assert_eq!(volume.id, known.id, "the volume of that name");
    }
    volume.stage(guest)?;
    volume.publish(guest)?;
    let uuid = volume.uuid(guest)?;
    if let Some(known) = &known.uuid {
        assert_eq!(&uuid, known, "formatted a second time");
    }
    let target = volume.target();
    for number in 1..=known.records {
        let is_there = format!("{} | cmp - {target}/record-{number}", record(number));
        call(guest, &is_there)?;
    }
    if let Some(total) = known.total {
        let found = volume.total(guest)?;
        assert!(
            found >= total,
            "grown to {total} and acknowledged, now {found}"
        );
    }
    volume.grow(guest, GROWN)?;
    let mut known = Known {
        records: known.records,
        ..Known::default()
    };
    write(guest, &volume, &mut known)?;
    volume.unpublish(guest)?;
    volume.unstage(guest)?;
    volume.stage(guest)?;
    assert_eq!(volume.uuid(guest)?, uuid, "formatted at a later stage");
    volume.unstage(guest)?;
    volume.delete(guest)?;
    let left = call(guest, "ls -A /state/belay/volumes")?;
    assert_eq!(left, "", "left behind");
    Ok(())
}
