//! Reads a document from the config drive: a small disk whose iso9660 or vfat filesystem has a
//! known label. The config drive is mounted read-only, and only while the document is read. The
//! mount is not attached to any path. Other disks are never mounted, because the label is read from
//! the first sectors of each disk.

use std::path::Path;

use belay_server::size::Exact;

use crate::filesystem::{FAT12, FAT16, FAT32, ISO_DESCRIPTOR, ISO_MAGIC};
use crate::kernel::linux::Linux;
use crate::kernel::{self, AlignedBuf, Disk, Kernel as _, MountAttrs, Open};

/// Maximum size of a disk that is searched for the label, in bytes. A config drive has at most 64
/// MiB (Nova, for vfat), and a Cinder volume at least 1 GiB. The limit prevents a pod from giving
/// its node a different ID: a pod can write the label to its volume, but every volume is larger
/// than the limit.
const DISK_BYTES_MAX: u64 = (1 << 30) - 1;

/// The number of bytes that are read to find a label: [`LABEL_BYTES`], rounded up to a multiple of
/// 4096, because direct I/O reads whole blocks of up to 4096 bytes.
const PROBE_BYTES: usize = LABEL_BYTES.next_multiple_of(4096);

/// The mode in which a disk is opened; its flags bypass the page cache.
const HOW: Open = Open::DeviceRead;

/// Returns the document on the config drive. Reads the first sectors of every small disk of the
/// node, and blocks while one of them does not respond.
///
/// # Errors
/// Returns a message if no disk or more than one disk has the label, or if the disk cannot be read.
pub(super) fn read(
    kernel: &Linux,
    label: &str,
    document: &str,
    bytes_max: usize,
) -> Result<Vec<u8>, String> {
    let mut disks = kernel
        .small_disks(DISK_BYTES_MAX)
        .map_err(|error| error.to_string())?;
    let mut others = Vec::new();
    let mut found = Vec::new();
    for disk in disks.drain(..) {
        match probe(kernel, &disk) {
            Ok(Some(it)) if it.is(label) => found.push((disk, it)),
            Ok(_) => others.push(disk.name),
            Err(error) => others.push(format!("{} ({error})", disk.name)),
        }
    }
    let (disk, found) = the_one(&found, &others, label)?;
    let text = mounted(kernel, disk, found, document, bytes_max);
    text.map_err(|why| format!("{}: {why}", disk.name))
}

/// Returns the only disk that has the label.
///
/// # Errors
/// Returns a message if no disk or more than one disk has the label.
fn the_one<'a>(
    found: &'a [(Disk, Label)],
    others: &[String],
    label: &str,
) -> Result<&'a (Disk, Label), String> {
    match found {
        [one] => Ok(one),
        [] if others.is_empty() => Err(format!(
            "no disk of less than 1 GiB, so none with the label {label}"
        )),
        [] => Err(format!(
            "no disk has the label {label}; checked: {}",
            others.join(", ")
        )),
        [(one, _), (other, _), ..] => Err(format!(
            "{} and {} both have the label {label}, so neither is used",
            one.name, other.name
        )),
    }
}

fn path(disk: &Disk) -> String {
    format!("/dev/{}", disk.name)
}

fn probe(kernel: &Linux, disk: &Disk) -> kernel::Result<Option<Label>> {
    let device = kernel.open(Path::new(&path(disk)), HOW)?;
    let mut start = AlignedBuf::new(PROBE_BYTES);
    let length = kernel.pread(&device, &mut start, 0)?;
    Ok(label_of(&start[..length]))
}

fn mounted(
    kernel: &Linux,
    disk: &Disk,
    label: &Label,
    document: &str,
    bytes_max: usize,
) -> Result<Vec<u8>, String> {
    let mount = mount(kernel, disk, label).map_err(|error| error.to_string())?;
    let found = kernel.stat(&mount).map_err(|error| error.to_string())?;
    if found.dev != disk.dev {
        return Err("it was exchanged for another disk".to_owned());
    }
    let text = file(kernel, &mount, document, bytes_max);
    let text = text.map_err(|error| format!("{document}: {error}"))?;
    if text.len() > bytes_max {
        return Err(format!(
            "{document} has more than {}",
            Exact(bytes_max as u64)
        ));
    }
    Ok(text)
}

fn mount(
    kernel: &Linux,
    disk: &Disk,
    label: &Label,
) -> kernel::Result<<Linux as kernel::Descriptors>::Fd> {
    let context = kernel.fsopen(label.fs_type)?;
    kernel.fsconfig_set(&context, "source", Some(&path(disk)))?;
    kernel.fsconfig_set(&context, "ro", None)?;
    // The node may also have mounted the config drive, so request a shared superblock.
    let is_shared = true;
    kernel.fsconfig_create(&context, is_shared)?;
    let attrs = MountAttrs::READ_ONLY
        .with(MountAttrs::NO_SUID)
        .with(MountAttrs::NO_DEV)
        .with(MountAttrs::NO_EXEC);
    kernel.fsmount(&context, attrs)
}

