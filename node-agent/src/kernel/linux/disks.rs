//! Disks in sysfs (Documentation/ABI/stable/sysfs-block, Documentation/ABI/testing/sysfs-nvme).

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::Linux;
use super::sysfs::{self, SECTOR_BYTES, integer, is_gone, unread};
use crate::kernel::{
    Dev, Disk, DiskAt, DiskFacts, Disks, Error, Ext4Errors, NvmeFacts, Result, ScsiFacts,
};

const BLOCK: &str = "/sys/block";
const BY_NUMBER: &str = "/sys/dev/block";
/// A sysfs directory with an entry for each disk and each partition.
const BY_NAME: &str = "/sys/class/block";

/// The bus of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bus {
    Virtio,
    Scsi,
    Nvme,
}

impl Disks for Linux {
    fn disks(&self) -> Result<Vec<Disk>> {
        let block = Path::new(BLOCK);
        let entries = fs::read_dir(block).map_err(|error| unread(block, &error))?;
        let mut disks = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| unread(block, &error))?;
            disks.extend(disk_in(&entry.path())?);
        }
        disks.sort_by(|one: &Disk, other| one.name.cmp(&other.name));
        Ok(disks)
    }

    fn disk(&self, dev: Dev) -> Result<DiskAt> {
        let folder = folder_of(dev);
        let Some(real) = link(&folder)? else {
            return Ok(DiskAt::Nothing);
        };
        let name = real.file_name().unwrap_or_default();
        if bus_of(&folder)?.is_none() {
            return Ok(DiskAt::Other);
        }
        let disk = disk_in(&Path::new(BLOCK).join(name))?;
        // The disk may have been removed meanwhile, and its name may now refer to another disk.
        let disk = disk.filter(|disk| disk.dev == dev);
        Ok(disk.map_or(DiskAt::Nothing, DiskAt::Disk))
    }

    fn disk_named(&self, name: &str) -> Result<Option<Dev>> {
        let path = Path::new(BY_NAME).join(name).join("dev");
        let text = bytes(&path)?;
        text.map(|text| dev_in(&path, &text)).transpose()
    }

    fn diskseq_named(&self, name: &str) -> Result<Option<u64>> {
        integer(&Path::new(BY_NAME).join(name).join("diskseq"))
    }

    fn disk_is_divided(&self, disk: &Disk) -> Result<bool> {
        is_divided(&Path::new(BLOCK).join(&disk.name))
    }

    fn disk_facts(&self, disk: &Disk) -> Result<Option<DiskFacts>> {
        let folder = Path::new(BLOCK).join(&disk.name);
        let Some(bus) = bus_of(&folder)? else {
            return Ok(None);
        };
        let text = |name: &str| Ok(line(bytes(&folder.join(name))?));
        let page = |name: &str| Ok(bytes(&folder.join(name))?.unwrap_or_default());
        Ok(Some(match bus {
            Bus::Virtio => DiskFacts::Virtio,
            Bus::Scsi => DiskFacts::Scsi(ScsiFacts {
                vendor: text("device/vendor")?,
                model: text("device/model")?,
                serial_page: page("device/vpd_pg80")?,
                id_page: page("device/vpd_pg83")?,
            }),
            Bus::Nvme => DiskFacts::Nvme(NvmeFacts {
                model: text("device/model")?,
                serial: text("device/serial")?,
                wwid: text("wwid")?,
            }),
        }))
    }

    fn disk_serial(&self, disk: &Disk) -> Result<Option<String>> {
        let path = Path::new(BLOCK).join(&disk.name).join("serial");
        Ok(bytes(&path)?.map(|serial| line(Some(serial))))
    }

    fn disk_rescan(&self, disk: &Disk) -> Result<()> {
        let path = Path::new(BLOCK).join(&disk.name).join("device/rescan");
        let written = OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(b"1"));
        match written {
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Err(Error::at("write", &path, errno))
            }
            Ok(()) => Ok(()),
        }
    }
}

