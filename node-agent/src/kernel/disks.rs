//! Calls that read the node's disks and mappers from sysfs, and the types of their results. This
//! module does not know which device belongs to which volume.

use super::{Descriptors, Dev, Result};

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

/// The kind of device with a given device number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskAt {
    /// A disk.
    Disk(Disk),
    /// Another kind of block device: a partition, or a device on top of other devices (LVM, MD).
    Other,
    /// No block device has the number: the device was removed.
    Nothing,
}

/// The identity that a disk's bus reports, from memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskFacts {
    /// The disk has no identity except a serial number. To read the serial number,
    /// [`Disks::disk_serial`] sends a request to the disk.
    Virtio,
    /// The INQUIRY data that the kernel keeps (SPC-6).
    Scsi(ScsiFacts),
    /// The identity that the disk's NVMe controller and namespace report.
    Nvme(NvmeFacts),
}

/// The identity of a SCSI disk. A page is empty if the disk does not have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScsiFacts {
    /// The T10 vendor identification, with its padding.
    pub(crate) vendor: String,
    /// The product identification, with its padding.
    pub(crate) model: String,
    /// VPD page 0x80, the unit serial number.
    pub(crate) serial_page: Vec<u8>,
    /// VPD page 0x83, the device identification.
    pub(crate) id_page: Vec<u8>,
}

/// The identity of an NVMe disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NvmeFacts {
    /// The model of the disk's controller.
    pub(crate) model: String,
    /// The serial number of the disk's controller.
    pub(crate) serial: String,
    /// The namespace's identifier (`nvme_ns_head` in the kernel), which begins with `eui.`, `uuid.`
    /// or `nvme.`.
    pub(crate) wwid: String,
}

/// Disks in sysfs (Documentation/ABI/stable/sysfs-block). Only [`Disks::disk_serial`] and
/// [`Disks::disk_rescan`] send requests to a disk; all other calls read memory only.
pub(crate) trait Disks {
    /// Returns all disks, sorted by name. Does not block.
    fn disks(&self) -> Result<Vec<Disk>>;
    /// Returns the device with this device number. Does not block.
    fn disk(&self, dev: Dev) -> Result<DiskAt>;
    /// Returns the device number of a block device by its name; `None` if there is no such device.
    /// Does not block.
    fn disk_named(&self, name: &str) -> Result<Option<Dev>>;
    /// Returns the sequence number of a block device by its name; `None` if there is no such
    /// device, and before Linux 5.15. Does not block.
    fn diskseq_named(&self, name: &str) -> Result<Option<u64>>;
    /// Whether the disk has partitions, or other devices are built on it (LVM, MD, LUKS,
    /// multipath). Does not block.
    fn disk_is_divided(&self, disk: &Disk) -> Result<bool>;
    /// Returns the identity that the disk's bus reports; `None` if the disk was removed. Does not
    /// block.
    fn disk_facts(&self, disk: &Disk) -> Result<Option<DiskFacts>>;
    /// Returns the `serial` of a virtio disk. Sends a request to the disk (`VIRTIO_BLK_T_GET_ID`),
    /// and waits for the disk's response. Empty if the disk has no serial; `None` if the disk was
    /// removed.
    fn disk_serial(&self, disk: &Disk) -> Result<Option<String>>;
    /// Makes the kernel read the size of a SCSI disk again (`device/rescan`), and waits for the
    /// disk's response. Does nothing for virtio and NVMe disks, which report size changes
    /// themselves and have no file `rescan`.
    fn disk_rescan(&self, disk: &Disk) -> Result<()>;
}

/// A device-mapper device, as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapper {
    /// The device number.
    pub(crate) dev: Dev,
    /// The name that the creator of the mapper chose.
    pub(crate) name: String,
    /// The UUID, which begins with the kind of the mapper, such as `CRYPT-LUKS2-`.
    pub(crate) uuid: String,
    /// The devices that the mapper uses. A removed disk is not listed.
    pub(crate) below: Vec<Dev>,
}

/// Mappers in sysfs (Documentation/ABI/testing/sysfs-block-dm), and the file by which cryptsetup
/// gets the key of a mapper. No call blocks.
pub(crate) trait Mappers: Descriptors {
    /// Whether the device number belongs to the device-mapper driver. Makes no system call: the
    /// driver's major number is read when the agent starts and when a mapper is found.
    fn is_mapper(&self, dev: Dev) -> bool;
    /// Returns the mapper with this device number; `None` if there is none.
    fn mapper(&self, dev: Dev) -> Result<Option<Mapper>>;
    /// Returns the mappers that use the device.
    fn mappers_over(&self, dev: Dev) -> Result<Vec<Mapper>>;
    /// Returns all mappers.
    fn mappers(&self) -> Result<Vec<Mapper>>;
    /// memfd_create(2) and `F_ADD_SEALS`: returns a file in memory with this content, which no
    /// process can change.
    fn sealed_file(&self, content: &[u8]) -> Result<Self::Fd>;
}
