//! Each disk of the node as one driver sees it: its own, another's, or not known.

use belay_server::identity::DriverName;

use super::{DiskIndex, Entry, Identity, Inner, Owner, State, User};
use crate::device::disks::identity::Match;
use crate::kernel::Disk;

/// The user of a disk, as far as calls and the disk's identity show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DiskUser {
    /// A volume of the driver.
    Driver,
    /// A volume of another driver of this process.
    OtherDriver,
    /// The disk has no name, as the root disk of many clouds: no volume can be found on it.
    NoVolume,
    /// No call has named it.
    Unknown,
}

impl DiskIndex {
    /// All disks, and their users as that driver sees them. Queries none.
    pub(crate) fn users(&self, driver: &DriverName) -> Vec<(Disk, DiskUser)> {
        let inner = self.lock();
        let user_of = |entry: &Entry| {
            let users = inner.users.iter();
            let of_it = users.filter(|(owner, user)| inner.is_of(entry, owner, user));
            let drivers: Vec<_> = of_it.map(|(owner, _)| owner.driver.as_str()).collect();
            match &entry.state {
                _ if drivers.contains(&driver.as_str()) => DiskUser::Driver,
                _ if !drivers.is_empty() => DiskUser::OtherDriver,
                State::Known(identity) if identity.is_nameless() => DiskUser::NoVolume,
                _ => DiskUser::Unknown,
            }
        };
        let entries = inner.disks.values();
        entries
            .map(|entry| (entry.disk.clone(), user_of(entry)))
            .collect()
    }
}

impl Inner {
    /// The volume has the disk, or requests one with that identity.
    fn is_of(&self, entry: &Entry, owner: &Owner, user: &User) -> bool {
        let is_wanted = |identity: &Identity| identity.matches(&user.wanted) != Match::No;
        self.held_by(owner) == Some(&entry.disk)
            || matches!(&entry.state, State::Known(identity) if is_wanted(identity))
    }
}

impl Entry {
    /// For messages: its name, and its identity.
    pub(super) fn describe(&self) -> String {
        let name = &self.disk.name;
        match &self.state {
            State::Known(identity) => format!("{name} ({})", identity.describe()),
            State::Unasked | State::Asked => format!("{name} (its serial is being read)"),
            State::Late => format!("{name} (does not answer)"),
            State::Unread(why) => format!("{name} ({why})"),
        }
    }
}
