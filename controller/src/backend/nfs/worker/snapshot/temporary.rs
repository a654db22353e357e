//! Archives that are being written, in `.belay/snapshots`. The file name of a temporary archive is
//! `HASH.NONCE`, with the SHA-256 of the snapshot's path. If a worker is killed, the next call for
//! the snapshot removes its temporary archive; after an hour, a call for any other snapshot in the
//! share removes it.

use super::super::super::call::Archived;
use super::super::claims::is_abandoned;
use super::super::copy::attributes;
use super::super::error::{Result as Done, at};
use super::super::layout::{SNAPSHOTS, SNAPSHOTS_SHOWN as SHOWN, hash, nonce};
use super::super::list;
use super::super::own::Own;
use super::super::tree::{self, PRIVATE_FILE, Tree, alive};
use belay_server::call::Failure;
use rustix::fs::{AtFlags, OFlags};
use rustix::io::{Errno, retry_on_intr};
use std::os::fd::OwnedFd;

/// The temporary archives of a snapshot.
pub(super) struct Temporaries {
    all: OwnedFd,
    /// The prefix of the archives' file names.
    prefix: String,
}

/// An archive that is being written.
pub(super) struct Temporary<'a> {
    of: &'a Temporaries,
    name: String,
}

impl Temporaries {
    pub(super) fn make(tree: &Tree, snapshot: &Archived) -> Result<Self, Failure> {
        let all = Own::make(tree)?.make_directory(SNAPSHOTS)?;
        Ok(Self::of(all, snapshot))
    }

    /// Opens the directory of temporary archives. Returns `None` if no snapshot was ever created in
    /// the share.
    pub(super) fn find(tree: &Tree, snapshot: &Archived) -> Result<Option<Self>, Failure> {
        let Some(own) = Own::find(tree)? else {
            return Ok(None);
        };
        let all = own.find_directory(SNAPSHOTS)?;
        Ok(all.map(|all| Self::of(all, snapshot)))
    }

    fn of(all: OwnedFd, snapshot: &Archived) -> Self {
        let Archived { dir, source, .. } = snapshot;
        let prefix = format!("{}.", hash(&format!("{dir}/{source}")));
        Self { all, prefix }
    }

    /// Removes the temporary archives of the snapshot.
    pub(super) fn forget(&self) -> Result<(), Failure> {
        for name in list::names(&self.all, SHOWN)? {
            if name.starts_with(&self.prefix) {
                tree::unlink(&self.all, &*name, SHOWN)?;
            }
        }
        Ok(())
    }

    /// Creates a temporary archive, after removing the temporary archives of earlier calls.
    pub(super) fn begin(&self) -> Result<Temporary<'_>, Failure> {
        self.forget()?;
        let name = format!("{}{}", self.prefix, nonce()?);
        tree::write_new(&self.all, &name, b"", SHOWN)?;
        let begun = Temporary { of: self, name };
        let modified = tree::modified(&self.all, &begun.name, SHOWN)?;
        // Ignore an error: archives of other calls that cannot be removed are left.
        self.sweep(modified.unwrap_or_default()).unwrap_or_default();
        Ok(begun)
    }

    /// Removes the archives that no call has refreshed for an hour. `now` is the time of the
    /// server's clock, in seconds since 1970.
    fn sweep(&self, now: i64) -> Result<(), Failure> {
        for name in list::names(&self.all, SHOWN)? {
            let made = tree::modified(&self.all, &name, SHOWN)?;
            if made.is_some_and(|made| is_abandoned(made, now)) {
                tree::unlink(&self.all, &*name, SHOWN)?;
            }
        }
        Ok(())
    }
}

impl Temporary<'_> {
    /// Opens the archive to write it.
    pub(super) fn open(&self) -> Done<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || {
            alive()?;
            rustix::fs::openat(&self.of.all, &*self.name, flags, PRIVATE_FILE)
        };
        retry_on_intr(open).map_err(at("openat", SHOWN))
    }

    /// Sets the modification time to the current time, so that no other call treats the archive as
    /// abandoned: reading a file with holes may take long.
    ///
    /// # Errors
    /// Returns `Busy` if another call has removed the archive.
    pub(super) fn refresh(&self) -> Result<(), Failure> {
        match attributes::refresh(&self.of.all, &self.name, SHOWN) {
            Err(error) if [Errno::NOENT, Errno::STALE].contains(&error.errno) => {
                Err(Failure::busy(format!(
                    "{SHOWN}/{} in the share: another call has removed it, which makes or deletes \
                     the same snapshot; repeat the call",
                    self.name
                )))
            }
            result => Ok(result?),
        }
    }

    /// Gives the archive an additional name.
    pub(super) fn link(
        &self,
        directory: &OwnedFd,
        name: &str,
        flags: AtFlags,
    ) -> rustix::io::Result<()> {
        rustix::fs::linkat(&self.of.all, &*self.name, directory, name, flags)
    }

    /// Removes the temporary name of the archive.
    pub(super) fn remove(&self) -> Done<()> {
        tree::unlink(&self.of.all, &*self.name, SHOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::super::path::Dir;
    use super::super::super::tree::Share;
    use super::*;
    use std::fs::{File, FileTimes};
    use std::time::{Duration, SystemTime};

    fn of(name: &str) -> Archived {
        Archived {
            dir: Dir::single(name),
            source: "pvc-1".to_owned(),
            id: format!("filer#share#{name}#{name}#pvc-1"),
        }
    }

    #[test]
    fn one_that_is_read_for_hours_is_not_taken_for_one_that_a_killed_call_has_left() {
        let share = tempfile::tempdir().unwrap();
        let tree = Share::Local(share.path().to_owned()).afresh().unwrap();
        let slow = Temporaries::make(&tree, &of("slow")).unwrap();
        let other = Temporaries::make(&tree, &of("other")).unwrap();
        for is_refreshed in [true, false] {
            let made = slow.begin().unwrap();
            let file = share.path().join(SHOWN).join(&made.name);
            let old = SystemTime::now() - Duration::from_secs(2 * 3600);
            let times = FileTimes::new().set_modified(old);
            let opened = File::options().write(true).open(&file).unwrap();
            opened.set_times(times).unwrap();
            if is_refreshed {
                made.refresh().unwrap();
            }
            other.begin().unwrap().remove().unwrap();
            assert_eq!(file.exists(), is_refreshed);
            if !is_refreshed {
                let failure = made.refresh().unwrap_err();
                assert!(failure.message.contains("another call"), "{failure}");
            }
        }
    }
}
