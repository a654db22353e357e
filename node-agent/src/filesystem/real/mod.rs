//! Tests of the probe, formats and growth with the real tools, on image files. The tests of growth
//! use real loop devices.
//!
//! The tests on image files do not need root: the system calls work on image files like on devices.
//! Only the tests that set extended attributes of the image file need root.

mod check;
mod corpus;
mod format;
mod grow;
mod options;
mod quota;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use belay_contract::drivers::local::{IS_NEW, NEW};
use belay_contract::format::FormatOptions;
use belay_server::call::Failure;
use rustix::fs::XattrFlags;
use tempfile::TempDir;

use super::{DeviceUnderTest, FsType, Permit, Probed, examine};
use crate::kernel::linux::Linux;
use crate::kernel::{Kernel, Open};
use crate::work::Progress;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The volume ID of every image, unless a test passes another ID.
const VOLUME: &str = "vol-00000000000000000000000000000001";

/// The deadline of a tool, which is much longer than any tool runs.
const DEADLINE: Duration = Duration::from_secs(120);

/// The Debian package that contains each tool.
const PACKAGES: [(&str, &str); 14] = [
    ("mke2fs", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("dumpe2fs", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("xfs_db", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("btrfs", "btrfs-progs"),
    ("mkfs.vfat", "dosfstools"),
    ("mkswap", "util-linux"),
    ("sgdisk", "gdisk"),
    ("cryptsetup", "cryptsetup-bin"),
    ("blkid", "util-linux"),
];

/// Runs a tool that must succeed; returns its output.
fn tool(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output();
    let output = output.unwrap_or_else(|error| {
        let package = PACKAGES.iter().find(|(tool, _)| *tool == program);
        let package = package.map_or("the package that has it", |(_, package)| package);
        panic!("{program}: {error}; install {package}")
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{program} {args:?}: {printed}{errors}"
    );
    printed
}

/// The state of an image that only a write changes. The state does not contain the data ranges and
/// the number of allocated blocks, which writeback and the page cache also change.
#[derive(PartialEq)]
struct State {
    /// The blocks with nonzero bytes, and their offsets.
    blocks: Vec<(u64, Vec<u8>)>,
    modified: SystemTime,
}

/// A sparse file in its own directory, with the record of a new volume.
struct Image {
    dir: TempDir,
    bytes: u64,
}

/// An image file, opened like the agent opens a device.
struct OpenDevice {
    device: OwnedFd,
    backing: OwnedFd,
    progress: Progress,
}

impl Image {
    fn new(bytes: u64) -> Image {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("image")).unwrap();
        file.set_len(bytes).unwrap();
        rustix::fs::fsetxattr(&file, NEW, IS_NEW, XattrFlags::empty()).unwrap();
        Image { dir, bytes }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Runs a tool with the image as its last argument.
    fn make(&self, program: &str, args: &[&str]) {
        let path = self.path();
        let args = args.iter().copied().chain([path.to_str().unwrap()]);
        tool(program, &args.collect::<Vec<_>>());
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(self.path()).unwrap();
        file.write_all_at(bytes, at).unwrap();
        file.sync_all().unwrap();
    }

    fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        File::open(self.path())
            .unwrap()
            .read_exact_at(&mut bytes, at)
            .unwrap();
        bytes
    }

    fn hold(&self, kernel: &Linux) -> OpenDevice {
        OpenDevice {
            device: kernel.open(&self.path(), Open::DeviceRead).unwrap(),
            backing: kernel.open(&self.path(), Open::FileRead).unwrap(),
            progress: Progress::default(),
        }
    }

    fn examine(&self, volume: &str) -> Probed {
        let kernel = Linux::detect().unwrap();
        examine(&kernel, &self.hold(&kernel).device(self.bytes, volume))
    }

    /// Examines and formats the image, as NodeStageVolume does.
    fn format(&self, fs: FsType, deadline: Duration) -> Result<(), Failure> {
        self.format_with(fs, FormatOptions::default(), deadline)
    }

    fn format_with(
        &self,
        fs: FsType,
        options: FormatOptions,
        deadline: Duration,
    ) -> Result<(), Failure> {
        let kernel = Linux::detect().unwrap();
        let held = self.hold(&kernel);
        let device = held.device(self.bytes, VOLUME);
        let permit = match examine(&kernel, &device) {
            Probed::Blank(blank) => Permit::from(blank),
            Probed::Interrupted(interrupted) => Permit::from(interrupted),
            other => panic!("no permission to format: {other:?}"),
        };
        super::format(&kernel, &device, (fs, options), permit, deadline)
    }

    fn assert_holds(&self, fs: FsType) {
        let found = self.examine(VOLUME);
        assert!(
            matches!(found, Probed::Known(ref known) if known.fs == fs),
            "{found:?}"
        );
        self.check(fs);
    }

    fn check(&self, fs: FsType) {
        match fs {
            FsType::Ext4 => self.make("e2fsck", &["-f", "-n"]),
            FsType::Xfs => self.make("xfs_repair", &["-n"]),
            FsType::Btrfs => self.make("btrfs", &["check", "-q"]),
        }
    }

    fn state(&self) -> State {
        let kernel = Linux::detect().unwrap();
        let file = kernel.open(&self.path(), Open::FileRead).unwrap();
        let mut blocks = Vec::new();
        let mut from = 0;
        while let Some(start) = kernel.seek_data(&file, from).unwrap() {
            from = kernel.seek_hole(&file, start).unwrap();
            let data = self.read(start, usize::try_from(from - start).unwrap());
            let ats = (start..).step_by(4096);
            let blocks_of_data = ats.zip(data.chunks(4096));
            let written = blocks_of_data.filter(|(_, block)| block.iter().any(|byte| *byte != 0));
            blocks.extend(written.map(|(at, block)| (at, block.to_vec())));
        }
        let metadata = File::open(self.path()).unwrap().metadata().unwrap();
        State {
            blocks,
            modified: metadata.modified().unwrap(),
        }
    }
}

impl OpenDevice {
    fn device<'a>(&'a self, bytes: u64, volume: &'a str) -> DeviceUnderTest<'a, OwnedFd> {
        DeviceUnderTest {
            secrets: &[],
            is_new: false,
            accepts_uncleared: false,
            fd: &self.device,
            bytes,
            backing: Some(&self.backing),
            volume,
            progress: &self.progress,
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
