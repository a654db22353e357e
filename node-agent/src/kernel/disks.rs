//! Disks as the kernel shows them: the verbs on sysfs, and their types. Does not know which disk
//! belongs to which volume.

use super::{Dev, Result};

/// A whole disk with hardware behind it: virtio, SCSI or NVMe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Disk {
    /// The disk's device number.
    pub(crate) dev: Dev,
    /// The disk's name in `/sys/block` and `/dev`.
    pub(crate) name: String,
    /// The disk's sequence number, unique since the machine booted (Linux 5.15). 0 before that.
    pub(crate) diskseq: u64,
    /// The disk's size in bytes.
    pub(crate) bytes: u64,
}

/// The device behind a device number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskAt {
    /// A disk.
    Disk(Disk),
    /// Another kind of block device: a partition, or one built on other devices (LVM, MD).
    Other,
    /// There is no block device: it was removed.
    Nothing,
}

/// The identity that a disk's bus reports, from memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskFacts {
    /// The bus reports only a serial number, which takes a request to the disk:
    /// [`Disks::disk_serial`].
    Virtio,
    /// The INQUIRY data that the kernel keeps (SPC-6).
    Scsi(ScsiFacts),
    /// The identity that its controller and namespace report.
    Nvme(NvmeFacts),
}

/// The identity of a SCSI disk. A page that the disk does not have is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScsiFacts {
    /// T10 vendor identification, with its padding.
    pub(crate) vendor: String,
    /// Product identification, with its padding.
    pub(crate) model: String,
    /// Page 0x80, unit serial number.
    pub(crate) serial_page: Vec<u8>,
    /// Page 0x83, device identification.
    pub(crate) id_page: Vec<u8>,
}

/// The identity of an NVMe disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NvmeFacts {
    /// The model of the disk's controller.
    pub(crate) model: String,
    /// The serial number of the disk's controller.
    pub(crate) serial: String,
    /// The namespace's own identifier (`nvme_ns_head` in the kernel): `eui.`, `uuid.` or `nvme.`.
    pub(crate) wwid: String,
}

/// Disks in sysfs (Documentation/ABI/stable/sysfs-block). All calls but [`Disks::disk_serial`] and
/// [`Disks::disk_rescan`] read memory only.
pub(crate) trait Disks {
    /// All disks, by name. Quick.
    fn disks(&self) -> Result<Vec<Disk>>;
    /// The device with that number, if any. Quick.
    fn disk(&self, dev: Dev) -> Result<DiskAt>;
    /// The number of the block device of that name; `None` if there is no such device. Quick.
    fn disk_named(&self, name: &str) -> Result<Option<Dev>>;
    /// The sequence number of the block device of that name; `None` if there is no such device, and
    /// before Linux 5.15. Quick.
    fn diskseq_named(&self, name: &str) -> Result<Option<u64>>;
    /// Whether the disk has partitions, or other devices are built on it (LVM, MD, LUKS,
    /// multipath). Quick.
    fn disk_is_divided(&self, disk: &Disk) -> Result<bool>;
    /// The identity that the disk's bus reports; `None` if the disk was removed. Quick.
    fn disk_facts(&self, disk: &Disk) -> Result<Option<DiskFacts>>;
    /// The `serial` of a virtio disk: a request to the disk (`VIRTIO_BLK_T_GET_ID`), which waits
    /// until the disk answers. Empty if the disk has none; `None` if it was removed.
    fn disk_serial(&self, disk: &Disk) -> Result<Option<String>>;
    /// Makes the kernel read the size of a SCSI disk again (`device/rescan`); virtio and NVMe disks
    /// report theirs and have no such file. Waits for the disk.
    fn disk_rescan(&self, disk: &Disk) -> Result<()>;
}
