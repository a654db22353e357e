//! Disks for guests through vhost-user: virtio-blk and virtio-scsi on a medium that can fail.
//! Threads of the test's process serve the disks, so a test can cause faults directly.

mod block;
mod medium;
mod memory;
mod queue;
mod scsi;
mod session;
pub(crate) mod slot;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use medium::{Failing, Medium, Survival};

/// A set of feature bits.
#[derive(Clone, Copy, Debug)]
struct Features(u64);

impl Features {
    const fn of(bits: &[u32]) -> Self {
        let (mut all, mut at) = (0, 0);
        while at < bits.len() {
            all |= 1 << bits[at];
            at += 1;
        }
        Features(all)
    }

    fn and(self, other: Features) -> Self {
        Features(self.0 | other.0)
    }

    fn bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }
}

/// A disk for a slot: a medium with an identity.
#[derive(Debug)]
pub struct Disk {
    medium: Arc<Medium>,
    model: Model,
}

#[derive(Debug)]
enum Model {
    Block { serial: String },
    Scsi(scsi::Identity),
}

impl Disk {
    /// Creates a disk for a virtio-blk slot. Only the first 20 bytes of the serial are used, as in
    /// the protocol.
    #[must_use]
    pub fn block(serial: &str, medium: &Arc<Medium>) -> Self {
        let serial = serial.to_owned();
        Disk {
            medium: Arc::clone(medium),
            model: Model::Block { serial },
        }
    }

    /// Creates a disk for a SCSI slot; udev links it as `scsi-0VENDOR_PRODUCT_SERIAL`. Only 8
    /// characters of the vendor and 16 of the product are used.
    #[must_use]
    pub fn scsi(vendor: &str, product: &str, serial: &str, medium: &Arc<Medium>) -> Self {
        Disk {
            medium: Arc::clone(medium),
            model: Model::Scsi(scsi::Identity {
                vendor: vendor.to_owned(),
                product: product.to_owned(),
                serial: serial.to_owned(),
                has_grown: AtomicBool::new(false),
            }),
        }
    }

    fn is_scsi(&self) -> bool {
        matches!(self.model, Model::Scsi(_))
    }

    fn features(&self) -> Features {
        match &self.model {
            Model::Block { .. } => block::FEATURES,
            Model::Scsi(_) => scsi::FEATURES,
        }
    }

    fn config(&self) -> Vec<u8> {
        match &self.model {
            Model::Block { .. } => block::config(&self.medium),
            Model::Scsi(_) => scsi::config(),
        }
    }

    fn has_grown(&self) {
        if let Model::Scsi(identity) = &self.model {
            identity.has_grown.store(true, Ordering::SeqCst);
        }
    }
}

/// A disk that is inserted into a slot.
#[derive(Debug)]
struct Inserted {
    disk: Disk,
    is_held: AtomicBool,
}

impl Inserted {
    /// Whether the disk currently processes the requests of this queue.
    fn is_served(&self, queue: u32) -> bool {
        let is_event = self.disk.is_scsi() && queue == scsi::EVENT_QUEUE;
        !is_event && !self.is_held.load(Ordering::SeqCst)
    }

    fn perform(&self, queue: u32, sent: &[u8], room: usize) -> Option<Vec<u8>> {
        let medium = &self.disk.medium;
        match &self.disk.model {
            Model::Block { serial } => block::perform(medium, serial, sent, room),
            // Task management has nothing to abort, since requests do not overlap.
            Model::Scsi(_) if queue == scsi::CONTROL_QUEUE => Some(vec![0; room]),
            Model::Scsi(identity) => scsi::perform(medium, identity, sent, room),
        }
    }
}
