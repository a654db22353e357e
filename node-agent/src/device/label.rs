//! The name of a volume's device: `/dev/belay/<driver>/<volume>@<diskseq>/<node>`, a hard link to
//! the device's node. The name identifies the volume and the attachment: a device number may be
//! reused for another volume, but a sequence number never is.
//!
//! A raw device is bound by this name, which the kernel shows as the root of the bind mount. A disk
//! with a filesystem is mounted by its node, because a scan of a btrfs under another name changes
//! the source that its mounts show. After a restart, the name shows which volume the disk belongs
//! to.

use std::path::{Path, PathBuf};

use belay_server::identity::DriverName;
use belay_server::request::VolumeId;

use crate::kernel::{self, Cause, FileKind, Kernel};

/// The directory with the names of all drivers.
const BASE: &str = "/dev/belay";
/// The mode of the directories: accessible only to root, like the devices.
const MODE: u32 = 0o700;
/// Maximum length in bytes of an encoded volume ID. A file name has at most 255 bytes, and the
/// suffix with the sequence number has up to 21.
const VOLUME_BYTES_MAX: usize = 200;
/// The suffix that the kernel appends to the root of a mount if the name was removed.
const REMOVED: &str = "//deleted";

/// The parts of the name of a volume's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    driver: String,
    /// The volume's ID, encoded, or a digest of the ID.
    volume: String,
    diskseq: u64,
    node: String,
}

impl Label {
    /// Returns the name for the volume's device at `node`; `None` without a sequence number (before
    /// Linux 5.15).
    pub(super) fn new(
        driver: &DriverName,
        volume: &VolumeId,
        diskseq: u64,
        node: &Path,
    ) -> Option<Self> {
        let node = node.file_name()?.to_str()?;
        (diskseq != 0).then(|| Label {
            driver: driver.as_str().to_owned(),
            volume: encoded(volume),
            diskseq,
            node: node.to_owned(),
        })
    }

    /// Parses the root of a mount. Returns `None` if the root is not the name of a volume's device.
    pub(crate) fn read(root: &Path) -> Option<Self> {
        let root = root.to_str()?;
        let root = root.strip_suffix(REMOVED).unwrap_or(root);
        let mut names = root.rsplit('/');
        let (node, directory, driver) = (names.next()?, names.next()?, names.next()?);
        let (volume, diskseq) = directory.rsplit_once('@')?;
        let label = Label {
            driver: driver.to_owned(),
            volume: volume.to_owned(),
            diskseq: diskseq.parse().ok()?,
            node: node.to_owned(),
        };
        (names.next() == Some("belay")).then_some(label)
    }

    /// Whether the label names this volume of this driver.
    pub(super) fn is_of(&self, driver: &DriverName, volume: &VolumeId) -> bool {
        self.driver == driver.as_str() && self.volume == encoded(volume)
    }

    /// Whether the label names a volume of this driver.
    pub(crate) fn is_of_driver(&self, driver: &DriverName) -> bool {
        self.driver == driver.as_str()
    }

    /// Returns the volume's ID; `None` if the label has only a digest of the ID.
    pub(crate) fn volume(&self) -> Option<VolumeId> {
        VolumeId::new(decoded(&self.volume)?).ok()
    }

    /// Returns the name of the device's node in `/dev`.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Returns the sequence number that the device had when it was bound.
    pub(crate) fn diskseq(&self) -> u64 {
        self.diskseq
    }

