//! The config drive: a small disk with a filesystem of a known label. It is mounted read-only and
//! detached, so that no path shows it, and only while the document is read.

use std::path::Path;

use belay_server::size::Exact;

use crate::kernel::linux::Linux;
use crate::kernel::{self, AlignedBuf, Disk, Kernel as _, MountAttrs, Open};

use super::label::{self, Label};

/// Larger disks are not opened. A config drive has at most 64 MiB (Nova, for vfat), a Cinder volume
/// at least 1 GiB: so a pod cannot give its node another ID by writing such a label to a volume.
const DISK_BYTES_MAX: u64 = (1 << 30) - 1;

/// [`label::BYTES`], in whole blocks of every size.
const PROBE_BYTES: usize = label::BYTES.next_multiple_of(4096);

/// Directly on the disk: a disk in use does not appear in the page cache of this one.
const HOW: Open = Open::DeviceRead;

/// The document on the config drive. Waits for all small disks of the node.
///
/// # Errors
/// In words: there is no such disk, or several, or it cannot be read.
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

/// The only disk that has the label.
///
/// # Errors
/// In words: there is none, or there are several.
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
    Ok(label::of(&start[..length]))
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
    // The host may have mounted it, too.
    let is_shared = true;
    kernel.fsconfig_create(&context, is_shared)?;
    let attrs = MountAttrs::READ_ONLY
        .with(MountAttrs::NO_SUID)
        .with(MountAttrs::NO_DEV)
        .with(MountAttrs::NO_EXEC);
    kernel.fsmount(&context, attrs)
}

/// The file, or its first bytes: at least one too many.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Cause, Dev};
    use std::os::unix::fs::symlink;

    /// A directory is opened like the root of a mount.
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
            let mut start = vec![0; label::BYTES];
            start[32_768..32_775].copy_from_slice(b"\x01CD001\x01");
            start[32_808..32_816].copy_from_slice(b"config-2");
            let disk = Disk {
                dev: Dev { major: 8, minor: 0 },
                name: name.to_owned(),
                diskseq: 1,
                bytes: 1 << 20,
            };
            (disk, label::of(&start).unwrap())
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
}