/// Reads at most `bytes_max + 1` bytes of the file; a result of that length means that the file is
/// too long.
fn file(
    kernel: &Linux,
    mount: &<Linux as kernel::Descriptors>::Fd,
    document: &str,
    bytes_max: usize,
) -> kernel::Result<Vec<u8>> {
    let mut at = kernel.open_root(mount)?;
    let (folders, name) = document.rsplit_once('/').unwrap_or(("", document));
    for folder in folders.split('/').filter(|folder| !folder.is_empty()) {
        at = kernel.open_beneath(&at, folder, Open::Directory)?;
    }
    let file = kernel.open_beneath(&at, name, Open::FileRead)?;
    let mut text = vec![0; bytes_max + 1];
    let mut length = 0;
    loop {
        let offset = u64::try_from(length).unwrap_or(u64::MAX);
        let more = kernel.pread(&file, &mut text[length..], offset)?;
        length += more;
        if more == 0 || length == text.len() {
            text.truncate(length);
            return Ok(text);
        }
    }
}

/// The number of bytes at the start of a device that contain the label of each filesystem. The last
/// of these bytes belong to the first volume descriptor of iso9660.
const LABEL_BYTES: usize = ISO_DESCRIPTOR + ISO_SECTOR;

const ISO_SECTOR: usize = 2048;
/// The first byte of a primary volume descriptor, which is its type (ECMA-119, 8.4). The standard
/// identifier `CD001` follows.
const ISO_PRIMARY: u8 = 1;
/// The version of the volume descriptor, which follows the standard identifier.
const ISO_VERSION: u8 = 1;
/// Offset and length in bytes of the volume identifier in the descriptor.
const ISO_LABEL: (usize, usize) = (40, 32);

/// Offset and value of the signature at the end of a FAT boot sector.
const FAT_SIGNATURE: (usize, &[u8]) = (510, b"\x55\xaa");
/// The extended boot signature of FAT. If this byte is present, the volume label and the filesystem
/// type after it are valid.
const FAT_EXTENDED: u8 = 0x29;
/// Offset of the label from the extended boot signature, and length of the label, in bytes. The
/// filesystem type follows the label.
const FAT_LABEL: (usize, usize) = (5, 11);

/// The type and the label of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    /// The name of the filesystem for fsopen(2).
    fs_type: &'static str,
    text: Vec<u8>,
}

impl Label {
    /// Whether the filesystem has the given label, ignoring case, because tools for vfat convert
    /// labels to upper case.
    fn is(&self, label: &str) -> bool {
        self.text.eq_ignore_ascii_case(label.as_bytes())
    }
}

/// Returns the label of the filesystem whose first [`LABEL_BYTES`] bytes are `start`; `start` is
/// shorter if the device is smaller. A vfat filesystem also has a label in its root directory, but
/// only the label in the boot sector is read here, because mkfs.fat(8) and mlabel(1) keep both
/// labels equal.
fn label_of(start: &[u8]) -> Option<Label> {
    let label = |fs_type, text: &[u8]| Label {
        fs_type,
        text: text.trim_ascii_end().to_owned(),
    };
    let iso = start.get(ISO_DESCRIPTOR..).unwrap_or_default();
    if let [ISO_PRIMARY, named @ ..] = iso
        && let Some([ISO_VERSION, ..]) = named.strip_prefix(ISO_MAGIC)
    {
        return Some(label("iso9660", part(iso, ISO_LABEL)?));
    }
    let (signature, expected) = FAT_SIGNATURE;
    if part(start, (signature, expected.len()))? != expected {
        return None;
    }
    [FAT12, FAT16, FAT32].into_iter().find_map(|(at, kind)| {
        let record = start.get(at - FAT_LABEL.0 - FAT_LABEL.1..)?;
        let is_it = record.first() == Some(&FAT_EXTENDED) && start.get(at..)?.starts_with(kind);
        Some(label("vfat", part(record, FAT_LABEL)?)).filter(|_| is_it)
    })
}