    /// Whether the node's name still refers to the device that was bound.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn is_current<K: Kernel>(&self, kernel: &K) -> kernel::Result<bool> {
        Ok(kernel.diskseq_named(&self.node)? == Some(self.diskseq))
    }

    /// Creates the name, and returns its path.
    ///
    /// # Errors
    /// Returns the kernel's error, for example if `/dev` is read-only. After an error, no name
    /// exists.
    pub(crate) fn make<K: Kernel>(&self, kernel: &K, node: &Path) -> kernel::Result<PathBuf> {
        match self.link(kernel, node) {
            // The directories do not exist yet, or another agent, which was starting, has removed
            // this directory as unused.
            Err(error) if error.cause() == Cause::Missing => {
                make_directory(kernel, Path::new(BASE))?;
                make_directory(kernel, &Path::new(BASE).join(&self.driver))?;
                self.link(kernel, node)
            }
            linked => linked,
        }
    }

    fn link<K: Kernel>(&self, kernel: &K, node: &Path) -> kernel::Result<PathBuf> {
        let (directory, path) = (self.directory(), self.path());
        make_directory(kernel, &directory)?;
        match kernel.link(node, &path) {
            // An earlier attempt, which was killed, has created the name for the same device.
            Err(error) if error.cause() == Cause::Exists => Ok(path),
            Err(error) => {
                // Return the first failure, which is the cause.
                drop(kernel.rmdir(&directory));
                Err(error)
            }
            Ok(()) => Ok(path),
        }
    }

    /// Removes the name. Existing mounts of the name remain, but can no longer be cloned.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn remove<K: Kernel>(&self, kernel: &K) -> kernel::Result<()> {
        unless_missing(kernel.unlink(&self.path()))?;
        unless_missing(kernel.rmdir(&self.directory()))
    }

    /// Removes the driver's names whose devices have been detached: such a name would refer to
    /// another volume's device. Returns the remaining names, and calls `failed` for each directory
    /// that cannot be read or cleaned up.
    pub(crate) fn sweep<K: Kernel>(
        kernel: &K,
        driver: &DriverName,
        mut failed: impl FnMut(&Path, kernel::Error),
    ) -> Vec<Self> {
        let base = Path::new(BASE).join(driver.as_str());
        let mut kept = Vec::new();
        let directories = kernel.names(&base).unwrap_or_else(|error| {
            failed(&base, error);
            Vec::new()
        });
        for directory in directories {
            let directory = base.join(directory);
            // A file of another program must not prevent the cleanup of the other directories.
            let Ok(nodes) = kernel.names(&directory) else {
                continue;
            };
            let labels = nodes.iter().map(|node| Label::read(&directory.join(node)));
            let sweep_one = || -> kernel::Result<()> {
                for label in labels.flatten() {
                    if !label.is_there(kernel)? {
                        continue;
                    }
                    match label.is_current(kernel)? {
                        true => kept.push(label),
                        false => label.remove(kernel)?,
                    }
                }
                match nodes.is_empty() {
                    true => unless_missing(kernel.rmdir(&directory)),
                    false => Ok(()),
                }
            };
            if let Err(error) = sweep_one() {
                failed(&directory, error);
            }
        }
        kept
    }

    /// Whether the name exists and is a block device.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn is_there<K: Kernel>(&self, kernel: &K) -> kernel::Result<bool> {
        let stat = kernel.look(&self.path())?;
        Ok(stat.is_some_and(|stat| stat.kind == FileKind::BlockDevice))
    }

    fn directory(&self) -> PathBuf {
        let name = format!("{}@{}", self.volume, self.diskseq);
        Path::new(BASE).join(&self.driver).join(name)
    }

    /// Returns the path of the name.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory().join(&self.node)
    }
}

fn make_directory<K: Kernel>(kernel: &K, path: &Path) -> kernel::Result<()> {
    match kernel.mkdir(path, MODE) {
        Err(error) if error.cause() == Cause::Exists => Ok(()),
        made => made,
    }
}

fn unless_missing(removed: kernel::Result<()>) -> kernel::Result<()> {
    match removed {
        Err(error) if error.cause() == Cause::Missing => Ok(()),
        removed => removed,
    }
}

