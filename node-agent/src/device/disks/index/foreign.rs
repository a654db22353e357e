//! The disks of the node and their users, from the perspective of one driver: the driver itself,
//! another driver, or an unknown user.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use belay_contract::disk::{DiskIdentity, NameTemplate};
use belay_server::identity::DriverName;

use super::{Again, DiskIndex, Entry, Identity, Inner, Owner, State};
use crate::device::disks::identity::Match;
use crate::kernel::{Dev, Disk};

/// The user of a disk, determined from calls and the disk's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DiskUser {
    /// A volume of the driver uses the disk.
    Driver,
    /// A volume of another driver of this process uses the disk.
    OtherDriver,
    /// The disk has no name, like the root disk in many clouds, so it cannot be recognised as a
    /// volume's disk.
    NoVolume,
    /// No call has named the disk.
    Unknown,
}

/// A disk, and its user.
pub(crate) struct DiskSeen {
    pub(crate) disk: Disk,
    pub(crate) user: DiskUser,
    /// The worldwide name of the logical unit; each path to the unit is a separate disk. `None` if
    /// the unit has no such name.
    pub(crate) unit: Option<String>,
    /// The time at which the disk was plugged in, or its volume was unstaged. `None` if the disk
    /// has been plugged in since the first scan.
    pub(crate) since: Option<Instant>,
}

impl DiskIndex {
    /// Returns all disks, and the user of each from the driver's perspective. With `names`, omits
    /// disks that have none of these names. Does not query any disk.
    pub(in crate::device::disks) fn users(
        &self,
        driver: &DriverName,
        names: Option<&[NameTemplate]>,
    ) -> Vec<DiskSeen> {
        let (disks, claims) = {
            let inner = self.lock();
            let disks: Vec<_> = inner.disks.values().map(Entry::snapshot).collect();
            (disks, inner.claims())
        };
        // The lock is released, so searches for a disk do not wait for the comparisons.
        let is_named = |identity: &Option<Arc<Identity>>| {
            let both = names.zip(identity.as_ref());
            both.is_none_or(|(names, identity)| !identity.names_like(names).is_empty())
        };
        let disks = disks.into_iter().filter(|(_, it, _)| is_named(it));
        let seen = disks.map(|(disk, identity, since)| {
            let user = claims.user_of(&disk, identity.as_deref(), driver);
            let unit = identity.and_then(|identity| identity.unit().map(str::to_owned));
            DiskSeen {
                disk,
                user,
                unit,
                since,
            }
        });
        seen.collect()
    }

    /// Records that the volume no longer needs a disk. If the volume's disk is still plugged in,
    /// sets [`DiskSeen::since`] to the present time, because the cloud will detach the disk.
    /// Returns the disk that was found for the volume.
    pub(in crate::device::disks) fn forget(
        &self,
        owner: &Owner,
        wanted: Option<&DiskIdentity>,
    ) -> Option<Disk> {
        let mut inner = self.lock();
        let matching = || Some(inner.only(wanted?).ok()??.0.dev);
        let left = inner.held_by(owner).map(|disk| disk.dev).or_else(matching);
        let user = inner.users.remove(owner);
        if let Some(entry) = left.and_then(|dev| inner.disks.get_mut(&dev)) {
            entry.since = Some(Instant::now());
        }
        user?.held
    }
}

/// The disks that volumes have, with their drivers, and the identities of the disks that the other
/// volumes need.
struct Claims {
    held: BTreeMap<Dev, Vec<String>>,
    wanted: Vec<(String, DiskIdentity)>,
}

impl Inner {
    /// Returns the disks in use, and the identities of volumes that have no disk yet. The identity
    /// of a volume that already has a disk is not compared with other disks.
    fn claims(&self) -> Claims {
        let (mut held, mut wanted) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
        for (owner, user) in &self.users {
            let driver = owner.driver.clone();
            match self.held_by(owner) {
                Some(disk) => held.entry(disk.dev).or_default().push(driver),
                None => wanted.extend(user.wanted.clone().map(|wanted| (driver, wanted))),
            }
        }
        Claims { held, wanted }
    }
}