impl Linux {
    /// Returns the disks of at most `bytes_max` bytes, including CD-ROM drives, which
    /// [`Disks::disks`] omits. Omits devices without hardware, such as loop devices. Reads only
    /// sysfs.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn small_disks(&self, bytes_max: u64) -> Result<Vec<Disk>> {
        let block = Path::new(BLOCK);
        let entries = fs::read_dir(block).map_err(|error| unread(block, &error))?;
        let mut disks = Vec::new();
        for entry in entries {
            let folder = entry.map_err(|error| unread(block, &error))?.path();
            if bus_of(&folder)?.is_some() {
                disks.extend(described(&folder)?);
            }
        }
        disks.retain(|disk| (1..=bytes_max).contains(&disk.bytes));
        disks.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(disks)
    }
}

/// Implements `Kernel::ext4_errors`.
pub(super) fn ext4_errors(dev: Dev) -> Result<Option<Ext4Errors>> {
    let real = link(&folder_of(dev))?;
    let name = real.as_deref().and_then(Path::file_name);
    match name.and_then(|name| name.to_str()) {
        Some(name) => sysfs::ext4_errors(name),
        None => Ok(None),
    }
}

fn folder_of(dev: Dev) -> PathBuf {
    Path::new(BY_NUMBER).join(dev.to_string())
}

/// Returns the disk that a directory in sysfs describes; `None` for another kind of block device,
/// or if the disk was removed.
fn disk_in(folder: &Path) -> Result<Option<Disk>> {
    let Some(name) = folder.file_name().and_then(|name| name.to_str()) else {
        return Ok(None);
    };
    let is_disk = match bus_of(folder)? {
        Some(Bus::Virtio) => name.starts_with("vd"),
        // The names of other SCSI devices begin with sr and st.
        Some(Bus::Scsi) => name.starts_with("sd"),
        Some(Bus::Nvme) => true,
        None => false,
    };
    if is_disk { described(folder) } else { Ok(None) }
}

/// Reads the number, size and name of a block device; `None` if the device was removed.
fn described(folder: &Path) -> Result<Option<Disk>> {
    let Some(name) = folder.file_name().and_then(|name| name.to_str()) else {
        return Ok(None);
    };
    let path = folder.join("dev");
    let (Some(number), Some(sectors)) = (bytes(&path)?, integer(&folder.join("size"))?) else {
        return Ok(None);
    };
    Ok(Some(Disk {
        dev: dev_in(&path, &number)?,
        name: name.to_owned(),
        diskseq: integer(&folder.join("diskseq"))?.unwrap_or_default(),
        bytes: sectors.saturating_mul(SECTOR_BYTES),
    }))
}

fn bus_of(folder: &Path) -> Result<Option<Bus>> {
    let subsystem = link(&folder.join("device/subsystem"))?;
    let name = subsystem.as_deref().and_then(Path::file_name);
    Ok(match name.and_then(|name| name.to_str()) {
        Some("virtio") => Some(Bus::Virtio),
        Some("scsi") => Some(Bus::Scsi),
        Some("nvme" | "nvme-subsystem") => Some(Bus::Nvme),
        _ => None,
    })
}

/// Whether `holders` has an entry, or a subdirectory is a partition, which has the attribute
/// `partition`.
fn is_divided(folder: &Path) -> Result<bool> {
    let is_partition = |entry: &Path| entry.join("partition").exists();
    Ok(!entries(&folder.join("holders"))?.is_empty()
        || entries(folder)?.iter().any(|entry| is_partition(entry)))
}

/// Returns the entries of a directory; empty if the directory does not exist.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let unread = |error: &std::io::Error| unread(folder, error);
    match fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| Ok(entry.map_err(|error| unread(&error))?.path()))
            .collect(),
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        Err(error) => Err(unread(&error)),
    }
}

fn link(path: &Path) -> Result<Option<PathBuf>> {
    match fs::read_link(path) {
        Ok(target) => Ok(Some(target)),
        Err(error) if is_gone(&error) || is_no_folder(&error) => Ok(None),
        Err(error) => Err(unread(path, &error)),
    }
}

fn is_no_folder(error: &std::io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOTDIR)
}

/// Returns a whole attribute; `None` if the attribute does not exist. If a disk does not have a VPD
/// page, the page's file exists, but reading the file fails with EINVAL.
fn bytes(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(None),
        Err(error) => Err(unread(path, &error)),
    }
}

/// Decodes a line and removes its line end. Bytes that are not UTF-8 are replaced, because no
/// volume's identity contains any.
fn line(bytes: Option<Vec<u8>>) -> String {
    let bytes = bytes.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.trim_end_matches(['\n', '\0']).to_owned()
}