fn part(bytes: &[u8], (offset, length): (usize, usize)) -> Option<&[u8]> {
    bytes.get(offset..)?.get(..length)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{Cause, Dev};

    /// Reads a file below a directory, which takes the role of the root of a mount.
    fn file_in(dir: &Path, document: &str, bytes_max: usize) -> kernel::Result<Vec<u8>> {
        let kernel = Linux::for_helper();
        let root = kernel.open(dir, Open::Directory).unwrap();
        file(&kernel, &root, document, bytes_max)
    }

    #[test]
    fn a_document_is_found_below_its_directories_and_through_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let latest = dir.path().join("openstack/latest");
        std::fs::create_dir_all(&latest).unwrap();
        std::fs::write(latest.join("meta_data.json"), "{}").unwrap();
        std::fs::write(dir.path().join("top"), "of the disk").unwrap();
        symlink("latest", dir.path().join("openstack/link")).unwrap();
        let read = |document| file_in(dir.path(), document, 64);
        for document in [
            "openstack/latest/meta_data.json",
            "/openstack//latest/meta_data.json",
        ] {
            assert_eq!(read(document).unwrap(), b"{}", "{document}");
        }
        assert_eq!(read("top").unwrap(), b"of the disk");
        for (document, cause) in [
            ("openstack/link/meta_data.json", Cause::Escapes),
            ("openstack/absent/meta_data.json", Cause::Missing),
            ("absent", Cause::Missing),
        ] {
            assert_eq!(read(document).unwrap_err().cause(), cause, "{document}");
        }
    }

    #[test]
    fn of_a_long_document_one_byte_too_many_is_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("document"), "x".repeat(100)).unwrap();
        for (bytes_max, length) in [(98, 99), (99, 100), (100, 100), (101, 100)] {
            let text = file_in(dir.path(), "document", bytes_max).unwrap();
            assert_eq!(text.len(), length, "{bytes_max}");
        }
    }

    #[test]
    fn only_one_disk_may_have_the_label() {
        let disk = |name: &str| {
            let mut start = vec![0; LABEL_BYTES];
            start[32_768..32_775].copy_from_slice(b"\x01CD001\x01");
            start[32_808..32_816].copy_from_slice(b"config-2");
            let disk = Disk {
                dev: Dev { major: 8, minor: 0 },
                name: name.to_owned(),
                diskseq: 1,
                bytes: 1 << 20,
            };
            (disk, label_of(&start).unwrap())
        };
        let (sda, sdb) = (disk("sda"), disk("sdb"));
        let others = ["vda".to_owned(), "vdb (EIO)".to_owned()];
        let one = the_one(std::slice::from_ref(&sda), &others, "config-2").unwrap();
        assert_eq!(one.0.name, "sda");
        assert_eq!(path(&one.0), "/dev/sda");
        for (found, others, why) in [
            (
                &[][..],
                &[][..],
                "no disk of less than 1 GiB, so none with the label config-2",
            ),
            (
                &[][..],
                &others[..],
                "no disk has the label config-2; checked: vda, vdb (EIO)",
            ),
            (
                &[sda, sdb][..],
                &[][..],
                "sda and sdb both have the label config-2, so neither is used",
            ),
        ] {
            assert_eq!(the_one(found, others, "config-2").unwrap_err(), why);
        }
    }

    fn with(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut start = vec![0; LABEL_BYTES];
        for (at, part) in parts {
            start[*at..at + part.len()].copy_from_slice(part);
        }
        start
    }

    fn found(parts: &[(usize, &[u8])], fs_type: &str) -> bool {
        label_of(&with(parts)).is_some_and(|label| label.is("config-2") && label.fs_type == fs_type)
    }

    #[test]
    fn each_filesystem_has_its_label_in_its_own_offset() {
        let iso: [(usize, &[u8]); 2] = [
            (32_768, b"\x01CD001\x01"),
            (32_808, b"config-2                        "),
        ];
        assert!(found(&iso, "iso9660"));
        let fat16: [(usize, &[u8]); 3] = [
            (38, b"\x29abcdCONFIG-2   "),
            (54, b"FAT16   "),
            (510, b"\x55\xaa"),
        ];
        assert!(found(&fat16, "vfat"));
        assert!(!found(&fat16[..2], "vfat"), "no signature");
        assert!(!found(&[fat16[0], fat16[2]], "vfat"), "no type");
        let fat32: [(usize, &[u8]); 3] = [
            (66, b"\x29abcdconfig-2   "),
            (82, b"FAT32   "),
            (510, b"\x55\xaa"),
        ];
        assert!(found(&fat32, "vfat"));
        // A hybrid ISO image starts with a partition table, which has the same signature at its end
        // as a FAT boot sector.
        assert!(found(&[iso[0], iso[1], fat16[2]], "iso9660"));
        let other = label_of(&with(&[iso[0], (32_808, b"config-22")])).unwrap();
        assert!(!other.is("config-2"));
        assert_eq!(label_of(&[]), None);
        assert_eq!(label_of(&with(&[])), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            start in proptest::collection::vec(any::<u8>(), 0..600),
            cut in 0_usize..2048,
        ) {
            drop(label_of(&start));
            let mut iso = vec![0; ISO_DESCRIPTOR];
            iso.extend(b"\x01CD001\x01");
            iso.extend(&start);
            drop(label_of(&iso[..(ISO_DESCRIPTOR + cut).min(iso.len())]));
        }
    }
}
