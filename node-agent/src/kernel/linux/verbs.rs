//! Tests of the calls that need no privileges, on the kernel of this machine.

use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

use super::Linux;
use crate::kernel::{
    Cause, Dev, Disks as _, FileKind, Kernel as _, LoopMode, MountAttrs, Open, Remotes as _,
    Surroundings as _, XATTR_BYTES_MAX,
};

/// A number that no loop device has.
const ABSENT: u32 = 1_000_000;

fn machine() -> (Linux, TempDir) {
    (Linux::detect().unwrap(), tempfile::tempdir().unwrap())
}

#[test]
fn names_are_made_listed_and_removed() {
    let (kernel, dir) = machine();
    let at = |name: &str| dir.path().join(name);
    kernel.mkdir(&at("folder"), 0o700).unwrap();
    kernel.create_file(&at("file"), 0o600).unwrap();
    kernel.link(&at("file"), &at("second")).unwrap();
    let mut names = kernel.names(dir.path()).unwrap();
    names.sort();
    assert_eq!(names, ["file", "folder", "second"]);
    let file = kernel.look(&at("file")).unwrap().unwrap();
    assert_eq!((file.kind, file.bytes, file.links), (FileKind::File, 0, 2));
    kernel.unlink(&at("file")).unwrap();
    kernel.rmdir(&at("folder")).unwrap();
    assert_eq!(kernel.names(dir.path()).unwrap(), ["second"]);
    assert_eq!(kernel.look(&at("file")).unwrap(), None);
    assert_eq!(kernel.names(&at("folder")).unwrap(), [""; 0]);
}

#[test]
fn a_path_is_known_with_its_links_and_without() {
    let (kernel, dir) = machine();
    let at = |name: &str| dir.path().join(name);
    let real = kernel.real(dir.path()).unwrap().unwrap();
    symlink(dir.path(), at("link")).unwrap();
    assert_eq!(kernel.real(&at("link")).unwrap(), Some(real.clone()));
    assert_eq!(kernel.real(&at("absent")).unwrap(), None);
    let has_none = |path: &Path| kernel.has_no_links(path).unwrap();
    assert_eq!(has_none(&real), Some(true));
    assert_eq!(has_none(&real.join("link")), Some(false));
    assert_eq!(has_none(&real.join("link/link")), Some(false));
    assert_eq!(has_none(&real.join("absent")), None);
}

#[test]
fn a_file_is_opened_by_its_path_its_directory_or_another_descriptor() {
    let (kernel, dir) = machine();
    let path = dir.path().join("file");
    std::fs::write(&path, "12345").unwrap();
    let expected = kernel.look(&path).unwrap().unwrap();
    let folder = kernel.open(dir.path(), Open::Directory).unwrap();
    let named = kernel.open_path(&path).unwrap();
    let beneath = kernel.open_beneath(&folder, "file", Open::Name).unwrap();
    let again = kernel.reopen(&named, Open::FileWrite).unwrap();
    for opened in [&named, &beneath, &again] {
        assert_eq!(kernel.stat(opened).unwrap(), expected);
    }
    let absent = kernel.open_beneath(&folder, "absent", Open::Name);
    assert_eq!(absent.unwrap_err().cause(), Cause::Missing);
    assert!(kernel.open(&path, Open::Directory).is_err());
    assert!(kernel.flock(&again).unwrap());
    let other = kernel.open(&path, Open::FileRead).unwrap();
    assert!(!kernel.flock(&other).unwrap(), "it is locked already");
}

