//! Volumes with disks on a hypervisor: a change of a volume is complete once its disk has changed.

use super::objects::Status;
use super::{Civo, Refusal, Twin};
use crate::{Hypervisor, Model, lock};
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The model that an instance sees for a volume's disk; the disk's serial is the volume's ID.
pub const MODEL: Model = Model {
    vendor: "QEMU",
    product: "QEMU_HARDDISK",
};

/// The delay of a change that ends when the volume's disk has changed: longer than any test.
const NOT_YET: Duration = Duration::from_secs(24 * 3600);

/// The hypervisor of a twin, which completes the twin's changes.
pub(super) struct Disks {
    hypervisor: Arc<Hypervisor>,
    twin: Weak<Mutex<Twin>>,
}

/// A change of a volume's disk.
pub(super) enum Change {
    /// Plugs the disk into the instance with this host name.
    Plug(String),
    Unplug,
    Grow,
}

impl Civo {
    /// Gives each new volume a disk on the hypervisor. The hypervisor's guests have the host names
    /// of the instances.
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
    /// Returns the time at which a change that begins now is due to end.
    pub(super) fn end(&self) -> Instant {
        let delay = match self.disks {
            Some(_) => NOT_YET,
            None => self.settings.delay,
        };
        Instant::now() + delay
    }

    /// Changes a disk before the response is sent. Has no effect if the twin has no disks.
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

    /// Changes the disk of a volume in the background, and then ends the volume's change.
    pub(super) fn perform(&self, id: &str, change: Change) {
        let (Some(disks), Some(volume)) = (&self.disks, self.state().volumes.get(id)) else {
            return;
        };
        let (hypervisor, twin) = (Arc::clone(&disks.hypervisor), disks.twin.clone());
        let (id, delay) = (id.to_owned(), self.settings.delay);
        let bytes = volume.later_disk_bytes();
        std::thread::spawn(move || {
            // A real hypervisor also takes time to change a disk.
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
