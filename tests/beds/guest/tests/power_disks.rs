//! Power cuts of a node at a change of a volume's own disk: the kernel's memory and the disk's
//! write-back cache are lost. `power` does the same to volumes in files.

use std::time::{SystemTime, UNIX_EPOCH};

use belay_bed::chance::Chance;
use belay_guest::{Disk, Gone, Guest, Medium};

use crate::belay::{call, try_call};
use crate::disks::{ID, KINDS, Volume, boot, machine};
use crate::power::{record, survival};
use crate::rig::{MIB, kernels, medium};

/// Power cuts in each run, and in `make nightly`.
const CUTS: usize = 2;
const CUTS_NIGHTLY: usize = 140;
/// A step writes to the disk this many times, more or less; later cuts hit the next step.
const CHANGES: u64 = 40;

/// The steps at which a cut is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Stage,
    Write,
    Grow,
    Unstage,
    StageAgain,
}

const STEPS: [Step; 5] = [
    Step::Stage,
    Step::Write,
    Step::Grow,
    Step::Unstage,
    Step::StageAgain,
];

/// Everything acknowledged before the cut.
#[derive(Debug, Default)]
struct Known {
    uuid: Option<String>,
    /// Records that a pod has written and synced.
    records: u32,
    /// The size after the growth, in bytes.
    total: Option<u64>,
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn what_was_acknowledged_on_a_disk_outlives_a_power_cut() {
    let mut chance = Chance::new("power cuts of disks");
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    for number in 0..if is_long { CUTS_NIGHTLY } else { CUTS } {
        let step = STEPS[number % STEPS.len()];
        let (filesystem, mib, grown) = *chance.pick(&KINDS);
        let kernel = chance.pick(&kernels()).clone();
        let change = 1 + chance.below(CHANGES);
        let survival = survival(&mut chance);
        let has_mark = chance.below(2) == 0;
        eprintln!(
            "cut {number}: change {change} from {step:?} on, {filesystem}, {survival:?}, \
             with a format mark: {has_mark}"
        );
        let machine = machine(kernel);
        let medium = medium(&machine, "disk", mib);
        machine.slot(0).insert(Disk::block(ID, &medium));
        let mut volume = Volume::new(filesystem, &format!("serial={ID}"), mib);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = now.expect("a clock").as_secs();
        // A controller repeats its first word.
        volume
            .context
            .push_str(&format!(" --context attached_at={seconds}"));
        if has_mark {
            volume = volume.with_mark();
        }
        let cut = Cut {
            volume,
            has_mark,
            grown,
            medium: &medium,
        };

        let mut guest = boot(&machine);
        let power = guest.power();
        let arm = |at: Step| {
            if step == at {
                let power = power.clone();
                medium.cut_at(medium.changes() + change, move || power.cut());
            }
        };
        let mut known = Known::default();
        let lived = cut.live(&mut guest, &mut known, arm, |bytes| {
            machine.slot(0).grow(bytes);
        });
        eprintln!("  {lived:?}, with {} records", known.records);
        guest.cut();
        medium.lose_cache(survival);

        let mut guest = boot(&machine);
        cut.judge(&mut guest, &known).expect("power");
    }
}

struct Cut<'a> {
    volume: Volume,
    /// An interrupted format is run again.
    has_mark: bool,
    /// MiB after the growth.
    grown: u64,
    medium: &'a Medium,
}

impl Cut<'_> {
    fn live(
        &self,
        guest: &mut Guest<'_>,
        known: &mut Known,
        arm: impl Fn(Step),
        grow: impl Fn(u64),
    ) -> Result<(), Gone> {
        let volume = &self.volume;
        arm(Step::Stage);
        call(guest, &volume.stage())?;
        known.uuid = Some(uuid(guest)?);
        call(guest, &volume.publish())?;
        arm(Step::Write);
        write(guest, known)?;
        write(guest, known)?;
        arm(Step::Grow);
        grow(self.grown * MIB);
        call(guest, &volume.grow(self.grown))?;
        known.total = Some(total(guest)?);
        write(guest, known)?;
        arm(Step::Unstage);
        call(guest, &volume.take_down())?;
        arm(Step::StageAgain);
        call(guest, &volume.stage())?;
        call(guest, &volume.publish())?;
        write(guest, known)
    }

    /// After the power is back: the same calls, and everything that was acknowledged is there.
    fn judge(&self, guest: &mut Guest<'_>, known: &Known) -> Result<(), Gone> {
        let volume = &self.volume;
        let staged = try_call(guest, &volume.stage())?;
        if staged.code != 0 {
            // Without its mark, an interrupted format of a disk is not run again.
            assert!(!self.has_mark && known.uuid.is_none(), "{}", staged.text);
            let is_refused = staged.text.contains("not formatted");
            assert!(is_refused, "{}", staged.text);
            let changes = self.medium.changes();
            try_call(guest, &volume.stage())?;
            assert_eq!(self.medium.changes(), changes, "written to");
            return Ok(());
        }
        let uuid_now = uuid(guest)?;
        if let Some(known) = &known.uuid {
            assert_eq!(&uuid_now, known, "formatted a second time");
        }
        call(guest, &volume.publish())?;
        for number in 1..=known.records {
            let is_there = format!(
                "{} | cmp - /pods/{ID}/target/record-{number}",
                record(number)
            );
            call(guest, &is_there)?;
        }
        if let Some(total_before) = known.total {
            let found = total(guest)?;
            assert!(
                found >= total_before,
                "{found} bytes, {total_before} before"
            );
        }
        let mut known = Known {
            records: known.records,
            ..Known::default()
        };
        write(guest, &mut known)?;
        for calls in [volume.take_down(), volume.stage()] {
            call(guest, &calls)?;
        }
        assert_eq!(uuid(guest)?, uuid_now, "formatted at a later stage");
        call(guest, &volume.unstage()).map(drop)
    }
}

/// Returns the UUID of the filesystem, which a second format would change.
fn uuid(guest: &mut Guest<'_>) -> Result<String, Gone> {
    call(guest, "blkid -p -s UUID -o value /dev/vda")
}

fn total(guest: &mut Guest<'_>) -> Result<u64, Gone> {
    let words = format!("stat --file-system --format '%b %S' /pods/{ID}/target");
    let words = call(guest, &words)?;
    let numbers = words.split_whitespace();
    let numbers = numbers.map(|it| it.parse::<u64>().expect("a number"));
    Ok(numbers.product())
}

/// One more record, synced. 128 KiB, so that it can survive in parts.
fn write(guest: &mut Guest<'_>, known: &mut Known) -> Result<(), Gone> {
    let next = known.records + 1;
    let path = format!("/pods/{ID}/target/record-{next}");
    let write = format!("{} >{path}\nsync {path} /pods/{ID}/target", record(next));
    call(guest, &write)?;
    known.records = next;
    Ok(())
}
