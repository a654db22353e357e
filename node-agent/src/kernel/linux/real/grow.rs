//! Tests of mkfs on an open device, of mounting the new filesystem, and of growing it.

use crate::kernel::Filesystems as _;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;

const EXT4: (&str, &[&str]) = ("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", "nodiscard"]);
const XFS: (&str, &[&str]) = ("mkfs.xfs", &["-q", "-f", "-K"]);

/// The size of the device before growing. mkfs.xfs refuses devices below 300 MiB.
const BEFORE: u64 = 320 * MIB;
const AFTER: u64 = 512 * MIB;

fn formatted<'a>(kernel: &'a Linux, image: &Image, tool: (&'static str, &[&str])) -> Loop<'a> {
    let device = Loop::attach(kernel, &image.file, WRITABLE);
    let end = device.mkfs(tool.0, tool.1);
    assert_eq!(
        (end.code, end.timed_out),
        (Some(0), false),
        "{}",
        end.stderr
    );
    device
}

fn mount(kernel: &Linux, fs_type: &str, device: &Loop<'_>) -> Result<OwnedFd> {
    let source = device.path();
    let source = [("source", source.to_str())];
    detached(kernel, fs_type, &source, MountAttrs::NO_SUID)
}

fn total_bytes(kernel: &Linux, path: &Path) -> u64 {
    kernel.statfs(path).unwrap().total_bytes
}

#[test]
#[ignore = "needs root: make test"]
fn what_mkfs_made_on_standard_input_is_mounted_once_and_no_second_time() {
    for (fs_type, tool) in [("ext4", EXT4), ("xfs", XFS)] {
        in_own_namespace(|kernel| {
            let image = Image::new(kernel, BEFORE);
            let device = formatted(kernel, &image, tool);
            let staging = tempfile::tempdir().unwrap();

            let first = mount(kernel, fs_type, &device).unwrap();
            let root = kernel.stat(&kernel.open_root(&first).unwrap()).unwrap();
            assert_eq!(kernel.loop_number(root.dev), Some(device.number));
            let staged = Mounted::attach(kernel, first, staging.path());

            let facts = kernel.statmount(staging.path()).unwrap().unwrap();
            assert_eq!(
                (facts.fs_type.as_str(), facts.attrs),
                (fs_type, MountAttrs::NO_SUID)
            );
            assert!(!facts.superblock_read_only);
            let exclusive = kernel
                .reopen(&device.fd, Open::DeviceExclusive)
                .unwrap_err();
            assert_eq!(exclusive.cause(), Cause::Busy);
            if kernel.has_exclusive_create {
                assert_eq!(
                    mount(kernel, fs_type, &device).unwrap_err().cause(),
                    Cause::Busy
                );
            }
            drop(staged);
            kernel.reopen(&device.fd, Open::DeviceExclusive).unwrap();
        });
    }
}

#[test]
#[ignore = "needs root: make test"]
fn mkfs_of_what_it_cannot_make_tells_why() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, MIB);
        let device = Loop::attach(kernel, &image.file, WRITABLE);
        let end = device.mkfs(XFS.0, XFS.1);
        assert!(end.code.is_some_and(|code| code != 0), "{end:?}");
        assert!(
            !end.stderr.is_empty() && !end.stderr.contains('\n'),
            "{end:?}"
        );
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_without_a_filesystem_is_refused() {
    for fs_type in ["ext4", "xfs"] {
        in_own_namespace(|kernel| {
            let image = Image::new(kernel, BEFORE);
            let device = Loop::attach(kernel, &image.file, WRITABLE);
            let error = mount(kernel, fs_type, &device).unwrap_err();
            assert!(
                error.to_string().starts_with("fsconfig create: E"),
                "{error}"
            );
        });
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_mounted_xfs_grows_with_its_device() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, BEFORE);
        let device = formatted(kernel, &image, XFS);
        let staging = tempfile::tempdir().unwrap();
        let mount = mount(kernel, "xfs", &device).unwrap();
        let root = kernel.open_root(&mount).unwrap();
        let _staged = Mounted::attach(kernel, mount, staging.path());
        let before = kernel.xfs_geometry(&root).unwrap();
        assert_eq!(before.blocks * u64::from(before.block_bytes), BEFORE);
        // The default of mkfs.xfs below 1 TiB (mkfs.xfs(8)).
        assert_eq!(before.imaxpct, 25);

        image.set_len(AFTER);
        kernel.loop_set_capacity(&device.fd).unwrap();
        let blocks = AFTER / u64::from(before.block_bytes);
        let bytes = total_bytes(kernel, staging.path());
        kernel.xfs_grow(&root, blocks, before.imaxpct).unwrap();
        let after = kernel.xfs_geometry(&root).unwrap();
        let expected = crate::kernel::XfsGeometry {
            blocks,
            groups: after.groups,
            ..before
        };
        assert_eq!(after, expected);
        let per_group = before.blocks.div_ceil(before.groups.into());
        assert_eq!(u64::from(after.groups), blocks.div_ceil(per_group));
        assert_eq!(total_bytes(kernel, staging.path()) - bytes, AFTER - BEFORE);

        let error = kernel
            .xfs_grow(&root, 10 * blocks, before.imaxpct)
            .unwrap_err();
        assert!(
            error.to_string().starts_with("XFS_IOC_FSGROWFSDATA "),
            "{error}"
        );
        assert_eq!(
            kernel.ext4_resize(&root, blocks).unwrap_err().errno_name(),
            "ENOTTY"
        );
        drop(root);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_mounted_ext4_grows_with_the_capability_and_is_denied_without() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, BEFORE);
        let device = formatted(kernel, &image, EXT4);
        let staging = tempfile::tempdir().unwrap();
        let mount = mount(kernel, "ext4", &device).unwrap();
        let root = kernel.open_root(&mount).unwrap();
        let _staged = Mounted::attach(kernel, mount, staging.path());
        image.set_len(AFTER);
        kernel.loop_set_capacity(&device.fd).unwrap();
        let block = 4096;

        let all = capabilities(None).unwrap();
        let mut fewer = all;
        fewer.effective.remove(CapabilitySet::SYS_RESOURCE);
        set_capabilities(None, fewer).unwrap();
        let error = kernel.ext4_resize(&root, AFTER / block).unwrap_err();
        assert_eq!(error.cause(), Cause::Denied);
        assert!(
            error.to_string().starts_with("EXT4_IOC_RESIZE_FS "),
            "{error}"
        );

        set_capabilities(None, all).unwrap();
        if all.effective.contains(CapabilitySet::SYS_RESOURCE) {
            let bytes = total_bytes(kernel, staging.path());
            kernel.ext4_resize(&root, AFTER / block).unwrap();
            assert!(total_bytes(kernel, staging.path()) > bytes + (AFTER - BEFORE) / 2);
        }
        drop(root);
    });
}
