//! Tests of mounts: cloning, attributes, propagation, and their description by statmount and
//! mountinfo.

use super::*;
use crate::kernel::linux::{mountinfo, statmount};

fn two_dirs() -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (staging, target) = (dir.path().join("staging area"), dir.path().join("target"));
    std::fs::create_dir(&staging).unwrap();
    std::fs::create_dir(&target).unwrap();
    (dir, staging, target)
}

fn attrs_of(kernel: &Linux, path: &Path) -> MountAttrs {
    kernel.statmount(path).unwrap().unwrap().attrs
}

#[test]
#[ignore = "needs root: make test"]
fn a_clone_has_its_own_attributes_and_the_original_keeps_its() {
    in_own_namespace(|kernel| {
        let (_dir, staging, target) = two_dirs();
        let wanted = MountAttrs::READ_ONLY
            .with(MountAttrs::NO_SUID)
            .with(MountAttrs::NO_ATIME);
        let staged = Mounted::tmpfs(kernel, &staging, MountAttrs::STRICT_ATIME);

        let clone = kernel
            .open_tree(&kernel.open_path(&staging).unwrap())
            .unwrap();
        kernel.mount_setattr(&clone, wanted).unwrap();
        let published = Mounted::attach(kernel, clone, &target);

        assert_eq!(attrs_of(kernel, &staging), MountAttrs::STRICT_ATIME);
        assert_eq!(attrs_of(kernel, &target), wanted);
        assert!(staged.stat().mount_root && published.stat().mount_root);
        assert!(staged.stat().is_same_root(&published.stat()));
        assert_ne!(staged.stat().mount_id, published.stat().mount_id);

        std::fs::write(staging.join("file"), b"seen").unwrap();
        assert_eq!(std::fs::read(target.join("file")).unwrap(), b"seen");
        let refused = kernel
            .create_file(&target.join("other"), 0o600)
            .unwrap_err();
        assert_eq!(refused.cause(), Cause::ReadOnly);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_mount_inside_a_target_does_not_show_in_staging() {
    in_own_namespace(|kernel| {
        let (_dir, staging, target) = two_dirs();
        let _staged = Mounted::tmpfs(kernel, &staging, MountAttrs::default());
        rustix::mount::mount_change(&staging, MountPropagationFlags::SHARED).unwrap();
        std::fs::create_dir(staging.join("inner")).unwrap();

        let clone = kernel
            .open_tree(&kernel.open_path(&staging).unwrap())
            .unwrap();
        kernel.mount_setattr(&clone, MountAttrs::default()).unwrap();
        let _published = Mounted::attach(kernel, clone, &target);
        let inner = Mounted::tmpfs(kernel, &target.join("inner"), MountAttrs::default());

        assert!(inner.stat().mount_root);
        assert!(
            !kernel
                .look(&staging.join("inner"))
                .unwrap()
                .unwrap()
                .mount_root
        );
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_clone_leaves_out_what_is_mounted_below() {
    in_own_namespace(|kernel| {
        let (_dir, staging, target) = two_dirs();
        let _staged = Mounted::tmpfs(kernel, &staging, MountAttrs::default());
        std::fs::create_dir(staging.join("inner")).unwrap();
        let _inner = Mounted::tmpfs(kernel, &staging.join("inner"), MountAttrs::default());

        let clone = kernel
            .open_tree(&kernel.open_path(&staging).unwrap())
            .unwrap();
        let _published = Mounted::attach(kernel, clone, &target);
        assert!(
            !kernel
                .look(&target.join("inner"))
                .unwrap()
                .unwrap()
                .mount_root
        );
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_node_is_bound_onto_a_file() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, MIB);
        let device = Loop::attach(kernel, &image.file, WRITABLE);
        let target = image.dir.path().join("device");
        kernel.create_file(&target, 0o600).unwrap();

        let clone = kernel
            .open_tree(&kernel.open_path(&device.path()).unwrap())
            .unwrap();
        kernel.mount_setattr(&clone, MountAttrs::default()).unwrap();
        let bound = Mounted::attach(kernel, clone, &target);
        let stat = bound.stat();
        assert_eq!(kernel.loop_number(stat.rdev), Some(device.number));
        assert!(stat.mount_root);
        assert!(stat.is_same_root(&kernel.look(&device.path()).unwrap().unwrap()));
        let opened = kernel.open(&target, Open::DeviceRead).unwrap();
        assert_eq!(kernel.device_bytes(&opened).unwrap(), MIB);
        drop(opened);
        drop(bound);
        kernel.unlink(&target).unwrap();
    });
}

#[test]
#[ignore = "needs root: make test"]
fn umount_takes_one_mount_and_then_says_that_there_is_none() {
    in_own_namespace(|kernel| {
        let (_dir, staging, _) = two_dirs();
        let lower = Mounted::tmpfs(kernel, &staging, MountAttrs::default());
        let upper = Mounted::tmpfs(kernel, &staging, MountAttrs::default());
        assert_ne!(upper.stat().mount_id, 0);
        drop(upper);
        assert!(lower.stat().mount_root);
        drop(lower);
        assert_eq!(kernel.umount(&staging).unwrap_err().cause(), Cause::Invalid);
        assert_eq!(kernel.statmount(&staging).unwrap(), None);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn umount_follows_no_symlink_and_refuses_what_is_in_use() {
    in_own_namespace(|kernel| {
        let (dir, staging, _) = two_dirs();
        let staged = Mounted::tmpfs(kernel, &staging, MountAttrs::default());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&staging, &link).unwrap();
        assert_eq!(kernel.umount(&link).unwrap_err().cause(), Cause::Invalid);
        assert!(staged.stat().mount_root);

        let user = kernel.open(&staging, Open::Directory).unwrap();
        assert_eq!(kernel.umount(&staging).unwrap_err().cause(), Cause::Busy);
        drop(user);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn statmount_and_mountinfo_agree() {
    in_own_namespace(|kernel| {
        let cases = [
            MountAttrs::default(),
            MountAttrs::READ_ONLY,
            MountAttrs::NO_ATIME,
            MountAttrs::STRICT_ATIME.with(MountAttrs::NO_DIR_ATIME),
            MountAttrs::NO_SUID
                .with(MountAttrs::NO_DEV)
                .with(MountAttrs::NO_EXEC),
            MountAttrs::NO_SYMFOLLOW
                .with(MountAttrs::READ_ONLY)
                .with(MountAttrs::NO_ATIME),
        ];
        let (dir, staging, target) = two_dirs();
        let link = dir.path().join("way");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        for superblock_read_only in [false, true] {
            let options: &[_] = if superblock_read_only {
                &[("ro", None)]
            } else {
                &[]
            };
            for attrs in cases {
                let mount = detached(kernel, "tmpfs", options, attrs).unwrap();
                let _staged = Mounted::attach(kernel, mount, &staging);
                let expected = crate::kernel::MountFacts {
                    fs_type: "tmpfs".to_owned(),
                    attrs,
                    superblock_read_only,
                    shut_down: false,
                    counts_in_memory: false,
                    peer_group: 0,
                    label: None,
                };
                for path in [&staging, &link.join("staging area")] {
                    assert_eq!(mountinfo::facts(path).unwrap().as_ref(), Some(&expected));
                    assert_eq!(mountinfo::holding(path).unwrap().as_ref(), Some(&expected));
                    if kernel.has_statmount {
                        assert_eq!(statmount::facts(path).unwrap().as_ref(), Some(&expected));
                        assert_eq!(statmount::holding(path).unwrap().as_ref(), Some(&expected));
                    }
                }
            }
        }
        let around = mountinfo::holding(dir.path()).unwrap();
        assert!(around.is_some() && around == mountinfo::holding(&target).unwrap());
        if kernel.has_statmount {
            // The type of the filesystem that contains the test's directory is unknown.
            let facts = |found: crate::kernel::MountFacts| crate::kernel::MountFacts {
                counts_in_memory: false,
                ..found
            };
            assert_eq!(statmount::holding(&target).unwrap().map(facts), around);
        }
        for nothing in [&target, &dir.path().join("absent")] {
            assert_eq!(mountinfo::facts(nothing).unwrap(), None);
            assert_eq!(kernel.statmount(nothing).unwrap(), None);
        }
    });
}

#[test]
#[ignore = "needs root: make test"]
fn the_list_of_mounts_has_a_new_one_with_its_device_and_unescaped_path() {
    in_own_namespace(|kernel| {
        let (_dir, staging, _) = two_dirs();
        let staged = Mounted::tmpfs(kernel, &staging, MountAttrs::default());
        let all = kernel.mounts().unwrap();
        let found = all
            .iter()
            .filter(|mount| mount.point == staging)
            .collect::<Vec<_>>();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].dev, staged.stat().dev);
        assert_eq!(found[0].root, Path::new("/"));
        assert_eq!(found[0].fs_type, "tmpfs");
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_detached_mount_can_be_looked_into_before_it_is_attached() {
    in_own_namespace(|kernel| {
        let (_dir, staging, _) = two_dirs();
        let mount = detached(kernel, "tmpfs", &[], MountAttrs::default()).unwrap();
        let root = kernel.open_root(&mount).unwrap();
        let inside = kernel.stat(&root).unwrap();
        drop(root);
        let staged = Mounted::attach(kernel, mount, &staging);
        assert!(inside.is_same_root(&staged.stat()));
    });
}

#[test]
#[ignore = "needs root: make test"]
fn the_reason_of_a_refused_option_or_type_comes_with_the_error() {
    in_own_namespace(|kernel| {
        let context = kernel.fsopen("ext4").unwrap();
        let error = kernel
            .fsconfig_set(&context, "nosuchflag", None)
            .unwrap_err();
        assert_eq!(error.cause(), Cause::Invalid);
        let text = error.to_string();
        assert!(text.starts_with("fsconfig nosuchflag: EINVAL"), "{text}");
        assert!(
            text.ends_with("ext4: Unknown parameter 'nosuchflag'"),
            "{text}"
        );

        let error = kernel.fsopen("nosuchfs").unwrap_err();
        assert_eq!(error.cause(), Cause::NoDevice);
        assert!(error.to_string().contains("no such filesystem"), "{error}");
    });
}

#[test]
#[ignore = "needs root: make test"]
fn open_beneath_does_not_enter_another_mount() {
    in_own_namespace(|kernel| {
        let (dir, staging, _) = two_dirs();
        let _staged = Mounted::tmpfs(kernel, &staging, MountAttrs::default());
        std::fs::write(staging.join("file"), b"").unwrap();
        let parent = kernel.open(dir.path(), Open::Directory).unwrap();
        let found = kernel.open_beneath(&parent, "staging area/file", Open::FileRead);
        assert_eq!(found.unwrap_err().cause(), Cause::Escapes);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn usage_counts_what_is_written() {
    in_own_namespace(|kernel| {
        let (_dir, staging, _) = two_dirs();
        let mount = detached(
            kernel,
            "tmpfs",
            &[("size", Some("8m"))],
            MountAttrs::default(),
        )
        .unwrap();
        let _staged = Mounted::attach(kernel, mount, &staging);
        std::fs::write(staging.join("file"), vec![1; 3 << 20]).unwrap();
        let usage = kernel.statfs(&staging).unwrap();
        assert_eq!(usage.total_bytes, 8 * MIB);
        assert_eq!(usage.used_bytes, 3 * MIB);
        assert_eq!(usage.available_bytes, 5 * MIB);
        assert_eq!(usage.used_inodes + usage.free_inodes, usage.total_inodes);
        assert_eq!(usage.used_inodes, 2);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn every_descriptor_of_a_mount_closes_on_exec() {
    in_own_namespace(|kernel| {
        let context = kernel.fsopen("tmpfs").unwrap();
        kernel.fsconfig_create(&context, false).unwrap();
        let mount = kernel.fsmount(&context, MountAttrs::default()).unwrap();
        let clone = kernel
            .open_tree(&kernel.open_path(Path::new("/")).unwrap())
            .unwrap();
        for fd in [&context, &mount, &clone] {
            let flags = rustix::io::fcntl_getfd(fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "{fd:?}");
        }
    });
}
