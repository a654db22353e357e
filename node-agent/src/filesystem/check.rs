//! Checks an ext4 that is not mounted, and lets e2fsck make the repairs that need no operator.
//!
//! This module does not decide whether a device needs a check: the superblock records this, see
//! [`super::Sound`].

use std::time::Duration;

use belay_server::call::{Failure, Kind};

use super::mkfs::{DEVICE, refuse_busy};
use super::probe::{DeviceUnderTest, identify};
use crate::kernel::{Cause, Child, Kernel};

const PROGRAM: &str = "e2fsck";
/// The arguments of e2fsck. `-f` checks everything, regardless of the superblock, which may record
/// fewer errors after a replay of the journal (before e2fsprogs 1.47.1). `-p` makes only repairs
/// that lose no data, and does not prompt.
const ARGS: [&str; 3] = ["-f", "-p", DEVICE];
/// The bits of the exit code with which the filesystem is sound (e2fsck(8)): errors were corrected,
/// and a reboot is needed, which concerns only mounted filesystems.
const CORRECTED: i32 = 1;
const SOUND: i32 = CORRECTED | 2;
/// The bit for errors that were not corrected, because `-p` leaves them to the operator.
const UNCORRECTED: i32 = 4;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// The filesystem has no errors.
    Clean,
    /// The filesystem had errors, which e2fsck has corrected; contains the messages of e2fsck.
    Corrected(String),
    /// e2fsck is not installed, so nothing was checked.
    NotInstalled,
}

/// The reason why a filesystem is not known to be sound.
#[derive(Debug)]
pub(crate) enum Unchecked {
    /// The filesystem has errors that only an operator may correct; contains the messages of
    /// e2fsck.
    Damaged(String),
    /// e2fsck could not check the filesystem; contains its exit code and its messages.
    Unable(String),
    /// e2fsck did not run, or was killed.
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Unchecked {
    fn from(error: E) -> Unchecked {
        Unchecked::Failed(error.into())
    }
}

/// Runs `e2fsck -f -p` on a device with an ext4 until it exits. The journal must have been
/// replayed. After the replay, e2fsck may be killed at any point: e2fsck marks the superblock valid
/// last, after everything else is on the disk, and the next check starts from the beginning. Calls
/// `on_kill` if e2fsck is killed before its deadline; the killed e2fsck may still wait for its
/// disk.
///
/// # Errors
///
/// Returns [`Unchecked::Failed`] with [`Kind::Busy`] if another process has the device open, and
/// with [`Kind::Timeout`] at the deadline.
pub(crate) fn check<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    deadline: Duration,
    on_kill: &dyn Fn(),
) -> Result<Checked, Unchecked> {
    refuse_busy(kernel, device)?;
    let is_cancelled = || {
        let is_cancelled = device.progress.refuse_given_up().is_err();
        if is_cancelled {
            on_kill();
        }
        is_cancelled
    };
    let child = Child {
        program: PROGRAM,
        args: ARGS.map(str::to_owned).to_vec(),
        device: Some(device.fd),
        keys: &[],
        deadline,
        is_given_up: &is_cancelled,
        is_fsck: true,
    };
    let end = match kernel.run(&child) {
        Err(error) if error.cause() == Cause::Missing => return Ok(Checked::NotInstalled),
        end => end?,
    };
    let messages = end.stderr.replace(&format!("{DEVICE}: "), "");
    let messages = messages.replace(DEVICE, "it");
    let code = match end.code {
        Some(code) => code,
        None if end.timed_out => {
            let text =
                format!("{PROGRAM} exceeded its deadline {deadline:?}; a retry runs it again");
            return Err(Failure::timeout(text).may_be_running().into());
        }
        None => {
            device.progress.refuse_given_up()?;
            let text = format!("{PROGRAM} was killed by a signal: {messages}");
            return Err(Failure::new(Kind::System, text).into());
        }
    };
    // If other bits are set, e2fsck did not complete.
    if code & UNCORRECTED != 0 && code & !(SOUND | UNCORRECTED) == 0 {
        return Err(Unchecked::Damaged(messages));
    }
    if code & !SOUND != 0 {
        refuse_busy(kernel, device)?;
        return Err(Unchecked::Unable(format!("exit code {code}: {messages}")));
    }
    // If the superblock still records errors, each NodeStageVolume call would repeat the check, and
    // would mount a filesystem with errors.
    match identify(kernel, device)?.sound() {
        Some(sound) if !sound.wants_check => {}
        _ => {
            let text =
                format!("exit code {code}, but its superblock still asks for a check: {messages}");
            return Err(Unchecked::Unable(text));
        }
    }
    Ok(match code & CORRECTED {
        0 => Checked::Clean,
        _ => Checked::Corrected(messages),
    })
}
