//! Checks of the kernel, tools, mounts, udev and disks.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use rustix::fs::statvfs;
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};

use crate::failure::Failure;
use crate::machine::mounts::{Mount, holder};
use crate::render::Answer;
use crate::report::{Report, Verdict};
use crate::size;

/// The oldest supported kernel, and the first kernel with statmount(2).
const OLDEST: (u32, u32) = (5, 14);
const STATMOUNT: (u32, u32) = (6, 8);

/// The file with the udev rules; its name determines its order among the rules of the node.
const UDEV_RULES: &str = "60-belay.rules";

/// The flags of `belayctl udev-rules`.
#[derive(Args)]
pub(crate) struct UdevRules {
    /// Directory of the rules, such as /etc/udev/rules.d
    dir: PathBuf,
}

impl UdevRules {
    /// Writes the file with the rules, unless the directory already contains the same file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let rules = include_bytes!("../../../../udev-rules/60-belay.rules");
        let path = self.dir.join(UDEV_RULES);
        if !fs::read(&path).is_ok_and(|old| old == rules) {
            // udevd ignores names that do not end in `.rules`, so it never reads half of the file.
            let new = self.dir.join("60-belay.new");
            let written = fs::write(&new, rules).and_then(|()| fs::rename(&new, &path));
            let failed = |error| Failure::Machine(format!("{}: {error}", path.display()));
            written.map_err(failed)?;
        }
        Ok(Answer::Done)
    }
}

pub(super) fn kernel(report: &mut Report) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let Some(version) = version(&release) else {
        return report.add(
            Verdict::Skip,
            "kernel",
            format!("{release}: not understood"),
        );
    };
    let (oldest, newer) = (
        "Linux 5.14 is the oldest that is supported",
        "upgrade the kernel",
    );
    if version < OLDEST {
        let found = format!("{release}; {oldest}");
        return report.cure(Verdict::No, "kernel", found, newer);
    }
    report.add(Verdict::Ok, "kernel", release.as_ref());
    if version < STATMOUNT {
        let found = "none before Linux 6.8: calls read the whole mount table instead";
        report.cure(Verdict::Warn, "statmount(2)", found, newer);
    } else {
        report.add(
            Verdict::Ok,
            "statmount(2)",
            "calls cost the same with many mounts",
        );
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub(super) fn mount_calls(report: &mut Report) {
    let name = "mount calls";
    match fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(_context) => report.add(Verdict::Ok, name, "fsopen(2) is permitted"),
        Err(Errno::NOSYS) => report.cure(
            Verdict::No,
            name,
            "fsopen(2): ENOSYS; a seccomp filter hides it",
            "run the node agent privileged, or with a seccomp profile that allows fsopen, \
             fsconfig, fsmount, move_mount, open_tree and mount_setattr",
        ),
        Err(errno) => report.cure(
            Verdict::Warn,
            name,
            format!("fsopen(2): {errno}; this process may not mount"),
            "run belayctl as root, or in the container of the node agent",
        ),
    }
}

pub(super) fn loop_devices(report: &mut Report) {
    let (name, path) = ("loop devices", "/dev/loop-control");
    match fs::metadata(path) {
        Ok(_) => report.add(Verdict::Ok, name, path),
        Err(error) => report.cure(
            Verdict::No,
            name,
            format!("{path}: {error}; drivers of kind `local` need it"),
            "modprobe loop; in a container, mount the host's /dev",
        ),
    }
}

pub(super) fn filesystems(report: &mut Report) {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let has = |name: &str| {
        known
            .lines()
            .any(|line| line.split('\t').next_back() == Some(name))
    };
    for name in ["ext4", "xfs", "btrfs"] {
        let what = format!("filesystem {name}");
        if has(name) {
            report.add(Verdict::Ok, &what, "in the kernel");
        } else {
            let found = "not loaded; the first mount loads it if its module is installed";
            report.cure(Verdict::Warn, &what, found, format!("modprobe {name}"));
        }
    }
}

