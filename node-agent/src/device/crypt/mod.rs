//! Encrypted volumes: a LUKS device, opened as a device-mapper device (the "mapper") over the
//! device of any transport.
//!
//! The mapper is an [`OpenDevice`] that owns the device below. A mapper is recognised by sysfs: its
//! UUID is that of an encrypted device, and it uses exactly one device, which belongs to the
//! volume. Its name is only for operators. cryptsetup makes all changes, and sysfs shows their
//! result. This module does not decide which device may be formatted.

mod child;
mod header;
mod keys;

use std::path::{Path, PathBuf};

use belay_contract::encryption::Pbkdf;
use belay_server::call::{Failure, Kind};
use belay_server::identity::DriverName;
use belay_server::request::VolumeId;

use super::label::fnv_1a;
use super::{Guard, OpenDevice};
use crate::kernel::{self, Cause, Dev, Kernel, Mapper, Open};

pub(crate) use header::{Header, label};
pub(crate) use keys::{Key, Wrong, remove, replace};

/// The beginning of the UUID of each mapper of an encrypted device.
const UUID: &str = "CRYPT-";
/// The control device of device-mapper.
const CONTROL: &str = "/dev/mapper/control";
/// Maximum length of a mapper's name in bytes; device-mapper allows 127.
const NAME_BYTES_MAX: usize = 100;

/// The guard of an opened mapper: the name of the mapper, and the device below.
pub(crate) struct Opened<K: Kernel> {
    pub(super) mapper: Mapper,
    pub(super) below: OpenDevice<K>,
}

/// Returns the mappers of encrypted devices that use the device and no other.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(crate) fn over<K: Kernel>(kernel: &K, dev: Dev) -> kernel::Result<Vec<Mapper>> {
    let mut found = kernel.mappers_over(dev)?;
    found.retain(|mapper| mapper.uuid.starts_with(UUID) && mapper.below == [dev]);
    Ok(found)
}

/// Returns the mappers of encrypted devices whose disk was removed. A mapper that another process
/// is creating may be among them.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(crate) fn removed<K: Kernel>(kernel: &K) -> kernel::Result<Vec<Mapper>> {
    let mut found = kernel.mappers()?;
    found.retain(|mapper| mapper.uuid.starts_with(UUID) && mapper.below.is_empty());
    Ok(found)
}

/// Returns the mapper of an encrypted device with this number; `None` for any other device.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(crate) fn at<K: Kernel>(kernel: &K, dev: Dev) -> kernel::Result<Option<Mapper>> {
    let found = kernel.mapper(dev)?;
    Ok(found.filter(|mapper| mapper.uuid.starts_with(UUID) && mapper.below.len() <= 1))
}

/// Returns the path of a mapper's node, which devtmpfs has without udev.
pub(crate) fn node(dev: Dev) -> PathBuf {
    PathBuf::from(format!("/dev/dm-{}", dev.minor))
}

/// Returns the mapper whose node, or whose name in `/dev/mapper`, is the last component of `path`.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(super) fn named<K: Kernel>(kernel: &K, path: &Path) -> kernel::Result<Option<Mapper>> {
    let Some(name) = name_in(path) else {
        return Ok(None);
    };
    let mut all = kernel.mappers()?.into_iter();
    let is_it = |mapper: &Mapper| mapper.name == name || node(mapper.dev).ends_with(name);
    Ok(all.find(is_it))
}

/// Whether the path is that of a mapper's node, or of a mapper's name in `/dev/mapper`. Reads
/// nothing.
pub(crate) fn is_name(path: &Path) -> bool {
    name_in(path).is_some()
}

fn name_in(path: &Path) -> Option<&str> {
    let path = path.to_str()?;
    let path = path.strip_suffix("//deleted").unwrap_or(path);
    let (parent, name) = path.rsplit_once('/')?;
    (name.starts_with("dm-") || parent.ends_with("/mapper")).then_some(name)
}

/// Creates a LUKS2 header on the device, with the label of an unfinished format. Destroys the
/// content of the device.
///
/// # Errors
/// Returns `UNAVAILABLE` at the deadline, and otherwise the message of cryptsetup.
pub(crate) fn format<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    key: (&Key<K>, Pbkdf),
    label: &str,
) -> Result<(), Failure> {
    child::format(kernel, device, key, label)
}

