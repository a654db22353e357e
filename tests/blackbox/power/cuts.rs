//! The positions of power cuts, and the changes that survive them: selects cuts, names them, and
//! repeats a named cut. Independent of the rules that are checked.

use std::collections::HashSet;
use std::fmt;

use super::life::Life;
use super::tape::Survival;
use crate::rig::Chance;

/// The variable that names a cut to repeat, as failures print it: `step+offset:survival`.
const CHOSEN: &str = "BELAY_POWER";

/// One power loss.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// The number of the current act, from 0.
    step: usize,
    /// The number of events since the act began.
    offset: usize,
    pub(super) survival: Survival,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}:{}", self.step, self.offset, self.survival)
    }
}

impl Cut {
    /// Parses the output of [`fmt::Display`].
    fn parse(name: &str) -> Option<Self> {
        let (test_dir, survival) = name.split_once(':')?;
        let (step, offset) = test_dir.split_once('+')?;
        Some(Cut {
            step: step.parse().ok()?,
            offset: offset.parse().ok()?,
            survival: Survival::parse(survival)?,
        })
    }

    /// Whether the cut is during the very first start: data that this start does not sync is never
    /// synced by a later one.
    pub(super) fn is_at_start(&self) -> bool {
        self.step == 0
    }

    /// Returns the number of events before the cut.
    pub(super) fn position(&self, life: &Life) -> usize {
        life.steps[self.step].began + self.offset
    }
}

/// Maximum numbers of cuts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// The number of cuts right after an acknowledgement.
    pub(super) acknowledged: usize,
    /// The number of cuts where a change may be on disk too early.
    pub(super) overtaking: usize,
    /// The number of cuts anywhere else.
    pub(super) others: usize,
}

impl Sample {
    /// All cuts.
    pub(super) const ALL: Self = Sample {
        acknowledged: usize::MAX,
        overtaking: usize::MAX,
        others: usize::MAX,
    };
}

/// Returns the cuts of a run: the requested cut, or a sample of all. Cuts with the same result
/// count once.
pub(super) fn choose(life: &Life, sample: Sample, chance: &mut Chance) -> Vec<Cut> {
    if let Ok(name) = std::env::var(CHOSEN) {
        let cut = Cut::parse(&name).unwrap_or_else(|| panic!("{CHOSEN}={name}: no such cut"));
        return vec![cut];
    }
    let all = all(life, chance);
    let (overtaking, others) = all.into_iter().partition(|cut| is_overtaking(life, cut));
    let mut seen = HashSet::new();
    let mut chosen = Vec::new();
    for (mut cuts, max) in [
        (acknowledged(life), sample.acknowledged),
        (overtaking, sample.overtaking),
        (others, sample.others),
    ] {
        // If few cuts are requested, most are skipped.
        thin_out(&mut cuts, max.saturating_mul(4), chance);
        cuts.retain(|cut| {
            let position = cut.position(life);
            let left = life.tape.cut(position, cut.survival).fingerprint();
            seen.insert((left, life.over(position)))
        });
        thin_out(&mut cuts, max, chance);
        chosen.extend(cuts);
    }
    chosen
}

fn thin_out(cuts: &mut Vec<Cut>, max: usize, chance: &mut Chance) {
    while cuts.len() > max {
        let count = u64::try_from(cuts.len()).expect("a count");
        cuts.swap_remove(usize::try_from(chance.below(count)).expect("an index"));
    }
}

/// Returns the cuts right after each acknowledgement.
fn acknowledged(life: &Life) -> Vec<Cut> {
    let steps = life.steps.iter().enumerate();
    let cuts = steps.flat_map(|(number, step)| {
        [Survival::Nothing, Survival::Undeleted].map(|survival| Cut {
            step: number,
            offset: step.ended - step.began,
            survival,
        })
    });
    cuts.collect()
}

fn is_overtaking(life: &Life, cut: &Cut) -> bool {
    matches!(cut.survival, Survival::Metadata | Survival::Newest)
        && life.tape.is_overtaking(cut.position(life))
}

/// Returns the cuts at every position, with each survival.
fn all(life: &Life, chance: &mut Chance) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for (number, step) in life.steps.iter().enumerate() {
        let end = life
            .steps
            .get(number + 1)
            .map_or(step.ended, |next| next.began);
        for offset in 0..end - step.began {
            let survivals = [
                Survival::Nothing,
                Survival::Everything,
                Survival::Undeleted,
                Survival::Metadata,
                Survival::Newest,
                Survival::Some(chance.bits()),
            ];
            cuts.extend(survivals.map(|survival| Cut {
                step: number,
                offset,
                survival,
            }));
        }
    }
    cuts
}
