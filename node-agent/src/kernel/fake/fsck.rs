//! Damage of an ext4, and a simulated e2fsck, which repairs the damage in steps.

use std::path::Path;

use rustix::io::Errno;

use super::loops::Change;
use super::mkfs::{claim, end, stopped};
use super::sparse::Sparse;
use super::state::{Answer, State};
use super::{Fake, Fd, Machine, ext4};
use crate::kernel::{Child, ChildEnd, Result};

/// The offset of the marker for damage. Nothing else writes there.
const DAMAGE_AT: u64 = 30 << 20;
const SLIGHT: &[u8] = b"damage that preening repairs";
const SEVERE: &[u8] = b"damage that it does not";
const LASTING: &[u8] = b"damage that it thinks it does";

/// The steps of e2fsck, in order.
const STEPS: [(&str, Step); 2] = [("repairs", Step::Repairs), ("superblock", Step::Superblock)];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Repairs,
    Superblock,
}

/// The severity of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// `e2fsck -p` repairs the damage.
    Slight,
    /// Only an operator can repair the damage.
    Severe,
    /// e2fsck reports that it has repaired the filesystem, but the superblock still records errors.
    Lasting,
}

impl Machine {
    /// Damages the ext4 in a file, as if the kernel had detected errors while the filesystem was
    /// mounted.
    pub(crate) fn damage(&self, path: &Path, damage: Damage) {
        let mut state = self.lock();
        let ino = state.user_inode(path);
        let contents = &mut state.file(ino).unwrap().contents;
        contents.change(move |to| {
            let what = match damage {
                Damage::Slight => SLIGHT,
                Damage::Severe => SEVERE,
                Damage::Lasting => LASTING,
            };
            to.write(DAMAGE_AT, what);
            ext4::record(to, ext4::ERRORS);
        });
        contents.sync();
    }

    /// Repairs the ext4 in a file, as an operator does.
    pub(crate) fn repair(&self, path: &Path) {
        let mut state = self.lock();
        let contents = &mut state.file_at(path).contents;
        contents.change(|to| {
            to.write(DAMAGE_AT, &[0; SLIGHT.len()]);
            ext4::record(to, ext4::VALID);
        });
        contents.sync();
    }

    /// Whether the ext4 in a file is damaged, or its superblock records errors.
    pub(crate) fn is_damaged(&self, path: &Path) -> bool {
        is_damaged(&self.lock().file_at(path).contents)
    }

    /// Removes e2fsck from the machine.
    pub(crate) fn remove_e2fsck(&self) {
        self.lock().tools.lacks_e2fsck = true;
    }
}

fn is_marked(contents: &Sparse, mark: &[u8]) -> bool {
    let mut found = vec![0; mark.len()];
    contents.read(DAMAGE_AT, &mut found);
    found == mark
}

pub(super) fn is_damaged(contents: &Sparse) -> bool {
    let marks = [SLIGHT, SEVERE, LASTING];
    marks.iter().any(|mark| is_marked(contents, mark)) || !ext4::is_valid(contents)
}

/// Runs e2fsck until it exits. Each step of e2fsck counts as a call, so a fault can be injected
/// into the step.
pub(super) fn run(fake: &Fake, child: &Child<'_, Fd>) -> Result<ChildEnd> {
    fake.call(
        "spawn",
        child.program,
        &[Errno::NOENT],
        |state| match state.tools.lacks_e2fsck {
            true => Err(Errno::NOENT),
            false => Ok(()),
        },
    )?;
    let own = match claim(fake, child, "e2fsck open") {
        Ok(own) => own,
        Err(error) => return Ok(end(8, error.to_string())),
    };
    let read = fake.call("e2fsck read", "all", &[], |state| {
        let ino = state.binding(own.id)?.ok_or(Errno::NXIO)?.ino;
        let contents = &state.file(ino)?.contents;
        Ok([SEVERE, LASTING].map(|mark| is_marked(contents, mark)))
    });
    match read {
        Ok([false, false]) => {}
        Ok([true, _]) => {
            return Ok(end(
                4,
                "UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.".to_owned(),
            ));
        }
        Ok([false, true]) => return Ok(end(1, "FIXED.".to_owned())),
        Err(error) => return Ok(end(8, error.to_string())),
    }
    if let Some(end) = stopped(fake, child) {
        return Ok(end);
    }
    for (what, step) in STEPS {
        let written = fake.call("e2fsck write", what, &[], |state| {
            state.fsck_step(own.id, step)
        });
        if let Err(error) = written {
            return Ok(end(12, error.to_string()));
        }
    }
    Ok(end(1, "FIXED.".to_owned()))
}

impl State {
    /// Performs a step as the real e2fsck does: the superblock becomes valid only when everything
    /// else is on the disk.
    fn fsck_step(&mut self, device: u64, step: Step) -> Answer<()> {
        let number = self.object(device)?.device()?;
        let change: Change = match step {
            Step::Repairs => Box::new(|to| {
                to.write(DAMAGE_AT, &[0; SLIGHT.len()]);
            }),
            Step::Superblock => {
                self.fsync(device)?;
                Box::new(|to| ext4::record(to, ext4::VALID))
            }
        };
        self.write_cached(number, 0..u64::MAX, change);
        Ok(())
    }
}
