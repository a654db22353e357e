//! Where iso9660 and vfat say what they are: the probe finds them, and config drives have them.

/// ECMA-119: the descriptors begin after 16 sectors of 2048 bytes; behind the type of the first one
/// is the standard's name (uapi/linux/iso_fs.h).
pub(crate) const ISO_DESCRIPTOR: usize = 32_768;
/// The name, behind the byte of the type.
pub(crate) const ISO_MAGIC: &[u8] = b"CD001";

/// The type in an extended boot record, as mkfs.fat(8) and others write it
/// (uapi/linux/msdos_fs.h), and its offset on the device.
pub(crate) const FAT12: (usize, &[u8]) = (54, b"FAT12   ");
pub(crate) const FAT16: (usize, &[u8]) = (54, b"FAT16   ");
pub(crate) const FAT32: (usize, &[u8]) = (82, b"FAT32   ");
