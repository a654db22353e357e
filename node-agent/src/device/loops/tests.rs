//! Tests of devices and files of volumes on the simulated machine, one call at a time.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use belay_contract::drivers::local::CLAIM;
use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::bind::lacking_nodes;
use super::bound::Device;
use super::folder::LoopDir;
use super::sysfs::{candidates, loop_path, node_of};
use crate::device::{Backing, Guard, Intent, Label, Purpose, Transport, Verdict};
use crate::kernel::fake::{Fake, Fault, Fd, Machine, Trouble};
use crate::kernel::{Dev, Inode, Kernel as _, LoopMode, Open};

const KEPT: LoopMode = LoopMode {
    read_only: false,
    autoclear: false,
};
const RAW: Purpose = Purpose::Raw { read_only: false };
const READER: Purpose = Purpose::Raw { read_only: true };

/// A simulated machine with the directory of a driver, which contains the file of `vol-1`.
struct Bench {
    machine: Machine,
    kernel: Fake,
    dir: LoopDir<Fake>,
}

impl Bench {
    fn new() -> Bench {
        let machine = Machine::new();
        for path in ["/volumes", "/others"] {
            machine.make_dir(Path::new(path));
        }
        machine.make_file(Path::new("/volumes/vol-1"), 1 << 20);
        let kernel = machine.process();
        let driver = "one.example".parse().unwrap();
        let dir = LoopDir::open(&kernel, &driver, Path::new("/volumes")).unwrap();
        Bench {
            machine,
            kernel,
            dir,
        }
    }

    /// Binds a file to the next device, under this name. Returns the device's number and its
    /// descriptor.
    fn bind(&self, file: &str, name: &str, mode: LoopMode) -> (u32, Fd) {
        let kernel = &self.kernel;
        let file = kernel.open(Path::new(file), Open::FileWrite).unwrap();
        assert!(kernel.flock(&file).unwrap());
        let number = kernel.loop_get_free().unwrap();
        let device = kernel.open(&loop_path(number), Open::DeviceWrite).unwrap();
        kernel.loop_configure(&device, &file, mode, name).unwrap();
        (number, device)
    }

    /// Binds the file of `vol-1` to the next device, under the volume's name.
    fn bound(&self) -> (u32, Fd) {
        self.bind("/volumes/vol-1", "one.example/vol-1", KEPT)
    }

    fn hold(&self, purpose: Purpose) -> Result<Device<Fake>, Failure> {
        let file = self.dir.find(&self.kernel, &vol(), purpose)?;
        let left = file.left(&self.kernel)?;
        file.hold(&self.kernel, left, purpose, &|_| Ok(false))
    }

    fn verdict(&self, number: u32) -> Result<&'static str, Kind> {
        let dev = self.kernel.loop_dev(number);
        let verdict = self
            .dir
            .verdict(&self.kernel, &vol(), (dev, None), Intent::TakeDown);
        verdict.map(word).map_err(|failure| failure.kind)
    }

    /// Runs `act` twice, and makes the call with this name fail during the second run. Returns the
    /// second result.
    fn fail<T>(&self, name: &str, errno: &'static str, act: impl Fn() -> T) -> T {
        self.machine.begin(None);
        act();
        let calls = self.machine.end();
        let call = calls.iter().position(|call| call.name == name);
        let call = call.unwrap_or_else(|| panic!("{name} in {calls:?}"));
        self.machine.begin(Some(Fault::Fail(call + 1, errno)));
        let result = act();
        self.machine.end();
        result
    }
}

fn vol() -> VolumeId {
    VolumeId::new("vol-1").unwrap()
}

fn word<K: crate::kernel::Kernel, G>(verdict: Verdict<K, G>) -> &'static str {
    match verdict {
        Verdict::Ours(_) => "ours",
        Verdict::Stale(_) => "stale",
        Verdict::Foreign => "foreign",
        Verdict::Unbound => "unbound",
        Verdict::Removed => "removed",
    }
}