/// Makes sure that both copies of the header are on the disk without the label of an unfinished
/// format. `inside` is the opened device. An attempt that was killed may have removed the label
/// from one copy only. A later repair of that copy by cryptsetup would bring the label back to
/// both, so a device must not be used before this has returned.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` if a copy has the label and `read_only` is set; otherwise the
/// message of cryptsetup, or the kernel's error.
pub(crate) fn finish<K: Kernel>(
    kernel: &K,
    volume: &VolumeId,
    device: &K::Fd,
    inside: &K::Fd,
    read_only: bool,
) -> Result<(), Failure> {
    let is_finished = || -> Result<bool, Failure> {
        let header = Header::read(kernel, device)?;
        if header.as_ref().is_some_and(Header::lacks_copy) {
            tracing::warn!(
                id = volume.as_str(),
                "a copy of its LUKS header is damaged, and the volume is lost if the other copy is \
                 damaged too: unstage the volume, and run cryptsetup repair"
            );
        }
        Ok(header.is_some_and(|header| header.is_finished()))
    };
    if is_finished()? {
        return Ok(());
    }
    if read_only {
        return Err(Failure::precondition(format!(
            "volume {volume}: not used: its LUKS header is still labelled as unfinished, and the \
             volume is requested read-only: use it read-write first"
        )));
    }
    // The filesystem inside must be on the disk first: without the label, it is never made again.
    kernel.fsync(inside)?;
    child::clear_label(kernel, device)?;
    kernel.fsync(device)?;
    match is_finished()? {
        true => Ok(()),
        false => Err(Failure::new(
            Kind::System,
            "cryptsetup reported success, but the LUKS header is still labelled as unfinished",
        )),
    }
}

/// How to open a LUKS device.
pub(crate) struct Opening<'a> {
    /// The name of the mapper.
    pub(crate) name: &'a str,
    pub(crate) read_only: bool,
    /// Whether discards reach the device.
    pub(crate) discards: bool,
}

/// Opens the LUKS device, and returns its mapper, or [`Wrong`] if the key opens no key slot.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` if the node lacks device-mapper; otherwise the message of
/// cryptsetup.
pub(crate) fn open<K: Kernel>(
    kernel: &K,
    device: &OpenDevice<K>,
    key: &Key<K>,
    opening: &Opening<'_>,
) -> Result<Result<(Mapper, K::Fd), Wrong>, Failure> {
    if kernel.look(Path::new(CONTROL))?.is_none() {
        return Err(Failure::precondition(format!(
            "{CONTROL} does not exist, and encrypted volumes need it: load the driver on the node \
             (modprobe dm-crypt)"
        )));
    }
    let dev = device.dev(kernel)?;
    let opened = child::open(kernel, device.fd(), key, opening);
    // The mapper may exist although the child was killed or has failed.
    let left = |failure: Failure| failure.may_be_running();
    let mut found = over(kernel, dev)
        .map_err(|error| left(error.into()))?
        .into_iter();
    let mapper = found.find(|mapper| mapper.name == opening.name);
    let closed = |mapper: Option<Mapper>| match mapper {
        Some(mapper) => close(kernel, &mapper).map_err(left),
        None => Ok(()),
    };
    match (opened, mapper) {
        (Ok(Ok(())), Some(mapper)) => match open_node(kernel, &mapper) {
            Ok(Some(fd)) => Ok(Ok((mapper, fd))),
            failed => {
                close(kernel, &mapper).map_err(left)?;
                failed?;
                Err(Failure::busy("the mapper was closed meanwhile; retry"))
            }
        },
        (Ok(Ok(())), None) => {
            // There is a device between, as for a header with dm-integrity.
            child::close(kernel, opening.name).map_err(left)?;
            Err(Failure::precondition(
                "its LUKS header needs another device than a dm-crypt over the volume, as with \
                 dm-integrity, which is not supported",
            ))
        }
        (Ok(Err(wrong)), mapper) => closed(mapper).map(|()| Err(wrong)),
        (Err(failure), mapper) => closed(mapper).and(Err(failure)),
    }
}

/// Opens the node of a mapper; `None` if the mapper was closed or replaced.
pub(super) fn open_node<K: Kernel>(kernel: &K, mapper: &Mapper) -> kernel::Result<Option<K::Fd>> {
    let fd = match kernel.open(&node(mapper.dev), Open::DeviceRead) {
        Ok(fd) => fd,
        Err(error) if matches!(error.cause(), Cause::Missing | Cause::NoDevice) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    // While the node is open, the number is not reused.
    let is_it =
        kernel.stat(&fd)?.rdev == mapper.dev && kernel.mapper(mapper.dev)?.as_ref() == Some(mapper);
    Ok(is_it.then_some(fd))
}

/// Closes a mapper. The caller must have closed its own descriptors, and must have checked that no
/// bind mount shows the mapper. Succeeds if the mapper is already closed.
///
/// # Errors
/// Returns `ABORTED` while the mapper is in use; otherwise the message of cryptsetup.
pub(crate) fn close<K: Kernel>(kernel: &K, mapper: &Mapper) -> Result<(), Failure> {
    let closed = child::close(kernel, &mapper.name);
    match kernel.mapper(mapper.dev)? {
        Some(now) if now.uuid == mapper.uuid && now.name == mapper.name => {}
        _ => return Ok(()),
    }
    let users = kernel.mappers_over(mapper.dev)?;
    let users: Vec<_> = users.iter().map(|user| user.name.as_str()).collect();
    let by = match users.is_empty() {
        true => "a process or a mount, perhaps in another mount namespace".to_owned(),
        false => users.join(", "),
    };
    let why = closed
        .err()
        .map_or_else(String::new, |failure| failure.message);
    Err(Failure::busy(format!(
        "{} ({}) is still in use by {by}; retry: {why}",
        node(mapper.dev).display(),
        mapper.name
    )))
}

/// Returns the name of a volume's mapper, in the characters that device-mapper does not encode.
pub(crate) fn name(driver: &DriverName, volume: &VolumeId) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let id = volume.as_str();
    let name = format!("belay-{driver}-{id}");
    match id.bytes().all(plain) && name.len() <= NAME_BYTES_MAX {
        true => name,
        false => format!("belay-{:032x}", fnv_1a(name.as_bytes())),
    }
}

