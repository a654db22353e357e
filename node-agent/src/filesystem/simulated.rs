//! Tests of formats, and of the probe before them, on the simulated machine.

mod checked;

use std::path::Path;
use std::time::Duration;

use belay_contract::drivers::local::{IS_NEW, NEW};
use belay_contract::format::FormatOptions;
use belay_contract::mark::MarkSecret;
use belay_server::call::Kind;

use super::format::{Permit, format};
use super::mkfs::{Recipe, mkfs, refuse_busy, unwanted_features};
use super::probe::tests::xfs_sector_with;
use super::probe::{MARK_AT, MARK_BYTES};
use super::{DeviceUnderTest, FsType, Probed, examine};
use crate::kernel::fake::mkfs::Stop;
use crate::kernel::fake::{Call, Fake, Fault, Fd, Machine, Plug};
use crate::kernel::{Kernel as _, Open};
use crate::work::Progress;

const DEADLINE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const SECRET: [u8; 32] = [1; 32];

/// A simulated machine with one disk, which is held open.
struct Bench {
    machine: Machine,
    kernel: Fake,
    fd: Fd,
    bytes: u64,
    /// The backing file, if the device is a loop device.
    file: Option<Fd>,
    secrets: Vec<MarkSecret>,
    progress: Progress,
}

impl Bench {
    fn new(bytes: u64, start: &[u8]) -> Bench {
        let machine = Machine::new();
        machine.make_file(medium(), bytes);
        if !start.is_empty() {
            machine.write_file(medium(), 0, start);
        }
        machine.plug(Plug::virtio(medium(), "vol-1"));
        let kernel = machine.process();
        let fd = open(&kernel, Open::DeviceRead);
        Bench {
            machine,
            kernel,
            fd,
            bytes,
            file: None,
            secrets: Vec::new(),
            progress: Progress::default(),
        }
    }

    /// Returns a machine with a disk whose volume has a secret.
    fn with_secret(bytes: u64) -> Bench {
        Bench {
            secrets: vec![SECRET.into()],
            ..Bench::new(bytes, &[])
        }
    }

    /// Returns a machine with a device that has a backing file.
    fn with_file(bytes: u64) -> Bench {
        let bench = Bench::new(bytes, &[]);
        bench.machine.set_attribute(medium(), NEW, IS_NEW);
        let file = bench.kernel.open(medium(), Open::FileWrite).unwrap();
        Bench {
            file: Some(file),
            ..bench
        }
    }

    fn device(&self, is_new: bool) -> DeviceUnderTest<'_, Fd> {
        DeviceUnderTest {
            fd: &self.fd,
            bytes: self.bytes,
            backing: self.file.as_ref(),
            secrets: &self.secrets,
            volume: "vol-1",
            is_new,
            accepts_uncleared: false,
            progress: &self.progress,
        }
    }

    fn blank(&self, is_new: bool) -> Permit {
        match examine(&self.kernel, &self.device(is_new)) {
            Probed::Blank(blank) => blank.into(),
            other => panic!("{other:?}"),
        }
    }

    fn format(&self, fs: FsType) -> Result<(), Kind> {
        self.format_by(self.blank(true), fs)
    }

    fn format_by(&self, permit: Permit, fs: FsType) -> Result<(), Kind> {
        let options = FormatOptions::default();
        let device = self.device(true);
        let made = format(&self.kernel, &device, (fs, options), permit, DEADLINE);
        made.map_err(|failure| failure.kind)
    }

    /// Examines and formats the device, and stops mkfs if `stop` is given. Returns the result and
    /// the system calls.
    fn try_format(&self, fs: FsType, stop: Option<Stop>) -> (Result<(), Kind>, Vec<Call>) {
        let permit = match examine(&self.kernel, &self.device(self.file.is_none())) {
            Probed::Blank(blank) => Permit::Blank(blank),
            Probed::Interrupted(interrupted) => Permit::Interrupted(interrupted),
            other => panic!("{other:?}"),
        };
        self.machine.stop_tools(stop);
        self.machine.begin(None);
        let made = self.format_by(permit, fs);
        (made, self.machine.end())
    }

    /// Returns the block at the mark's offset.
    fn mark(&self) -> Vec<u8> {
        self.machine.read_file(medium(), MARK_AT, MARK_BYTES)
    }

    /// Runs a mkfs that fails. Returns the kind and the message of the failure.
    fn mkfs(&self) -> (Kind, String) {
        let recipe = Recipe {
            fs: FsType::Ext4,
            options: FormatOptions::default(),
            uuid: "",
            over_leftovers: false,
            over_unread: false,
        };
        let failed = mkfs(&self.kernel, &self.device(true), &recipe, DEADLINE);
        let failure = failed.unwrap_err();
        (failure.kind, failure.message)
    }
}