#[test]
fn a_file_that_another_volume_has_bound_is_refused() {
    let bench = Bench::new();
    let (number, _device) = bench.bind("/volumes/vol-1", "one.example/vol-2", KEPT);
    let refused = bench.hold(RAW).map(drop).unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition, "{refused}");
    assert_eq!(bench.verdict(number), Ok("foreign"));
}

#[test]
fn a_device_that_is_taken_over_gets_the_mode_of_its_purpose() {
    let bench = Bench::new();
    let held = bench.hold(Purpose::Filesystem).unwrap();
    let status = || bench.kernel.loop_status(held.fd()).unwrap().unwrap();
    assert!(status().mode.autoclear);
    drop(bench.hold(RAW).unwrap());
    assert!(!status().mode.autoclear, "its last close would detach it");
    drop(bench.hold(Purpose::Filesystem).unwrap());
    assert!(status().mode.autoclear);
}

#[test]
fn a_writer_shares_the_file_with_no_process_and_a_reader_with_readers() {
    for (purpose, opener, is_refused) in [
        (RAW, Open::FileRead, true),
        (RAW, Open::FileWrite, true),
        (READER, Open::FileRead, false),
        (READER, Open::FileWrite, true),
    ] {
        let bench = Bench::new();
        let user = bench.machine.process();
        let _open = user.open(Path::new("/volumes/vol-1"), opener).unwrap();
        let held = bench.hold(purpose).map(drop);
        assert_eq!(
            held.is_err(),
            is_refused,
            "{purpose:?} {opener:?}: {held:?}"
        );
    }
}

#[test]
fn only_a_device_that_was_taken_meanwhile_is_followed_by_another() {
    let bind = |errno| {
        let bench = Bench::new();
        bench.machine.begin(None);
        drop(bench.hold(RAW).unwrap());
        let calls = bench.machine.end();
        let bind = calls.iter().position(|call| call.name == "LOOP_CONFIGURE");
        let bench = Bench::new();
        bench
            .machine
            .begin(Some(Fault::Fail(bind.unwrap() + 1, errno)));
        let held = bench.hold(RAW).map(drop);
        bench.machine.end();
        held.map_err(|failure| failure.kind)
    };
    assert_eq!(bind("EBUSY"), Ok(()));
    assert_eq!(bind("EIO"), Err(Kind::System));
}

#[test]
fn a_device_that_does_not_open_is_not_there_only_if_it_does_not_exist() {
    let bench = Bench::new();
    let (number, _device) = bench.bound();
    let open = |number| Device::open(&bench.kernel, number).map(|device| device.is_some());
    assert!(open(number).unwrap());
    assert!(!open(99).unwrap());
    assert!(bench.fail("open", "EIO", || open(number)).is_err());
}

#[test]
fn an_unbinding_that_fails_is_an_error_and_one_of_an_unbound_device_is_none() {
    let bench = Bench::new();
    let (number, device) = bench.bound();
    let unbind = || {
        let device = Device::open(&bench.kernel, number).unwrap().unwrap();
        device.unbind(&bench.kernel).map(drop)
    };
    bench.machine.begin(Some(Fault::Fail(2, "EPERM")));
    assert!(unbind().is_err());
    bench.machine.end();
    unbind().unwrap();
    drop(device);
    unbind().unwrap();
    // If the caller does not have the file, only the device shows whether the device is unbound.
    let (number, _user) = bench.bound();
    let release = || {
        let mut device = Device::open(&bench.kernel, number).unwrap().unwrap();
        device.ask(&bench.kernel).unwrap();
        bench.machine.begin(Some(Fault::Fail(3, "EPERM")));
        let released = device.release(&bench.kernel);
        let calls = bench.machine.end();
        assert_eq!(calls[2].name, "LOOP_GET_STATUS64", "{calls:?}");
        released
    };
    assert_eq!(release().unwrap_err().kind, Kind::System);
}

