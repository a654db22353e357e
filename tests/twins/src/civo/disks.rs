//! With disks: a volume is one, and a change is done when its disk is changed.

use super::objects::Status;
use super::{Civo, Refusal, Twin};
use crate::{Hypervisor, Model, lock};
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// What an instance sees of a volume; its serial is the volume's ID.
pub const MODEL: Model = Model {
    vendor: "QEMU",
    product: "QEMU_HARDDISK",
};

/// The end of a change that its disk ends.
const NOT_YET: Duration = Duration::from_secs(24 * 3600);

/// The hypervisor of a twin, whose changes it ends.
pub(super) struct Disks {
    hypervisor: Arc<Hypervisor>,
    twin: Weak<Mutex<Twin>>,
}

/// A change of a volume's disk.
pub(super) enum Change {
    /// Into the instance of that host name.
    Plug(String),
    Unplug,
    Grow,
}

impl Civo {
    /// From now on, volumes have disks of the hypervisor, whose servers have the instances' host
    /// names.
    #[must_use]
    pub fn with_disks(self, hypervisor: Hypervisor) -> Self {
        let disks = Disks {
            hypervisor: Arc::new(hypervisor),
            twin: Arc::downgrade(&self.0),
        };
        lock(&self.0).disks = Some(disks);
        self
    }
}

impl Twin {
    /// When a change ends that begins now.
    pub(super) fn end(&self) -> Instant {
        let delay = match self.disks {
            Some(_) => NOT_YET,
            None => self.settings.delay,
        };
        Instant::now() + delay
    }

    /// Changes a disk before the answer. Without disks it has no effect.
    pub(super) fn disk(
        &self,
        what: &str,
        change: impl FnOnce(&Hypervisor) -> io::Result<()>,
    ) -> Result<(), Refusal> {
        let Some(disks) = &self.disks else {
            return Ok(());
        };
        change(&disks.hypervisor).map_err(|error| {
            eprintln!("{what}: {error}");
            Refusal::Broken
        })
    }

    /// Changes the disk of a volume after the answer, and ends the volume's change then.
    pub(super) fn perform(&self, id: &str, change: Change) {
        let (Some(disks), Some(volume)) = (&self.disks, self.state().volumes.get(id)) else {
            return;
        };
        let (hypervisor, twin) = (Arc::clone(&disks.hypervisor), disks.twin.clone());
        let (id, delay) = (id.to_owned(), self.settings.delay);
        let bytes = volume.later_disk_bytes();
        std::thread::spawn(move || {
            // A hypervisor takes so long.
            #[expect(clippy::disallowed_methods, reason = "no event comes before it")]
            std::thread::sleep(delay);
            let done = match change {
                Change::Plug(server) => hypervisor.plug(&id, &id, &server),
                Change::Unplug => hypervisor.unplug(&id),
                Change::Grow => hypervisor.grow(&id, bytes),
            };
            if let Err(error) = &done {
                eprintln!("volume {id}: {error}");
            }
            let Some(twin) = twin.upgrade() else {
                return;
            };
            if let Some(volume) = lock(&twin).change().volumes.get_mut(&id) {
                match done {
                    Ok(()) => volume.end(),
                    Err(_) => volume.status = Status::Error,
                }
            }
        });
    }
}