fn medium() -> &'static Path {
    Path::new("/medium")
}

fn names(calls: &[Call]) -> Vec<&str> {
    calls.iter().map(|call| call.name).collect()
}

fn open(kernel: &Fake, how: Open) -> Fd {
    kernel.open(Path::new("/dev/vda"), how).unwrap()
}

#[test]
fn a_device_of_the_minimum_size_is_formatted_and_a_smaller_one_is_not() {
    for fs in [FsType::Ext4, FsType::Xfs, FsType::Btrfs] {
        let formatted = |bytes| Bench::new(bytes, &[]).format(fs);
        assert_eq!(formatted(fs.minimum_bytes()), Ok(()), "{fs}");
        let refused = formatted(fs.minimum_bytes() - 4096);
        assert_eq!(refused, Err(Kind::Precondition), "{fs}");
    }
}

/// The mark is on the disk before mkfs begins. The filesystem is on the disk before the mark is
/// erased, and the mark is erased before the mount.
#[test]
fn each_step_of_a_format_is_on_the_disk_before_the_next() {
    let bench = Bench::new(512 * MIB, &[]);
    let permit = bench.blank(true);
    let options = FormatOptions::default();
    bench.machine.begin(None);
    let device = bench.device(true);
    format(
        &bench.kernel,
        &device,
        (FsType::Ext4, options),
        permit,
        DEADLINE,
    )
    .unwrap();
    let calls = bench.machine.end();
    let steps = ["pwrite", "fsync", "spawn"];
    let steps = calls.iter().filter(|call| steps.contains(&call.name));
    let steps: Vec<_> = steps.map(|call| call.name).collect();
    let expected = ["pwrite", "fsync", "spawn", "fsync", "pwrite", "fsync"];
    assert_eq!(steps, expected);
}

#[test]
fn a_device_that_another_process_has_claimed_is_not_formatted() {
    let bench = Bench::new(512 * MIB, &[]);
    let user = bench.machine.process();
    let other = open(&user, Open::DeviceExclusive);
    let before = bench.machine.read_file(medium(), 0, 1 << 20);
    assert_eq!(bench.format(FsType::Ext4), Err(Kind::Busy));
    let refused = refuse_busy(&bench.kernel, &bench.device(true)).unwrap_err();
    assert_eq!(refused.kind, Kind::Busy);
    // The other process claims the device after the check by `refuse_busy`.
    assert_eq!(bench.mkfs().0, Kind::Busy);
    assert!(bench.machine.read_file(medium(), 0, 1 << 20) == before);
    let mark = bench.machine.read_file(medium(), 100 << 20, 4096);
    assert!(mark.iter().all(|byte| *byte == 0), "a mark was written");
    drop(other);
    assert_eq!(bench.format(FsType::Ext4), Ok(()));
}