impl Claims {
    fn user_of(&self, disk: &Disk, identity: Option<&Identity>, driver: &DriverName) -> DiskUser {
        let holders = self.held.get(&disk.dev).into_iter().flatten();
        let is_wanted = |wanted: &DiskIdentity| {
            identity.is_some_and(|identity| identity.matches(wanted) != Match::No)
        };
        let seekers = self.wanted.iter().filter(|(_, wanted)| is_wanted(wanted));
        let drivers: Vec<_> = holders.chain(seekers.map(|(driver, _)| driver)).collect();
        match identity {
            _ if drivers.iter().any(|it| it.as_str() == driver.as_str()) => DiskUser::Driver,
            _ if !drivers.is_empty() => DiskUser::OtherDriver,
            Some(identity) if identity.is_nameless() => DiskUser::NoVolume,
            _ => DiskUser::Unknown,
        }
    }
}

impl Entry {
    pub(super) fn new(disk: Disk, state: State, since: Option<Instant>) -> Entry {
        Entry {
            disk,
            state,
            again: Again::No,
            since,
        }
    }

    /// Returns the disk, its identity if it is known, and [`DiskSeen::since`].
    fn snapshot(&self) -> (Disk, Option<Arc<Identity>>, Option<Instant>) {
        let identity = match &self.state {
            State::Known(identity) => Some(Arc::clone(identity)),
            _ => None,
        };
        (self.disk.clone(), identity, self.since)
    }

    /// Returns the name and the identity of the disk, for messages.
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

#[cfg(test)]
mod tests {
    use super::super::User;
    use super::*;
    use belay_server::request::VolumeId;

    const DISKS: u32 = 200;

    fn driver(name: &str) -> DriverName {
        name.parse().unwrap()
    }

    /// Returns an index with volumes of two drivers, some of which have no disk yet. The index also
    /// has unused disks, disks that do not respond, and disks without a name.
    fn filled() -> DiskIndex {
        let index = DiskIndex::new();
        let mut inner = index.lock();
        for number in 0..DISKS {
            let serial = format!("volume-{number}");
            let dev = Dev {
                major: 252,
                minor: number * 16,
            };
            let disk = Disk {
                dev,
                name: format!("vd{number}"),
                diskseq: u64::from(number) + 1,
                bytes: 1 << 30,
            };
            if !number.is_multiple_of(7) {
                let of = match number.is_multiple_of(3) {
                    true => driver("one.example"),
                    false => driver("two.example"),
                };
                let owner = Owner::new(&of, &VolumeId::new(serial.as_str()).unwrap());
                let user = User {
                    wanted: Some(DiskIdentity::Serial(serial.clone())),
                    held: (!number.is_multiple_of(4)).then(|| disk.clone()),
                };
                inner.users.insert(owner, user);
            }
            let said = match number.is_multiple_of(11) {
                true => "",
                false => &serial,
            };
            let state = match number.is_multiple_of(5) {
                true => State::Late,
                false => State::Known(Arc::new(Identity::virtio(said))),
            };
            inner.disks.insert(dev, Entry::new(disk, state, None));
        }
        drop(inner);
        index
    }

    /// Compares each disk with each volume, as a reference for [`DiskIndex::users`].
    fn compared(index: &DiskIndex, driver: &DriverName) -> Vec<DiskUser> {
        let inner = index.lock();
        let user_of = |entry: &Entry| {
            let (disk, identity, _) = entry.snapshot();
            let is_of = |owner: &Owner| {
                let wanted = inner.users[owner].wanted.as_ref().unwrap();
                let is_it = |identity: &Identity| identity.matches(wanted) != Match::No;
                inner.held_by(owner) == Some(&disk) || identity.as_deref().is_some_and(is_it)
            };
            let owners = inner.users.keys().filter(|owner| is_of(owner));
            let drivers: Vec<_> = owners.map(|owner| owner.driver.as_str()).collect();
            match identity {
                _ if drivers.contains(&driver.as_str()) => DiskUser::Driver,
                _ if !drivers.is_empty() => DiskUser::OtherDriver,
                Some(identity) if identity.is_nameless() => DiskUser::NoVolume,
                _ => DiskUser::Unknown,
            }
        };
        inner.disks.values().map(user_of).collect()
    }

    #[test]
    fn each_disk_has_the_user_that_comparing_it_with_each_volume_finds() {
        let index = filled();
        for name in ["one.example", "two.example", "three.example"] {
            let users = index.users(&driver(name), None).into_iter();
            let users: Vec<_> = users.map(|seen| seen.user).collect();
            assert_eq!(users, compared(&index, &driver(name)), "{name}");
            let kinds: std::collections::BTreeSet<_> = users.into_iter().collect();
            assert!(kinds.len() >= 3, "{name}: {kinds:?}");
        }
    }
}