/// Encodes the ID as a part of a file name: all characters except letters, digits, `.`, `_` and `-`
/// are percent-encoded. A long ID becomes a digest behind `~`, which no encoded ID contains.
fn encoded(volume: &VolumeId) -> String {
    let mut name = String::new();
    for byte in volume.as_str().bytes() {
        match byte {
            b'.' | b'_' | b'-' => name.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => name.push(char::from(byte)),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    match name.len() <= VOLUME_BYTES_MAX {
        true => name,
        false => format!("~{:032x}", fnv_1a(volume.as_str().as_bytes())),
    }
}

/// Decodes an ID that [`encoded`] has encoded. Returns `None` for a digest, and for a name that no
/// agent creates.
fn decoded(name: &str) -> Option<String> {
    if name.starts_with('~') {
        return None;
    }
    let mut pieces = name.split('%');
    let mut bytes = Vec::from(pieces.next()?);
    for piece in pieces {
        let (digits, plain) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(plain.bytes());
    }
    String::from_utf8(bytes).ok()
}

/// FNV-1a with 128 bits (RFC 9923): a digest for IDs that are too long for a file name. The digest
/// need not resist attacks.
pub(super) fn fnv_1a(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = (1 << 88) + 0x13b;
    let mix = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    bytes.iter().fold(BASIS, mix)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::loop_path;
    use crate::kernel::fake::{Fake, Fault, Fd, Machine};
    use crate::kernel::{LoopMode, Open};

    fn label(volume: &str) -> Label {
        let (driver, volume) = (
            "one.example".parse().unwrap(),
            VolumeId::new(volume).unwrap(),
        );
        Label::new(&driver, &volume, 12, Path::new("/dev/loop7")).unwrap()
    }

    #[test]
    fn a_name_says_driver_volume_and_sequence_number_and_ends_as_its_node() {
        let label = label("vol/1@3");
        let path = "/dev/belay/one.example/vol%2F1%403@12/loop7";
        assert_eq!(label.path(), Path::new(path));
        for root in [
            path,
            "/belay/one.example/vol%2F1%403@12/loop7",
            "/belay/one.example/vol%2F1%403@12/loop7//deleted",
        ] {
            assert_eq!(
                Label::read(Path::new(root)).as_ref(),
                Some(&label),
                "{root}"
            );
        }
        for root in [
            "/loop7",
            "/",
            "/loop7//deleted",
            "/belay/one.example/vol/loop7",
            "/belay/one.example/vol@x/loop7",
            "/other/one.example/vol@12/loop7",
            "/one.example/vol@12/loop7",
        ] {
            assert_eq!(Label::read(Path::new(root)), None, "{root}");
        }
    }

    /// The encoding must not change, because mounts of an agent keep their names after its restart.
    #[test]
    fn a_name_keeps_what_a_file_name_may_have() {
        let name = |volume: &str| label(volume).volume;
        assert_eq!(name("pvc-1_a.B~c d"), "pvc-1_a.B%7Ec%20d");
    }

    const MODE: LoopMode = LoopMode {
        read_only: false,
        autoclear: false,
    };

    /// A simulated machine, and a bound device with a name.
    struct Bench {
        machine: Machine,
        kernel: Fake,
        device: Fd,
        node: PathBuf,
        label: Label,
    }

    fn bench() -> Bench {
        let machine = Machine::new();
        let kernel = machine.process();
        let (device, node, label) = bound(&machine, &kernel, "vol");
        Bench {
            machine,
            kernel,
            device,
            node,
            label,
        }
    }

    fn bound(machine: &Machine, kernel: &Fake, volume: &str) -> (Fd, PathBuf, Label) {
        let path = Path::new("/").join(volume);
        machine.make_file(&path, 1 << 20);
        let file = kernel.open(&path, Open::FileWrite).unwrap();
        assert!(kernel.flock(&file).unwrap());
        let node = loop_path(kernel.loop_get_free().unwrap());
        let device = kernel.open(&node, Open::DeviceWrite).unwrap();
        kernel.loop_configure(&device, &file, MODE, volume).unwrap();
        let diskseq = kernel.diskseq(&device).unwrap();
        let (driver, volume) = (
            "one.example".parse().unwrap(),
            VolumeId::new(volume).unwrap(),
        );
        let label = Label::new(&driver, &volume, diskseq, &node).unwrap();
        (device, node, label)
    }

    #[test]
    fn a_name_is_made_and_removed_any_number_of_times() {
        let Bench {
            kernel,
            node,
            label,
            ..
        } = bench();
        for _ in 0..2 {
            for _ in 0..2 {
                let made = label.make(&kernel, &node).map_err(drop);
                assert_eq!(made, Ok(label.path()));
                assert!(label.is_there(&kernel).unwrap());
            }
            for _ in 0..2 {
                label.remove(&kernel).unwrap();
                assert!(!label.is_there(&kernel).unwrap());
            }
        }
    }

    #[test]
    fn a_failure_at_any_call_is_reported_and_a_retry_completes_it() {
        // Run the test with and without the driver's directories.
        for is_first in [true, false] {
            for number in 1.. {
                let one = bench();
                let (kernel, label) = (&one.kernel, &one.label);
                let (_, node, other) = bound(&one.machine, kernel, "other");
                if !is_first {
                    other.make(kernel, &node).unwrap();
                }
                one.machine.begin(Some(Fault::Fail(number, "EIO")));
                let made = label.make(kernel, &one.node);
                if one.machine.end().len() < number {
                    break;
                }
                assert!(made.is_err(), "call {number}");
                label.make(kernel, &one.node).unwrap();
            }
        }
        for number in 1..=2 {
            let one = bench();
            one.label.make(&one.kernel, &one.node).unwrap();
            one.machine.begin(Some(Fault::Fail(number, "EIO")));
            assert!(one.label.remove(&one.kernel).is_err(), "call {number}");
            one.machine.end();
            one.label.remove(&one.kernel).unwrap();
            assert!(!one.label.is_there(&one.kernel).unwrap());
        }
    }

    #[test]
    fn a_sweep_removes_the_names_of_detached_devices_and_returns_the_others() {
        let one = bench();
        let kernel = &one.kernel;
        let (_kept, node, other) = bound(&one.machine, kernel, "other");
        one.label.make(kernel, &one.node).unwrap();
        other.make(kernel, &node).unwrap();
        let driver = "one.example".parse().unwrap();
        let sweep = || Label::sweep(kernel, &driver, |_, error| panic!("{error}"));
        assert_eq!(sweep().len(), 2);
        kernel.loop_clr_fd(&one.device).unwrap();
        drop(one.device);
        assert_eq!(sweep(), std::slice::from_ref(&other));
        assert!(!one.label.is_there(kernel).unwrap());
        assert!(other.is_there(kernel).unwrap());
    }

    #[test]
    fn a_name_is_of_its_volume_and_driver_alone() {
        let is_of = |driver: &str, volume: &str| {
            label("vol").is_of(&driver.parse().unwrap(), &VolumeId::new(volume).unwrap())
        };
        assert!(is_of("one.example", "vol"));
        assert!(!is_of("two.example", "vol") && !is_of("one.example", "vol2"));
        let driver = "one.example".parse().unwrap();
        let volume = VolumeId::new("vol").unwrap();
        assert_eq!(
            Label::new(&driver, &volume, 0, Path::new("/dev/loop7")),
            None
        );
    }

    proptest! {
        #[test]
        fn any_id_comes_back_from_a_name_that_the_kernel_accepts(id in "\\PC{1,120}") {
            if let Ok(volume) = VolumeId::new(id.as_str()) {
                let label = label(&id);
                let directory = label.directory();
                let name = directory.file_name().unwrap();
                prop_assert!(name.len() <= 255);
                let found = Label::read(&label.path()).unwrap();
                prop_assert!(found.is_of(&"one.example".parse().unwrap(), &volume));
                let is_digest = found.volume.starts_with('~');
                prop_assert_eq!(found.volume(), (!is_digest).then_some(volume));
                prop_assert_eq!(found, label);
            }
        }
    }

    #[test]
    fn the_digest_is_the_one_of_the_rfc() {
        assert_eq!(fnv_1a(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(fnv_1a(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(fnv_1a(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }
}