#[test]
fn what_cannot_be_opened_is_not_missing() {
    let bench = Bench::new();
    let find = || bench.dir.find_if_any(&bench.kernel, &vol());
    let is_found = |found: Result<Option<_>, Failure>| found.map(|file| file.is_some());
    assert_eq!(is_found(find()), Ok(true));
    bench.machine.begin(Some(Fault::Fail(1, "EIO")));
    assert!(find().is_err());
    bench.machine.end();
    bench.machine.delete_file(Path::new("/volumes/vol-1"));
    assert_eq!(is_found(find()), Ok(false));
    bench.machine.make_dir(Path::new("/volumes/vol-1"));
    assert_eq!(is_found(find()), Ok(false));
    let refused = bench.dir.find(&bench.kernel, &vol(), RAW).map(drop);
    assert_eq!(refused.unwrap_err().kind, Kind::Invalid);
}

#[test]
fn an_id_that_is_a_path_is_refused_before_it_is_looked_up() {
    let bench = Bench::new();
    bench.machine.make_file(Path::new("/others/vol-1"), 1 << 20);
    let volume = VolumeId::new("../others/vol-1").unwrap();
    let found = bench.dir.find_if_any(&bench.kernel, &volume).map(drop);
    assert_eq!(found.unwrap_err().kind, Kind::Invalid);
}

#[test]
fn a_device_that_is_claimed_is_not_unbound() {
    let bench = Bench::new();
    let (number, device) = bench.bound();
    let user = bench.machine.process();
    let claim = user
        .open(&loop_path(number), Open::DeviceExclusive)
        .unwrap();
    let file = bench.dir.find(&bench.kernel, &vol(), RAW).unwrap();
    let left = || file.left(&bench.kernel).unwrap().unwrap();
    let refused = file.free(&bench.kernel, left()).unwrap_err();
    assert_eq!(refused.kind, Kind::Busy);
    // The device must stay bound; with AUTOCLEAR, it would be unbound when its user closes it.
    let status = bench.kernel.loop_status(&device).unwrap().unwrap();
    assert_eq!(status.mode, KEPT);
    drop(claim);
    // The test still has the device open, so the device is not unbound yet.
    let refused = file.free(&bench.kernel, left()).unwrap_err();
    assert!(refused.message.contains("still open"), "{refused}");
}

#[test]
fn a_pending_deletion_is_read_from_the_file() {
    let bench = Bench::new();
    let is_wanted = || bench.dir.is_wanted_back(&bench.kernel, &vol());
    assert_eq!(is_wanted(), Ok(false));
    let path = Path::new("/volumes/vol-1");
    let file = bench.kernel.open(path, Open::FileWrite).unwrap();
    bench.kernel.set_xattr(&file, CLAIM, b"delete").unwrap();
    assert_eq!(is_wanted(), Ok(true));
    let fail = |errno| bench.fail("fgetxattr", errno, is_wanted);
    assert_eq!(fail("EOPNOTSUPP"), Ok(false));
    assert!(fail("EIO").is_err());
    bench.machine.delete_file(path);
    assert_eq!(is_wanted(), Ok(false));
}

#[test]
fn remnants_are_the_kept_devices_of_the_volumes_own_name_and_file() {
    let bench = Bench::new();
    bench
        .machine
        .make_file(Path::new("/volumes/vol-2"), 1 << 20);
    let (other, _other) = bench.bind("/volumes/vol-2", "one.example/vol-2", KEPT);
    let (number, _device) = bench.bound();
    let remnant = |bench: &Bench, number| {
        let found = bench.dir.remnant(&bench.kernel, &vol(), number);
        found.unwrap().is_some()
    };
    assert_eq!(
        bench.dir.remnants_of(&bench.kernel, &vol()),
        Ok(vec![number])
    );
    assert!(remnant(&bench, number) && !remnant(&bench, other));
    // An operator has bound the device.
    let bench = Bench::new();
    let (number, _device) = bench.bind("/volumes/vol-1", "/volumes/vol-1", KEPT);
    assert!(!remnant(&bench, number));
    // The file was replaced.
    let bench = Bench::new();
    let (number, _device) = bench.bound();
    bench.machine.delete_file(Path::new("/volumes/vol-1"));
    bench
        .machine
        .make_file(Path::new("/volumes/vol-1"), 1 << 20);
    assert!(!remnant(&bench, number));
    // A device with AUTOCLEAR is in use by a filesystem.
    let bench = Bench::new();
    let mode = LoopMode {
        autoclear: true,
        ..KEPT
    };
    let (number, _device) = bench.bind("/volumes/vol-1", "one.example/vol-1", mode);
    assert_eq!(bench.dir.remnants_of(&bench.kernel, &vol()), Ok(vec![]));
    assert!(!remnant(&bench, number));
}