impl<K: Kernel> OpenDevice<K> {
    /// Returns the opened mapper as a device, which owns the device below.
    pub(crate) fn under(self, (mapper, fd): (Mapper, K::Fd)) -> OpenDevice<K> {
        OpenDevice {
            fd,
            path: node(mapper.dev),
            is_shared: false,
            is_checked: self.is_checked,
            guard: Guard::Crypt(Box::new(Opened {
                mapper,
                below: self,
            })),
        }
    }

    /// Returns the device of the transport: the device below a mapper, or else the device itself.
    pub(crate) fn bottom(&self) -> &OpenDevice<K> {
        match &self.guard {
            Guard::Crypt(opened) => opened.below.bottom(),
            _ => self,
        }
    }

    /// Whether the device is the mapper of an encrypted volume.
    pub(crate) fn is_mapper(&self) -> bool {
        matches!(self.guard, Guard::Crypt(_))
    }

    /// Makes a mapper adopt a new size of the device below. Does nothing for other devices, which
    /// [`OpenDevice::bytes`] has already measured.
    ///
    /// # Errors
    /// Returns the message of cryptsetup.
    pub(crate) fn resize(&self, kernel: &K) -> Result<(), Failure> {
        match &self.guard {
            Guard::Crypt(opened) => child::resize(kernel, opened.below.fd(), &opened.mapper.name),
            _ => Ok(()),
        }
    }

    /// Closes the device. Closes a mapper first, so that the device below can be detached. Other
    /// devices are not detached, unless they detach themselves at their last close.
    ///
    /// # Errors
    /// Returns `ABORTED` while a mapper is in use; otherwise the message of cryptsetup.
    pub(crate) fn close(self, kernel: &K) -> Result<(), Failure> {
        let Guard::Crypt(opened) = self.guard else {
            return Ok(());
        };
        drop(self.fd);
        close(kernel, &opened.mapper)?;
        opened.below.close(kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::header::tests::{labelled, machine_with};
    use super::*;

    /// Runs [`finish`] on a file with these copies of a header, and returns its result, whether
    /// cryptsetup ran, and whether the header has no label afterwards.
    fn finished(copies: [bool; 2], read_only: bool) -> (Result<(), Kind>, bool, bool) {
        let machine = machine_with(&labelled(copies));
        let kernel = machine.process();
        let file = kernel.open(Path::new("/file"), Open::FileWrite).unwrap();
        let volume = VolumeId::new("vol-1").unwrap();
        machine.begin(None);
        let done = finish(&kernel, &volume, &file, &file, read_only);
        let ran = machine.end().iter().any(|call| call.name == "spawn");
        let header = Header::read(&kernel, &file).unwrap().unwrap();
        (done.map_err(|it| it.kind), ran, header.is_finished())
    }

    /// A label that is left in one copy of a used volume would return to both at a repair, and the
    /// next stage would format the volume.
    #[test]
    fn a_header_that_is_labelled_in_any_copy_is_cleared_before_it_is_used() {
        for copies in [[true, true], [false, true], [true, false]] {
            assert_eq!(finished(copies, false), (Ok(()), true, true), "{copies:?}");
            let refused = (Err(Kind::Precondition), false, false);
            assert_eq!(finished(copies, true), refused, "{copies:?}");
        }
        for read_only in [true, false] {
            let kept = (Ok(()), false, true);
            assert_eq!(finished([false, false], read_only), kept);
        }
    }

    #[test]
    fn a_path_is_that_of_a_mapper_by_its_node_or_its_name() {
        for (path, is_name) in [
            ("/dev/dm-3", true),
            ("/belay/one.example/vol@12/dm-3", true),
            ("/dm-3//deleted", true),
            ("/dev/mapper/belay-x", true),
            ("/dev/loop3", false),
            ("/mapper", false),
            ("none", false),
        ] {
            assert_eq!(super::is_name(Path::new(path)), is_name, "{path}");
        }
    }

    #[test]
    fn a_mapper_is_named_after_its_volume_if_device_mapper_allows_the_name() {
        let name = |volume: &str| {
            let driver = "local.csi.belay.dev".parse().unwrap();
            name(&driver, &VolumeId::new(volume).unwrap())
        };
        assert_eq!(name("pvc-1_a.b"), "belay-local.csi.belay.dev-pvc-1_a.b");
        let long = [name(&"x".repeat(128)), name(&"y".repeat(128)), name("a/b")];
        for name in &long {
            assert_eq!(name.len(), "belay-".len() + 32, "{name}");
        }
        assert!(long[0] != long[1] && long[1] != long[2]);
    }
}
