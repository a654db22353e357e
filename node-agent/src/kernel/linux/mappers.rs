//! Device-mapper devices in sysfs, and sealed files in memory.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::Linux;
use super::sysfs::{is_gone, text, unread};
use crate::kernel::{Dev, Error, Mapper, Mappers, Result};

const BLOCK: &str = "/sys/block";
const BY_NUMBER: &str = "/sys/dev/block";
/// The name of the driver in /proc/devices.
const DRIVER: &str = "device-mapper";
/// The beginning of the name of each mapper in sysfs.
const PREFIX: &str = "dm-";

/// The major number of the device-mapper driver; 0 if the driver is not loaded as far as known.
#[derive(Clone, Debug, Default)]
pub(super) struct Major(Arc<AtomicU32>);

impl Major {
    /// Reads the number from /proc/devices.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub(super) fn detect() -> Result<Self> {
        let path = Path::new("/proc/devices");
        let devices = fs::read_to_string(path).map_err(|error| unread(path, &error))?;
        let mut lines = devices
            .lines()
            .filter_map(|line| line.trim().split_once(' '));
        let found = lines.find(|(_, driver)| *driver == DRIVER);
        let major = found.and_then(|(major, _)| major.parse().ok());
        Ok(Major(Arc::new(AtomicU32::new(major.unwrap_or_default()))))
    }

    fn is_of(&self, dev: Dev) -> bool {
        dev.major != 0 && dev.major == self.0.load(Ordering::Relaxed)
    }

    fn learn(&self, dev: Dev) {
        self.0.store(dev.major, Ordering::Relaxed);
    }
}

impl Mappers for Linux {
    fn is_mapper(&self, dev: Dev) -> bool {
        self.mapper_major.is_of(dev)
    }

    fn mapper(&self, dev: Dev) -> Result<Option<Mapper>> {
        match self.is_mapper(dev) {
            true => read(&Path::new(BY_NUMBER).join(dev.to_string())),
            false => Ok(None),
        }
    }

    fn mappers_over(&self, dev: Dev) -> Result<Vec<Mapper>> {
        self.mappers_in(&Path::new(BY_NUMBER).join(dev.to_string()).join("holders"))
    }

    fn mappers(&self) -> Result<Vec<Mapper>> {
        self.mappers_in(Path::new(BLOCK))
    }

    fn sealed_file(&self, content: &[u8]) -> Result<OwnedFd> {
        sealed(content).map_err(|errno| Error::new("memfd_create", "of a key", errno))
    }
}

impl Linux {
    /// Returns the mappers to which a directory in sysfs has links.
    fn mappers_in(&self, folder: &Path) -> Result<Vec<Mapper>> {
        let mut found = Vec::new();
        for entry in names(folder)? {
            if entry.starts_with(PREFIX) {
                found.extend(read(&Path::new(BLOCK).join(entry))?);
            }
        }
        if let Some(mapper) = found.first() {
            self.mapper_major.learn(mapper.dev);
        }
        Ok(found)
    }
}

/// Returns the mapper that a directory in sysfs describes; `None` if it was removed.
fn read(folder: &Path) -> Result<Option<Mapper>> {
    let long = |name: &str| {
        let path = folder.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim_end().to_owned())),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(unread(&path, &error)),
        }
    };
    let (Some(dev), Some(name), Some(uuid)) = (number(folder)?, long("dm/name")?, long("dm/uuid")?)
    else {
        return Ok(None);
    };
    let slaves = folder.join("slaves");
    let mut below = Vec::new();
    for slave in names(&slaves)? {
        below.extend(number(&slaves.join(slave))?);
    }
    Ok(Some(Mapper {
        dev,
        name,
        uuid,
        below,
    }))
}

/// Reads the number of a block device; `None` if the device was removed.
fn number(folder: &Path) -> Result<Option<Dev>> {
    let path = folder.join("dev");
    let Some(text) = text(&path)? else {
        return Ok(None);
    };
    let parse = || {
        let (major, minor) = text.split_once(':')?;
        Some(Dev {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    };
    let malformed = || Error::at("read", &path, Errno::INVAL).because(format!("{text:?}"));
    parse().map(Some).ok_or_else(malformed)
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(unread(folder, &error)),
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: std::io::Result<Vec<String>> = names.collect();
    names.map_err(|error| unread(&PathBuf::from(folder), &error))
}

fn sealed(content: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some kernels refuse files that could be executed (`vm.memfd_noexec`), and kernels before
    // Linux 6.3 do not know the flag.
    let file = match rustix::fs::memfd_create("key", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create("key", flags)?,
        file => file?,
    };
    if rustix::io::write(&file, content)? != content.len() {
        return Err(Errno::IO);
    }
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapper_is_read_with_its_device_and_a_removed_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("dm-3");
        assert_eq!(read(&folder).unwrap(), None);
        fs::create_dir_all(folder.join("dm")).unwrap();
        fs::create_dir_all(folder.join("slaves/loop7")).unwrap();
        fs::write(folder.join("dev"), "254:3\n").unwrap();
        fs::write(folder.join("slaves/loop7/dev"), "7:7\n").unwrap();
        let long = format!("belay-local.csi.belay.dev-{}", "x".repeat(90));
        fs::write(folder.join("dm/name"), format!("{long}\n")).unwrap();
        fs::write(folder.join("dm/uuid"), "CRYPT-LUKS2-1-x\n").unwrap();
        let dev = |major, minor| Dev { major, minor };
        let mapper = read(&folder).unwrap().unwrap();
        assert_eq!((mapper.dev, mapper.name), (dev(254, 3), long));
        assert_eq!(mapper.below, [dev(7, 7)]);
        fs::write(folder.join("dev"), "many\n").unwrap();
        assert!(read(&folder).is_err());
    }

    #[test]
    fn no_device_is_a_mapper_until_one_is_known() {
        let major = Major::default();
        let dev = |major| Dev { major, minor: 0 };
        assert!(!major.is_of(dev(0)) && !major.is_of(dev(254)));
        major.clone().learn(dev(254));
        assert!(major.is_of(dev(254)) && !major.is_of(dev(7)));
    }

    #[test]
    fn the_content_of_a_sealed_file_cannot_be_changed() {
        let file = sealed(b"secret").unwrap();
        let mut content = [0; 16];
        let length = rustix::io::pread(&file, &mut content, 0).unwrap();
        assert_eq!(&content[..length], b"secret");
        assert_eq!(rustix::io::pwrite(&file, b"x", 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
    }
}