#[test]
fn candidates_have_the_name_of_the_file_and_those_of_its_path_are_first() {
    let bench = Bench::new();
    for file in ["/others/vol-1", "/volumes/vol-12"] {
        bench.machine.make_file(Path::new(file), 1 << 20);
    }
    let (elsewhere, _a) = bench.bind("/others/vol-1", "x", KEPT);
    let (another, _b) = bench.bind("/volumes/vol-12", "y", KEPT);
    let (number, _c) = bench.bound();
    let found = candidates(&bench.kernel, Path::new("/volumes/vol-1")).unwrap();
    let numbers: Vec<u32> = found.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [number, elsewhere]);
    let may_be_of = |dev| super::may_be_of(&bench.kernel, &vol(), dev).unwrap();
    let dev = |number| bench.kernel.loop_dev(number);
    assert!(may_be_of(dev(number)) && may_be_of(dev(elsewhere)));
    let disk = Dev { major: 8, minor: 0 };
    assert!(!may_be_of(dev(another)) && !may_be_of(disk));
    let node = |dev| node_of(&bench.kernel, dev);
    assert_eq!(
        (node(dev(7)), node(disk)),
        (Some(PathBuf::from("/dev/loop7")), None)
    );
}

/// Tests a mount of a device whose file is not known to this agent.
#[test]
fn a_file_counts_as_replaced_by_its_names_alone() {
    let path = Path::new("/volumes/vol-1");
    let is_replaced = |bench: &Bench, dev| {
        let known: Option<Inode> = None;
        let found = bench
            .dir
            .is_replaced(&bench.kernel, &vol(), (dev, known), true);
        found.unwrap().unwrap()
    };
    let bench = Bench::new();
    let (number, _device) = bench.bound();
    let dev = bench.kernel.loop_dev(number);
    assert!(!is_replaced(&bench, dev));
    assert!(!is_replaced(&bench, Dev { major: 8, minor: 0 }));
    bench
        .machine
        .move_file(path, Path::new("/volumes/vol-1.bad"));
    assert!(
        !is_replaced(&bench, dev),
        "it was moved, and may be moved back"
    );
    bench.machine.make_dir(path);
    assert!(!is_replaced(&bench, dev), "no file has its name");
    let bench = Bench::new();
    let (number, _device) = bench.bound();
    let dev = bench.kernel.loop_dev(number);
    bench
        .machine
        .move_file(path, Path::new("/volumes/vol-1.bad"));
    bench.machine.make_file(path, 1 << 20);
    assert!(is_replaced(&bench, dev));
    let bench = Bench::new();
    let (number, _device) = bench.bound();
    let dev = bench.kernel.loop_dev(number);
    bench.machine.delete_file(path);
    assert!(is_replaced(&bench, dev));
}

#[test]
fn a_file_whose_disk_fails_is_unreadable_and_any_other_error_is_an_error() {
    let bench = Bench::new();
    let (number, _device) = bench.bound();
    let dev = bench.kernel.loop_dev(number);
    let behind = || bench.dir.behind(&bench.kernel, &vol(), (dev, None));
    assert!(matches!(
        behind(),
        Ok(Backing::There {
            bytes: 0x10_0000,
            ..
        })
    ));
    bench.machine.begin(None);
    assert!(behind().is_ok());
    let calls = bench.machine.end();
    let look = calls
        .iter()
        .position(|call| call.object == "/volumes/vol-1");
    let fail = |errno| {
        let fault = Fault::Fail(look.unwrap() + 1, errno);
        bench.machine.begin(Some(fault));
        let found = behind();
        bench.machine.end();
        found
    };
    assert!(matches!(fail("EIO"), Ok(Backing::Unreadable(_))));
    assert!(fail("EPERM").is_err());
}