#[test]
fn a_mkfs_that_fails_is_reported_with_its_message_and_as_busy_only_where_that_is_why() {
    let bench = Bench::new(512 * MIB, &[]);
    for fault in [Fault::Fail(3, "EIO"), Fault::FailFrom(3, "EIO")] {
        bench.machine.begin(Some(fault));
        let (kind, message) = bench.mkfs();
        let calls = bench.machine.end();
        assert_eq!(calls[2].name, "mkfs write", "{calls:?}");
        assert_eq!(kind, Kind::System, "{fault:?}");
        assert!(message.starts_with("mkfs.ext4 failed"), "{message}");
    }
    bench.machine.begin(Some(Fault::Fail(1, "EIO")));
    let refused = refuse_busy(&bench.kernel, &bench.device(true)).unwrap_err();
    bench.machine.end();
    assert_eq!(refused.kind, Kind::System);
}

#[test]
fn what_was_not_read_may_hold_the_log_of_another_filesystem() {
    let bench = Bench::new(512 * MIB, &[]);
    assert!(bench.blank(true).is_sampled());
    let small = Bench::new(MIB, &[]);
    assert!(!small.blank(true).is_sampled() && !small.blank(false).is_sampled());
}

#[test]
fn features_of_an_xfs_that_an_old_kernel_does_not_know_are_found() {
    for (incompat, unwanted) in [(0xb, 0), (0x2b, 0x20), (0xeb, 0xe0)] {
        let bench = Bench::new(1 << 30, &xfs_sector_with(incompat));
        let found = unwanted_features(&bench.kernel, &bench.device(true));
        assert_eq!(found, Ok(unwanted), "{incompat:#x}");
    }
}

/// A newer mkfs may enable features that an old kernel does not know. Only the new filesystem shows
/// which features are enabled.
#[test]
fn an_xfs_with_features_that_can_be_turned_off_is_made_again_without_them() {
    let spawned = |incompat| {
        let bench = Bench::new(512 * MIB, &[]);
        bench.machine.renew_xfs(incompat);
        let (made, calls) = bench.try_format(FsType::Xfs, None);
        let spawned = names(&calls).iter().filter(|it| **it == "spawn").count();
        (made, spawned)
    };
    assert_eq!(spawned(0), (Ok(()), 1));
    assert_eq!(spawned(0xe0), (Ok(()), 2));
    assert_eq!(spawned(0x100), (Err(Kind::System), 2));
}

/// mkfs must overwrite the journal unless its blocks were read as zeros: the log of an earlier
/// filesystem might be replayed.
#[test]
fn a_journal_is_left_as_it_is_only_where_all_was_read_as_zeros() {
    for (bench, option) in [
        (Bench::with_secret(512 * MIB), "lazy_journal_init=0"),
        (Bench::with_file(512 * MIB), "lazy_journal_init=1"),
    ] {
        for stop in [Some(Stop::Signal), None] {
            let (made, calls) = bench.try_format(FsType::Ext4, stop);
            assert_eq!(made.is_ok(), stop.is_none(), "{made:?}");
            let mkfs = calls.iter().find(|call| call.name == "spawn").unwrap();
            assert!(mkfs.object.contains(option), "{stop:?}: {mkfs:?}");
        }
    }
}

/// Until mkfs has overwritten the superblock of the first attempt, a superblock with another UUID
/// would count as a complete filesystem.
#[test]
fn each_attempt_to_complete_a_format_of_a_disk_has_the_uuid_of_the_first() {
    let bench = Bench::with_secret(512 * MIB);
    let attempts = [Stop::Signal, Stop::Deadline].map(|stop| {
        let (made, _) = bench.try_format(FsType::Xfs, Some(stop));
        (made, bench.mark()[192..208].to_vec())
    });
    let [(killed, first), (late, second)] = attempts;
    assert_eq!((killed, late), (Err(Kind::System), Err(Kind::Timeout)));
    assert!(
        first == second && first != [0; 16],
        "{first:x?} {second:x?}"
    );
    assert_eq!(bench.try_format(FsType::Xfs, None).0, Ok(()));
}