#[test]
fn bytes_are_written_and_read_where_they_belong_and_holes_are_found() {
    let (kernel, dir) = machine();
    let path = dir.path().join("file");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(3 << 20).unwrap();
    let file = kernel.open(&path, Open::FileWrite).unwrap();
    assert_eq!(kernel.seek_data(&file, 0).unwrap(), None);
    assert_eq!(kernel.pwrite(&file, b"belay", 1 << 20).unwrap(), 5);
    kernel.fsync(&file).unwrap();
    let mut read = [0; 7];
    assert_eq!(kernel.pread(&file, &mut read, (1 << 20) - 1).unwrap(), 7);
    assert_eq!(&read, b"\0belay\0");
    assert_eq!(kernel.seek_data(&file, 0).unwrap(), Some(1 << 20));
    let end = kernel.seek_hole(&file, 1 << 20).unwrap();
    assert!((1 << 20) < end && end <= 2 << 20, "{end}");
}

#[test]
fn a_mount_is_described_by_its_path_and_by_its_id() {
    let (kernel, dir) = machine();
    let proc = Path::new("/proc");
    let id = kernel.look(proc).unwrap().unwrap().mount_id;
    let facts = kernel.statmount(proc).unwrap().unwrap();
    assert_eq!((&*facts.fs_type, facts.shut_down), ("proc", false));
    assert_eq!(kernel.statmount(dir.path()).unwrap(), None);
    let by_id = kernel.statmount_of(id).unwrap();
    assert_eq!(by_id.is_some(), kernel.has_statmount && id != 0);
    assert_eq!(by_id.map(|facts| facts.fs_type), id_type(&kernel, id));
    assert_eq!(kernel.statmount_of(0).unwrap(), None);
    assert_eq!(kernel.mount_root(proc, id).unwrap(), Some("/".into()));
    assert_eq!(kernel.mount_label(proc).unwrap(), None);
    let beneath = kernel.mount_holding(Path::new("/proc/sys")).unwrap();
    assert_eq!(beneath.unwrap().fs_type, "proc");
    let mounts = kernel.mounts().unwrap();
    assert!(mounts.iter().any(|mount| mount.point == proc));
}

fn id_type(kernel: &Linux, id: u64) -> Option<String> {
    (kernel.has_statmount && id != 0).then(|| "proc".to_owned())
}

#[test]
fn a_loop_device_has_a_number_and_one_that_does_not_exist_has_no_file() {
    let (kernel, _) = machine();
    for number in [0, 1, 7] {
        let dev = kernel.loop_dev(number);
        assert_eq!(kernel.loop_number(dev), Some(number));
        assert_eq!(kernel.loop_number(Dev { major: 8, ..dev }), None);
    }
    assert_eq!(kernel.loop_file(ABSENT).unwrap(), None);
    assert_eq!(kernel.loop_file_name(ABSENT).unwrap(), None);
    assert_eq!(kernel.loop_bytes(ABSENT).unwrap(), None);
    assert_eq!(kernel.diskseq_named("no-such-disk").unwrap(), None);
    assert_eq!(kernel.disk_named("no-such-disk").unwrap(), None);
}

#[test]
fn what_no_file_is_asked_for_is_right() {
    let (kernel, dir) = machine();
    let usage = kernel.statfs(dir.path()).unwrap();
    let sum = usage.used_bytes + usage.available_bytes;
    assert!(
        usage.total_bytes > 0 && sum <= usage.total_bytes,
        "{usage:?}"
    );
    let uuids = [kernel.new_uuid().unwrap(), kernel.new_uuid().unwrap()];
    assert!(uuids.iter().all(|uuid| uuid.len() == 36) && uuids[0] != uuids[1]);
    // The time is later than the writing of this test.
    assert!(kernel.realtime() > 1_700_000_000);
}

