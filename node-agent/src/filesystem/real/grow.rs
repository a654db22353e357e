//! Tests of growth on loop devices that the test creates. The mounts are detached: closing their
//! descriptors unmounts them.

use belay_server::call::Kind;

use super::*;
use crate::filesystem::format;
use crate::filesystem::grow::{GrowError, Grown, grow};
use crate::kernel::{Cause, LoopMode, MountAttrs};

/// Maximum number of attempts to bind a loop device: other processes may bind the free device
/// first.
const ATTEMPTS_MAX: usize = 50;

/// A loop device over an image. The kernel unbinds the device when its last descriptor is closed.
struct Loop {
    number: u32,
    fd: OwnedFd,
}

impl Loop {
    fn attach(kernel: &Linux, image: &Image) -> Loop {
        let file = kernel.open(&image.path(), Open::FileWrite).unwrap();
        let mode = LoopMode {
            read_only: false,
            autoclear: true,
        };
        for _ in 0..ATTEMPTS_MAX {
            let number = kernel.loop_get_free().unwrap();
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let fd = kernel.open(&path, Open::DeviceRead).unwrap();
            let writer = kernel.reopen(&fd, Open::DeviceWrite).unwrap();
            match kernel.loop_configure(&writer, &file, mode, "test") {
                Ok(()) => return Loop { number, fd },
                Err(error) if error.cause() == Cause::Busy => {}
                Err(error) => panic!("{error}"),
            }
        }
        panic!("{ATTEMPTS_MAX} free loop devices were taken by others");
    }

    /// Returns the root directory of a detached mount of the filesystem.
    fn mount(&self, kernel: &Linux, fs: FsType) -> OwnedFd {
        let context = kernel.fsopen(fs.name()).unwrap();
        let source = format!("/dev/loop{}", self.number);
        kernel
            .fsconfig_set(&context, "source", Some(&source))
            .unwrap();
        kernel.fsconfig_create(&context, false).unwrap();
        let mount = kernel.fsmount(&context, MountAttrs::default()).unwrap();
        kernel.open_root(&mount).unwrap()
    }
}

fn formatted(kernel: &Linux, image: &Image, device: &Loop, fs: FsType) {
    let backing = kernel.open(&image.path(), Open::FileRead).unwrap();
    let bytes = kernel.device_bytes(&device.fd).unwrap();
    let device = DeviceUnderTest {
        secrets: &[],
        is_new: false,
        accepts_uncleared: false,
        fd: &device.fd,
        bytes,
        backing: Some(&backing),
        volume: VOLUME,
        progress: &Progress::default(),
    };
    let Probed::Blank(blank) = examine(kernel, &device) else {
        panic!("a new image is not blank");
    };
    format(
        kernel,
        &device,
        (fs, FormatOptions::default()),
        Permit::from(blank),
        DEADLINE,
    )
    .unwrap();
    assert!(matches!(examine(kernel, &device), Probed::Known(found) if found.fs == fs));
}

fn extend(kernel: &Linux, image: &Image, device: &Loop, bytes: u64) {
    File::options()
        .write(true)
        .open(image.path())
        .unwrap()
        .set_len(bytes)
        .unwrap();
    kernel.loop_set_capacity(&device.fd).unwrap();
}

fn may_grow_ext4() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None)
        .unwrap()
        .effective
        .contains(CapabilitySet::SYS_RESOURCE)
}

#[test]
#[ignore = "needs root: make test"]
fn a_mounted_filesystem_grows_once_to_the_size_of_its_device() {
    let kernel = Linux::detect().unwrap();
    for fs in FsType::ALL {
        let image = Image::new(512 * MIB);
        let device = Loop::attach(&kernel, &image);
        formatted(&kernel, &image, &device, fs);
        let root = device.mount(&kernel, fs);
        let grow = || grow(&kernel, &root, &device.fd, fs);
        assert_eq!(grow().unwrap(), Grown::AlreadyThere);

        extend(&kernel, &image, &device, 2 * GIB + 512);
        let grown = grow();
        if fs == FsType::Ext4 && !may_grow_ext4() {
            assert!(
                matches!(grown, Err(GrowError::NeedsCapability { .. })),
                "{grown:?}"
            );
            continue;
        }
        let expected = Grown::Grew {
            from_bytes: 512 * MIB,
            to_bytes: 2 * GIB,
        };
        assert_eq!(grown.unwrap(), expected);
        assert_eq!(grow().unwrap(), Grown::AlreadyThere);
    }
}

/// All allocation groups of an xfs have the size of the first group: half of 300 MiB. Therefore a
/// large growth creates many groups.
#[test]
#[ignore = "needs root: make test"]
fn an_xfs_that_grew_a_thousandfold_is_reported_at_each_growth_and_mount() {
    let kernel = Linux::detect().unwrap();
    let image = Image::new(300 * MIB);
    let device = Loop::attach(&kernel, &image);
    formatted(&kernel, &image, &device, FsType::Xfs);
    let root = device.mount(&kernel, FsType::Xfs);
    let grow = || grow(&kernel, &root, &device.fd, FsType::Xfs).unwrap();
    extend(&kernel, &image, &device, 1000 * 150 * MIB);
    assert!(matches!(grow(), Grown::Grew { .. }));
    extend(&kernel, &image, &device, 1001 * 150 * MIB);
    for _ in 0..2 {
        assert_eq!(grow(), Grown::InManyGroups(1001));
    }
}

/// The space that mkfs leaves unused at the end of the device must not cause an ioctl at every
/// NodeStageVolume call.
#[test]
#[ignore = "needs root: make test"]
fn a_device_of_an_odd_size_is_full_from_the_start() {
    let kernel = Linux::detect().unwrap();
    for fs in FsType::ALL {
        for rest in [512, 4096, 100 << 10, MIB, 2 * MIB] {
            let image = Image::new(512 * MIB + rest);
            let device = Loop::attach(&kernel, &image);
            formatted(&kernel, &image, &device, fs);
            let root = device.mount(&kernel, fs);
            let grown = grow(&kernel, &root, &device.fd, fs).unwrap();
            assert_eq!(grown, Grown::AlreadyThere, "{fs} with {rest} bytes more");
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_that_somebody_holds_for_himself_is_busy_and_not_formatted() {
    let kernel = Linux::detect().unwrap();
    let image = Image::new(512 * MIB);
    let device = Loop::attach(&kernel, &image);
    let under_test = DeviceUnderTest {
        secrets: &[],
        is_new: false,
        accepts_uncleared: false,
        fd: &device.fd,
        bytes: 512 * MIB,
        backing: None,
        volume: VOLUME,
        progress: &Progress::default(),
    };
    let Probed::Blank(blank) = examine(&kernel, &under_test) else {
        panic!("a new image is not blank");
    };
    let holder = kernel.reopen(&device.fd, Open::DeviceExclusive).unwrap();
    let result = format(
        &kernel,
        &under_test,
        (FsType::Ext4, FormatOptions::default()),
        blank.into(),
        DEADLINE,
    );
    drop(holder);
    assert_eq!(result.unwrap_err().kind, Kind::Busy);
    assert!(matches!(examine(&kernel, &under_test), Probed::Blank(_)));
}
