//! Records of the volumes that were deleted in the last hour. The response to a deletion may be
//! lost, and by the time of the repeated call, the directory may belong to another program, or be a
//! restored backup. Such a directory has no claim, but the volumes of csi-driver-nfs have none,
//! either, so only this record protects it: an empty file `.belay/gone/<hour>/<SHA-256 of directory
//! and name>`, written before the claim is removed.

use super::super::call::Owned;
use super::super::path::Dir;
use super::claims::Claims;
use super::layout::{GONE, GONE_SHOWN as SHOWN, hash};
use super::list;
use super::tree;
use belay_server::call::Failure;
use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

const HOUR: u64 = 3600;
/// Maximum number of outdated records that a deletion removes.
const FORGOTTEN_MAX: usize = 256;

impl Claims {
    /// Records that a volume was deleted, and removes records that are too old.
    pub(super) fn record_gone(&self, dir: &Dir, name: &str) -> Result<(), Failure> {
        let all = self.own.make_directory(GONE)?;
        let now = hour();
        let hour = tree::own(&all, &now.to_string(), SHOWN)?;
        tree::touch(&hour, &file_name(dir, name), SHOWN)?;
        forget(&all, now)
    }

    /// Whether the volume was deleted in the last hour.
    pub(super) fn is_gone(&self, at: &Owned) -> Result<bool, Failure> {
        let Some(all) = self.own.find_directory(GONE)? else {
            return Ok(false);
        };
        let now = hour();
        for name in list::names(&all, SHOWN)? {
            let is_recent = hour_of(&name).is_some_and(|hour| !is_old(hour, now));
            if is_recent
                && let Some(hour) = tree::open_existing(&all, &name, SHOWN)?
                && tree::find(&hour, &file_name(&at.dir, &at.name), SHOWN)?.is_some()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the file name of a record. It depends on the name of the volume, too, since another
/// volume may have the same directory.
fn file_name(dir: &Dir, name: &str) -> String {
    hash(&format!("{dir}\0{name}"))
}

/// Returns the current hour by this host's clock. The clock of another controller may differ by
/// some minutes.
fn hour() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() / HOUR)
}

fn hour_of(name: &str) -> Option<u64> {
    name.parse().ok()
}

/// Whether the hour ended more than an hour ago.
fn is_old(hour: u64, now: u64) -> bool {
    hour.saturating_add(1) < now
}

fn forget(all: &OwnedFd, now: u64) -> Result<(), Failure> {
    let mut left = FORGOTTEN_MAX;
    for name in list::names(all, SHOWN)? {
        if hour_of(&name).is_none_or(|hour| !is_old(hour, now)) {
            continue;
        }
        if let Some(hour) = tree::open_existing(all, &name, SHOWN)? {
            for record in list::names(&hour, SHOWN)?.iter().take(left) {
                tree::unlink(&hour, record, SHOWN)?;
                left -= 1;
            }
        }
        tree::rmdir_if_empty(all, &name, SHOWN)?;
    }
    Ok(())
}