/// Parses `MAJOR:MINOR`.
fn dev_in(path: &Path, text: &[u8]) -> Result<Dev> {
    let parse = || -> Option<Dev> {
        let (major, minor) = std::str::from_utf8(text).ok()?.trim_end().split_once(':')?;
        Some(Dev {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    };
    parse().ok_or_else(|| Error::at("read", path, Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Creates a directory like the sysfs directory of a disk on a bus.
    fn folder(at: &Path, name: &str, bus: &str, files: &[(&str, &str)]) -> PathBuf {
        let folder = at.join(name);
        fs::create_dir_all(folder.join("device")).unwrap();
        symlink(format!("/sys/bus/{bus}"), folder.join("device/subsystem")).unwrap();
        for (file, text) in files {
            fs::write(folder.join(file), text).unwrap();
        }
        folder
    }

    #[test]
    fn a_disk_has_its_bus_and_a_number_and_what_has_not_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let files = [("dev", "252:16\n"), ("size", "2048\n"), ("diskseq", "7\n")];
        let disk = |name, bus, files: &[_]| disk_in(&folder(dir.path(), name, bus, files));
        let found = disk("vdb", "virtio", &files).unwrap().unwrap();
        let dev = Dev {
            major: 252,
            minor: 16,
        };
        let name = "vdb".to_owned();
        let expected = Disk {
            dev,
            name,
            diskseq: 7,
            bytes: 1 << 20,
        };
        assert_eq!(found, expected);
        let old = disk("vdc", "virtio", &files[..2]).unwrap().unwrap();
        assert_eq!(old.diskseq, 0);
        for (name, bus) in [("sr0", "scsi"), ("xvda", "xen"), ("pmem0", "nd")] {
            assert_eq!(disk(name, bus, &files).unwrap(), None, "{name}");
        }
        for bus in ["nvme", "nvme-subsystem"] {
            let found = bus_of(&folder(dir.path(), bus, bus, &[]));
            assert_eq!(found.unwrap(), Some(Bus::Nvme));
        }
        let drive = described(&dir.path().join("sr0")).unwrap().unwrap();
        assert_eq!((&*drive.name, drive.bytes), ("sr0", 1 << 20));
        // Without the attribute `dev`, the disk is being removed.
        assert_eq!(disk("vdd", "virtio", &files[1..]).unwrap(), None);
        assert!(disk("vde", "virtio", &[("dev", "x\n"), ("size", "1\n")]).is_err());
        let plain = dir.path().join("loop0");
        fs::create_dir(&plain).unwrap();
        assert_eq!(disk_in(&plain).unwrap(), None);
    }

    #[test]
    fn a_disk_with_a_partition_or_a_device_built_on_it_is_divided() {
        let dir = tempfile::tempdir().unwrap();
        let disk = folder(dir.path(), "vdb", "virtio", &[]);
        assert!(!is_divided(&disk).unwrap());
        for other in ["queue", "holders"] {
            fs::create_dir_all(disk.join(other)).unwrap();
        }
        assert!(!is_divided(&disk).unwrap());
        fs::create_dir(disk.join("holders/dm-0")).unwrap();
        assert!(is_divided(&disk).unwrap());
        fs::remove_dir(disk.join("holders/dm-0")).unwrap();
        fs::create_dir(disk.join("vdb1")).unwrap();
        fs::write(disk.join("vdb1/partition"), "1\n").unwrap();
        assert!(is_divided(&disk).unwrap());
        assert!(!is_divided(&dir.path().join("removed")).unwrap());
    }

    #[test]
    fn what_has_no_number_here_is_nothing_and_a_whole_device_of_another_kind_is_other() {
        let kernel = Linux::detect().unwrap();
        let dev = |major, minor| Dev { major, minor };
        assert_eq!(kernel.disk(dev(4095, 4095)).unwrap(), DiskAt::Nothing);
        for disk in kernel.disks().unwrap() {
            assert_eq!(kernel.disk(disk.dev).unwrap(), DiskAt::Disk(disk.clone()));
            assert_eq!(kernel.disk_named(&disk.name).unwrap(), Some(disk.dev));
        }
        if let Some(number) = kernel.disk_named("loop0").unwrap() {
            assert_eq!(kernel.disk(number).unwrap(), DiskAt::Other);
        }
        assert_eq!(kernel.disk_named("no-such-disk").unwrap(), None);
    }
}