#[test]
fn an_attribute_is_absent_until_it_is_set_and_after_it_was_removed() {
    const NAME: &str = "user.belay";
    let (kernel, dir) = machine();
    let path = dir.path().join("file");
    std::fs::write(&path, "").unwrap();
    let file = kernel.open(&path, Open::FileWrite).unwrap();
    match kernel.set_xattr(&file, NAME, b"value") {
        // Before Linux 6.6, tmpfs has no user attributes.
        Err(error) => {
            assert_eq!(error.cause(), Cause::Unsupported, "{error}");
            assert_eq!(kernel.xattr(&file, NAME).unwrap(), None);
        }
        Ok(()) => {
            assert_eq!(kernel.xattr(&file, NAME).unwrap().unwrap(), b"value");
            kernel.remove_xattr(&file, NAME).unwrap();
            assert_eq!(kernel.xattr(&file, NAME).unwrap(), None);
            kernel.remove_xattr(&file, NAME).unwrap();
            // No attribute that the agent sets is this long.
            let long = [1; XATTR_BYTES_MAX + 1];
            kernel.set_xattr(&file, NAME, &long).unwrap();
            assert_eq!(kernel.xattr(&file, NAME).unwrap(), Some(Vec::new()));
        }
    }
}

#[test]
fn a_mode_is_set_and_read_without_the_type() {
    let (kernel, dir) = machine();
    let folder = kernel.open(dir.path(), Open::Directory).unwrap();
    for mode in [0o700, 0o2755, 0o1777] {
        kernel.chmod(&folder, mode).unwrap();
        assert_eq!(kernel.mode(&folder).unwrap(), mode);
    }
}

#[test]
fn a_mount_has_a_source_and_a_directory_in_it_has_none() {
    let (kernel, dir) = machine();
    for kernel in [kernel, Linux::for_helper()] {
        let found = kernel.mount_source(Path::new("/proc")).unwrap().unwrap();
        assert_eq!(found.fs_type, "proc");
        assert!(!found.source.is_empty() && !found.superblock_read_only);
        assert_eq!(kernel.mount_source(dir.path()).unwrap(), None);
        assert_eq!(
            kernel.mount_source(&dir.path().join("absent")).unwrap(),
            None
        );
    }
}

#[test]
fn an_address_is_its_own_and_each_address_of_a_name_is_returned_once() {
    let (kernel, _) = machine();
    for address in ["192.0.2.7", "2001:db8::7"] {
        let found = kernel.addresses(address).unwrap();
        assert_eq!(found, [address.parse::<IpAddr>().unwrap()]);
    }
    // The resolver returns the address once for each type of socket.
    let found = kernel.addresses("localhost").unwrap();
    let is_first = |(at, address): (usize, &IpAddr)| !found[..at].contains(address);
    assert!(found.iter().enumerate().all(is_first), "{found:?}");
    assert!(found.iter().any(IpAddr::is_loopback), "{found:?}");
}

#[test]
fn an_agent_is_beside_the_first_process_if_both_have_one_mount_namespace() {
    let (kernel, _) = machine();
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt"));
    let first = namespace("1").ok();
    let is_beside = first == namespace("self").ok();
    assert_eq!(kernel.is_beside_first_process(), is_beside);
}

#[test]
fn what_is_not_a_block_device_has_no_size_and_no_number() {
    let (kernel, dir) = machine();
    let path = dir.path().join("file");
    std::fs::write(&path, "12345").unwrap();
    let file = kernel.open(&path, Open::FileRead).unwrap();
    assert!(kernel.device_bytes(&file).is_err());
    assert!(kernel.device_block_bytes(&file).is_err());
    assert_eq!(kernel.diskseq(&file).unwrap(), 0);
    let mode = LoopMode {
        read_only: true,
        autoclear: true,
    };
    assert!(kernel.loop_configure(&file, &file, mode, "a").is_err());
    assert!(kernel.loop_status(&file).is_err());
    assert!(kernel.loop_set_autoclear(&file, true).is_err());
    assert!(kernel.loop_clr_fd(&file).is_err());
    assert!(kernel.loop_set_capacity(&file).is_err());
    assert!(kernel.fsconfig_set(&file, "ro", None).is_err());
    assert!(kernel.fsconfig_create(&file, false).is_err());
    assert!(kernel.mount_setattr(&file, MountAttrs::READ_ONLY).is_err());
    assert!(kernel.move_mount(&file, &file).is_err());
    assert!(kernel.umount(&path).is_err());
    assert!(kernel.umount_lazily(&path).is_err());
}