pub(super) fn tools(report: &mut Report) {
    let path = env::var_os("PATH").unwrap_or_default();
    for (tool, package) in [
        ("mkfs.ext4", "e2fsprogs"),
        ("mkfs.xfs", "xfsprogs"),
        ("mkfs.btrfs", "btrfs-progs"),
    ] {
        let usual = ["/usr/sbin", "/sbin"].map(Into::into);
        let mut places = env::split_paths(&path).chain(usual);
        match places.find(|directory: &std::path::PathBuf| directory.join(tool).is_file()) {
            Some(directory) => {
                report.add(
                    Verdict::Ok,
                    tool,
                    directory.join(tool).display().to_string(),
                );
            }
            None => report.cure(
                Verdict::Warn,
                tool,
                "not in PATH; blank volumes of this filesystem cannot be formatted",
                format!("install {package}"),
            ),
        }
    }
}

pub(super) fn propagation(report: &mut Report, mounts: &[Mount], kubelet: &Path) {
    let name = "mount propagation";
    if !kubelet.is_dir() {
        let found = format!("{}: no such directory; no kubelet here", kubelet.display());
        return report.add(Verdict::Skip, name, found);
    }
    let Some(mount) = holder(mounts, kubelet) else {
        return report.add(
            Verdict::Skip,
            name,
            "no mount contains the kubelet's directory",
        );
    };
    let point = mount.point.display();
    if mount.is_shared {
        report.add(Verdict::Ok, name, format!("{point} is shared"));
    } else {
        let cure = format!(
            "on the node: mount --make-rshared {point}; in a pod: mountPropagation: Bidirectional"
        );
        let found = format!("{point} is private: pods would not see the volumes");
        report.cure(Verdict::No, name, found, cure);
    }
}

pub(super) fn udev(report: &mut Report) {
    let name = "udev rules";
    if !Path::new("/run/udev/control").exists() {
        return report.add(Verdict::Skip, name, "no udev runs here");
    }
    let directories = [
        "/etc/udev/rules.d",
        "/usr/lib/udev/rules.d",
        "/lib/udev/rules.d",
    ];
    let mut files = directories
        .iter()
        .map(|directory| Path::new(directory).join(UDEV_RULES));
    match files.find(|file| file.is_file()) {
        Some(file) => report.add(Verdict::Ok, name, file.display().to_string()),
        None => report.cure(
            Verdict::Warn,
            name,
            format!("{UDEV_RULES} is not installed: LVM, MD or automounters may open volumes"),
            "on the node: belayctl udev-rules /etc/udev/rules.d",
        ),
    }
}

pub(super) fn space(report: &mut Report, kubelet: &Path) {
    for directory in [kubelet, Path::new("/var/lib/belay/volumes")] {
        let Ok(stat) = statvfs(directory) else {
            continue;
        };
        let (free, all) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
        let (free_shown, all_shown) = (size::show(free), size::show(all));
        let found = format!("{}: {free_shown} of {all_shown} free", directory.display());
        let verdict = match free.saturating_mul(100).checked_div(all).unwrap_or(100) {
            0 => Verdict::No,
            1..10 => Verdict::Warn,
            _ => Verdict::Ok,
        };
        let cure = match verdict {
            Verdict::Ok => "",
            _ => "delete unused volumes, snapshots and images, or grow the disk",
        };
        report.cure(verdict, "space", found, cure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_understood() {
        for (release, expected) in [
            ("6.8.0-45-generic", Some((6, 8))),
            ("5.14.0", Some((5, 14))),
            ("6.1-rc3", Some((6, 1))),
            ("next", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }

    #[test]
    fn a_private_kubelet_directory_is_wrong_and_has_a_cure() {
        let dir = tempfile::tempdir().unwrap();
        let mount = |is_shared| Mount {
            dev: "8:1".to_owned(),
            root: "/".to_owned(),
            point: "/".into(),
            is_readonly: false,
            is_shared,
            fs_type: "ext4".to_owned(),
            source: "/dev/sda1".to_owned(),
        };
        let mut report = Report::default();
        propagation(&mut report, &[mount(true)], dir.path());
        assert!(report.is_good());
        propagation(&mut report, &[mount(false)], dir.path());
        assert_eq!(report.names(), "mount propagation\n");
        assert!(
            report.table().contains("--make-rshared"),
            "{}",
            report.table()
        );
    }
}