#[test]
fn the_devices_of_a_file_on_a_dead_disk_are_found_by_name_and_no_others() {
    let bench = Bench::new();
    bench
        .machine
        .make_file(Path::new("/volumes/vol-1.bad"), 1 << 20);
    let (number, _device) = bench.bound();
    let (_other, _other_device) = bench.bind("/volumes/vol-1.bad", "z/vol-9", KEPT);
    let unread = || {
        let found = RefCell::new(Vec::new());
        let is_dead = bench.dir.unread(&bench.kernel, &vol(), |device| {
            found.borrow_mut().push(device.guard.number);
            Ok(())
        });
        (is_dead, found.into_inner())
    };
    assert_eq!(unread(), (Ok(false), vec![]));
    bench
        .machine
        .trouble(Path::new("/volumes"), Trouble::ShutDown);
    assert_eq!(unread(), (Ok(true), vec![number]));
    assert_eq!(bench.verdict(number), Ok("stale"));
    let transport = Transport::Loops(bench.dir.into());
    let is_dead = transport.unread(&bench.kernel, &vol(), |_| Ok(()));
    assert_eq!(is_dead, Ok(true));
}

/// NodePublishVolume must not begin on a failed disk, but NodeUnstageVolume must complete.
#[test]
fn only_a_volume_that_is_taken_down_is_recognised_on_a_dead_disk() {
    for (intent, expected) in [
        (Intent::Use, Err(Kind::System)),
        (Intent::TakeDown, Ok("stale")),
    ] {
        let bench = Bench::new();
        let (number, _device) = bench.bound();
        let verdict = || {
            let device = (bench.kernel.loop_dev(number), None);
            let verdict = bench.dir.verdict(&bench.kernel, &vol(), device, intent);
            verdict.map(word).map_err(|failure| failure.kind)
        };
        assert_eq!(verdict(), Ok("ours"));
        bench
            .machine
            .trouble(Path::new("/volumes"), Trouble::ShutDown);
        assert_eq!(verdict(), expected, "{intent:?}");
    }
}

#[test]
fn on_a_dead_disk_a_device_that_does_not_exist_is_unbound_and_one_that_closes_is_unknown() {
    let bench = Bench::new();
    let judge = |number| bench.dir.judge_unread(&bench.kernel, &vol(), number);
    assert_eq!(judge(99).unwrap().map(word), Some("unbound"));
    let (number, device) = bench.bound();
    assert_eq!(judge(number).unwrap().map(word), Some("stale"));
    bench.kernel.loop_clr_fd(&device).unwrap();
    assert!(judge(number).unwrap().is_none());
}

#[test]
fn the_file_is_open_for_writing_unless_a_reader_wants_it() {
    for (purpose, is_writable) in [(Purpose::Filesystem, true), (RAW, true), (READER, false)] {
        let bench = Bench::new();
        let file = bench.dir.find(&bench.kernel, &vol(), purpose).unwrap();
        let written = bench.kernel.pwrite(file.fd(), b"x", 0);
        assert_eq!(written.is_ok(), is_writable, "{purpose:?}");
    }
}

#[test]
fn a_file_with_a_lease_is_busy_and_a_symlink_or_mount_is_not_the_volumes() {
    let bench = Bench::new();
    let refused = || bench.dir.find(&bench.kernel, &vol(), RAW).map(drop);
    let fault = Fault::FailFrom(1, "EAGAIN");
    bench.machine.begin(Some(fault));
    let failure = refused().unwrap_err();
    bench.machine.end();
    assert_eq!(failure.kind, Kind::Busy, "{failure}");
    // The file's name now leads to another mount, which the open must not enter.
    bench.machine.cover(Path::new("/volumes/vol-1"));
    let failure = refused().unwrap_err();
    assert_eq!(failure.kind, Kind::Invalid, "{failure}");
    assert!(failure.message.contains("symbolic link"), "{failure}");
}

#[test]
fn a_device_is_kept_without_a_user_unless_it_is_detached_at_its_last_close() {
    for (purpose, is_kept) in [(Purpose::Filesystem, false), (RAW, true), (READER, true)] {
        let bench = Bench::new();
        let held = bench.hold(purpose).unwrap().guarded(Guard::Loop);
        assert_eq!(held.is_kept(), is_kept, "{purpose:?}");
    }
}

