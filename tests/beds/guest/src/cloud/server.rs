//! A server of the cloud: a guest that is on or off, with slots for disks. Disks can be plugged
//! whether the guest is on or off. Independent of volumes.

use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belay_guest::{Disk, Gone, Guest, Machine, Medium, Output, Power, Survival};

/// Maximum time that the guest's kernel may take to plug a disk.
const PLUG_MAX: Duration = Duration::from_secs(60);

/// A server to which volumes can be attached.
pub(crate) trait Host: Sync {
    /// Returns the server's ID in the cloud.
    fn id(&self) -> &str;
    /// Returns the server's address on the network of the guests.
    fn address(&self) -> IpAddr;
    /// Plugs a disk with this serial.
    ///
    /// # Errors
    /// Returns a message if all slots are taken.
    fn plug(&self, serial: &str, medium: &Arc<Medium>) -> Result<(), String>;
    /// Unplugs the disk; has no effect if the disk is not plugged.
    fn unplug(&self, serial: &str);
    /// Grows a plugged disk to this size in bytes.
    fn grow(&self, serial: &str, bytes: u64);
}

/// A machine, and the guest that runs in it.
pub(crate) struct Server<'a> {
    name: String,
    id: String,
    address: IpAddr,
    machine: &'a Machine,
    guest: Mutex<Option<Guest<'a>>>,
    /// The power switch of the running guest. The switch has a separate lock, since a running
    /// script locks the guest.
    power: Mutex<Option<Power>>,
    /// The number of slots for virtio-blk disks, which have the first slot numbers. The remaining
    /// slots are for SCSI disks.
    blocks: usize,
    slots: Mutex<Vec<Option<Plugged>>>,
}

#[derive(Clone)]
struct Plugged {
    serial: String,
    medium: Arc<Medium>,
}

impl<'a> Server<'a> {
    /// Creates a powered-off server with the given numbers of virtio-blk and SCSI slots.
    pub(crate) fn new(
        (name, id): (&str, &str),
        address: IpAddr,
        machine: &'a Machine,
        (blocks, scsis): (usize, usize),
    ) -> Self {
        Server {
            name: name.to_owned(),
            id: id.to_owned(),
            address,
            machine,
            guest: Mutex::new(None),
            power: Mutex::new(None),
            blocks,
            slots: Mutex::new(vec![None; blocks + scsis]),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Turns the server on. A running guest continues to run; a crashed guest is replaced by a new
    /// one.
    pub(crate) fn boot(&self) {
        let mut guest = lock(&self.guest);
        if let Some(running) = guest.as_mut()
            && running.try_run_within(PLUG_MAX, "true").is_err()
        {
            *guest = None;
        }
        if guest.is_none() {
            let booted = self.machine.boot();
            *lock(&self.power) = Some(booted.power());
            *guest = Some(booted);
        }
    }

    /// Cuts the power: everything that the guest and its disks had in memory is lost.
    pub(crate) fn cut(&self) {
        // Cut the power before locking the guest, because a call that is waiting for the guest may
        // hold the lock.
        if let Some(power) = lock(&self.power).take() {
            power.cut();
        }
        let mut guest = lock(&self.guest);
        drop(guest.take());
        for plugged in lock(&self.slots).iter().flatten() {
            plugged.medium.lose_cache(Survival::Nothing);
        }
    }

    /// Runs a script in the guest.
    pub(crate) fn run(&self, script: &str, within: Duration) -> Result<Output, Gone> {
        let mut guest = lock(&self.guest);
        let guest = guest.as_mut().ok_or(Gone)?;
        guest.try_run_within(within, script)
    }

    /// Makes the guest's driver bind or unbind the slot. Has no effect if the guest is off, since a
    /// booting guest finds the disks in its slots.
    fn driver(&self, verb: &str, slot: usize) {
        let driver = "/sys/bus/platform/drivers/virtio-uml";
        let script = format!("echo virtio-uml.{slot} >{driver}/{verb}");
        match self.run(&script, PLUG_MAX) {
            Ok(output) if output.code != 0 => {
                eprintln!("{}: slot {slot}: {verb}: {}", self.name, output.text);
            }
            Ok(_) | Err(Gone) => {}
        }
    }

    /// Plugs a SCSI disk of this vendor and product.
    ///
    /// # Errors
    /// Returns a message if all slots are taken.
    pub(crate) fn plug_scsi(
        &self,
        (vendor, product): (&str, &str),
        serial: &str,
        medium: &Arc<Medium>,
    ) -> Result<(), String> {
        let disk = Disk::scsi(vendor, product, serial, medium);
        self.put(self.blocks..usize::MAX, disk, serial, medium)
    }

    /// Plugs a disk into one of these slots.
    fn put(
        &self,
        among: Range<usize>,
        disk: Disk,
        serial: &str,
        medium: &Arc<Medium>,
    ) -> Result<(), String> {
        let slot = {
            let mut slots = lock(&self.slots);
            let is_free = |slot: &usize| slots[*slot].is_none();
            let free = (among.start..among.end.min(slots.len())).find(is_free);
            let slot = free.ok_or_else(|| format!("{} has no free slot", self.name))?;
            slots[slot] = Some(Plugged {
                serial: serial.to_owned(),
                medium: Arc::clone(medium),
            });
            // Insert the disk first: otherwise, a guest that is just booting could see a slot that
            // is marked as taken but is empty.
            self.machine.slot(slot).insert(disk);
            slot
        };
        self.driver("bind", slot);
        Ok(())
    }

    /// Copies the current content of a plugged disk to a file.
    pub(crate) fn copy(&self, serial: &str, to: &Path) -> io::Result<()> {
        let slot = self.slot_of(serial);
        let plugged = slot.and_then(|slot| lock(&self.slots)[slot].clone());
        let plugged = plugged.ok_or_else(|| io::Error::other("no such disk"))?;
        plugged.medium.copy(to)
    }

    /// Whether a disk with this serial is plugged.
    pub(crate) fn has(&self, serial: &str) -> bool {
        self.slot_of(serial).is_some()
    }

    fn slot_of(&self, serial: &str) -> Option<usize> {
        let slots = lock(&self.slots);
        let is_it = |slot: &Option<Plugged>| slot.as_ref().is_some_and(|it| it.serial == serial);
        slots.iter().position(is_it)
    }
}

impl Host for Server<'_> {
    fn id(&self) -> &str {
        &self.id
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn plug(&self, serial: &str, medium: &Arc<Medium>) -> Result<(), String> {
        self.put(0..self.blocks, Disk::block(serial, medium), serial, medium)
    }

    fn unplug(&self, serial: &str) {
        let Some(slot) = self.slot_of(serial) else {
            return;
        };
        self.driver("unbind", slot);
        self.machine.slot(slot).eject();
        if let Some(plugged) = lock(&self.slots)[slot].take() {
            // Write the cache to the file: unplugging a disk is not a power cut, and a different
            // server may read the file next.
            plugged.medium.lose_cache(Survival::Everything);
        }
    }

    fn grow(&self, serial: &str, bytes: u64) {
        if let Some(slot) = self.slot_of(serial) {
            self.machine.slot(slot).grow(bytes);
        }
    }
}

/// Locks the mutex even after a panic: a script that took too long panicked while holding the lock,
/// but the guest still exists.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