/// The number may have been reused for another volume after the label was read.
#[test]
fn a_device_whose_label_names_another_volume_or_attachment_is_not_the_volumes() {
    let bench = Bench::new();
    let (number, device) = bench.bound();
    let diskseq = bench.kernel.diskseq(&device).unwrap();
    let dev = bench.kernel.loop_dev(number);
    let kernel = &bench.kernel;
    let path = Path::new("/volumes/vol-1");
    let file = kernel.open(path, Open::FileWrite).unwrap();
    let transport = Transport::Loops(bench.dir.into());
    let verdict = |driver: &str, id: &str, diskseq: u64| {
        let root = format!("/belay/{driver}/{id}@{diskseq}/loop{number}");
        let label = Label::read(Path::new(&root)).unwrap();
        let found = transport.verdict(kernel, &vol(), dev, Some(&label), (Intent::Use, None));
        word(found.unwrap())
    };
    assert_eq!(verdict("one.example", "vol-1", diskseq), "ours");
    assert_eq!(verdict("one.example", "vol-1", diskseq + 1), "unbound");
    assert_eq!(verdict("one.example", "vol-2", diskseq), "foreign");
    assert_eq!(verdict("two.example", "vol-1", diskseq), "foreign");
    let is_dead = transport.unread(kernel, &vol(), |_| Ok(()));
    assert_eq!(is_dead, Ok(false));
    assert_eq!(transport.is_wanted_back(kernel, &vol()), Ok(false));
    kernel.set_xattr(&file, CLAIM, b"delete").unwrap();
    assert_eq!(transport.is_wanted_back(kernel, &vol()), Ok(true));
}

#[test]
fn a_device_without_a_node_is_refused_with_the_cure_and_makes_the_driver_unready() {
    let bench = Bench::new();
    assert_eq!(lacking_nodes(&bench.kernel), None);
    bench.machine.delete_file(Path::new("/dev/loop0"));
    let why = lacking_nodes(&bench.kernel).unwrap();
    let refused = bench.hold(RAW).map(drop).unwrap_err();
    assert_eq!((refused.kind, &refused.message), (Kind::Precondition, &why));
    assert!(why.starts_with("/dev/loop0 does not exist"), "{why}");
    for cure in ["devtmpfs", "hostPath", "mknod"] {
        assert!(why.contains(cure), "{why}");
    }
}

#[test]
fn a_free_device_that_another_stage_removes_meanwhile_is_replaced_by_another() {
    for errno in ["ENODEV", "EBUSY"] {
        let bench = Bench::new();
        bench.machine.begin(None);
        drop(bench.hold(RAW).unwrap());
        let calls = bench.machine.end();
        let open = calls.iter().position(|call| call.object == "/dev/loop0");
        let bench = Bench::new();
        let fault = Fault::Fail(open.unwrap() + 1, errno);
        bench.machine.begin(Some(fault));
        let held = bench.hold(RAW).map(drop).map_err(|failure| failure.kind);
        bench.machine.end();
        let expected = match errno {
            "ENODEV" => Ok(()),
            _ => Err(Kind::System),
        };
        assert_eq!(held, expected, "{errno}");
    }
}

#[test]
fn a_device_that_cannot_be_reset_is_unbound_again() {
    for call in ["BLKROSET", "read"] {
        let bench = Bench::new();
        bench.machine.begin(None);
        drop(bench.hold(RAW).unwrap());
        let calls = bench.machine.end();
        let at = calls.iter().rposition(|made| made.name == call);
        let bench = Bench::new();
        bench
            .machine
            .begin(Some(Fault::Fail(at.unwrap() + 1, "EACCES")));
        let held = bench.hold(RAW).map(drop).map_err(|failure| failure.kind);
        bench.machine.end();
        assert_eq!(held, Err(Kind::System), "{call}");
        assert_eq!(bench.kernel.loop_bound().unwrap(), [0; 0], "{call}");
    }
}
