//! Tests of the checks before a device is used: reading its mark, and checking its ext4 with
//! e2fsck.

use belay_server::call::{Failure, Kind};

use super::{Bench, DEADLINE, MIB, SECRET, medium, names, open};
use crate::filesystem::marking::{begin_raw_use, erase_mark};
use crate::filesystem::probe::{MARK_AT, MARK_BYTES, Proof, encode_mark};
use crate::filesystem::{Checked, FsType, Probed, Unchecked, check, examine, ext4_blocks};
use crate::kernel::Open;
use crate::kernel::fake::meanwhile::Meanwhile;
use crate::kernel::fake::mkfs::Stop;
use crate::kernel::fake::{Call, Damage, Fault};

impl Bench {
    /// Checks the filesystem on the device. Returns the result and the system calls.
    fn check(&self) -> (Result<Checked, Unchecked>, Vec<Call>) {
        self.machine.begin(None);
        let checked = check(&self.kernel, &self.device(false), DEADLINE, &|| ());
        (checked, self.machine.end())
    }

    /// Examines the device as new, with this fault. Returns the result and the number of system
    /// calls.
    fn examine(&self, fault: Option<Fault>) -> (Probed, usize) {
        self.machine.begin(fault);
        let found = examine(&self.kernel, &self.device(true));
        (found, self.machine.end().len())
    }
}

/// Returns the mark of the volume with its secret.
fn marked() -> [u8; MARK_BYTES] {
    let proof = Proof {
        secret: SECRET.into(),
        uuid: [7; 16],
    };
    encode_mark("vol-1", Some(&proof)).unwrap()
}

#[test]
fn a_raw_user_gets_no_mark_and_a_disk_that_cannot_have_one_is_not_read() {
    let end = MARK_AT + MARK_BYTES as u64;
    let erased = ["pread", "open", "pwrite", "fsync"];
    for (bytes, expected) in [(end - 512, &[][..]), (end, &erased), (end + 512, &erased)] {
        let bench = Bench::new(bytes, &[]);
        bench.machine.soil(medium(), MARK_AT, &marked());
        bench.machine.begin(None);
        let begun = begin_raw_use(&bench.kernel, &bench.device(false), false);
        let calls = bench.machine.end();
        assert_eq!(
            (begun, names(&calls).as_slice()),
            (Ok(()), expected),
            "{bytes}"
        );
        let is_erased = bench.mark().iter().all(|byte| *byte == 0);
        assert_eq!(is_erased, bytes >= end, "{bytes}");
    }
}

#[test]
fn a_raw_device_without_a_mark_of_its_volume_is_only_read() {
    let other = Proof {
        secret: SECRET.into(),
        uuid: [7; 16],
    };
    let of_another = encode_mark("vol-2", Some(&other)).unwrap();
    let bare = encode_mark("vol-1", None).unwrap();
    for block in [[0xa5; MARK_BYTES], of_another, bare] {
        for read_only in [false, true] {
            let bench = Bench::new(512 * MIB, &[]);
            bench.machine.soil(medium(), MARK_AT, &block);
            bench.machine.begin(None);
            let begun = begin_raw_use(&bench.kernel, &bench.device(false), read_only);
            let calls = bench.machine.end();
            assert_eq!((begun, names(&calls).as_slice()), (Ok(()), &["pread"][..]));
            assert!(bench.mark() == block);
        }
    }
}

#[test]
fn the_blocks_of_an_ext4_are_those_of_its_superblock() {
    let bench = Bench::new(512 * MIB, &[]);
    assert!(ext4_blocks(&bench.kernel, &bench.fd).is_err());
    bench.machine.make_filesystem(medium(), "ext4");
    // Read `s_blocks_count_lo` of the superblock, which begins at byte 1024.
    let count = bench.machine.read_file(medium(), 1028, 4);
    let count = u32::from_le_bytes(count.try_into().unwrap());
    assert!(count > 1, "{count}");
    let blocks = ext4_blocks(&bench.kernel, &bench.fd);
    assert_eq!(blocks, Ok(u64::from(count)));
}

#[test]
fn only_the_mark_of_the_volume_is_erased() {
    let bench = Bench::new(512 * MIB, &[]);
    let writer = open(&bench.kernel, Open::DeviceWrite);
    let other = encode_mark("vol-2", None).unwrap();
    for (block, left) in [(marked(), [0; MARK_BYTES]), (other, other)] {
        bench.machine.soil(medium(), MARK_AT, &block);
        erase_mark(&bench.kernel, &bench.device(false), &writer).unwrap();
        assert!(bench.mark() == left);
    }
}

/// An unreadable mark is no reason to refuse a valid filesystem on a disk. If the record of a
/// backing file cannot be read, the content is unknown.
#[test]
fn a_disk_with_a_filesystem_is_known_even_if_its_mark_cannot_be_read() {
    let (plain, file) = (Bench::new(512 * MIB, &[]), Bench::with_file(512 * MIB));
    let secret = Bench::with_secret(512 * MIB);
    for (bench, calls) in [(&plain, 2), (&secret, 3), (&file, 3)] {
        bench.machine.make_filesystem(medium(), "ext4");
        assert_eq!(bench.examine(None).1, calls, "{calls}");
    }
    // The first two calls read the start and the end of the device, the third the mark or the
    // record.
    let fault = Some(Fault::Fail(3, "EIO"));
    let found = secret.examine(fault).0;
    assert!(matches!(found, Probed::Known(_)), "{found:?}");
    let blank = Bench::with_secret(512 * MIB);
    for bench in [&file, &blank] {
        let found = bench.examine(fault).0;
        assert!(matches!(found, Probed::Unreadable(_)), "{found:?}");
    }
}

#[test]
fn a_device_that_another_process_has_claimed_is_not_checked() {
    let bench = Bench::new(512 * MIB, &[]);
    assert_eq!(bench.format(FsType::Ext4), Ok(()));
    let user = bench.machine.process();
    let other = open(&user, Open::DeviceExclusive);
    let (checked, calls) = bench.check();
    let failed = |failure: &Failure| failure.kind == Kind::Busy;
    assert!(
        matches!(&checked, Err(Unchecked::Failed(it)) if failed(it)),
        "{checked:?}"
    );
    assert!(!calls.iter().any(|call| call.name == "spawn"), "{calls:?}");
    drop(other);
    let checked = bench.check().0;
    assert!(checked.is_ok(), "{checked:?}");
}

/// Returns a machine with a damaged ext4.
fn damaged(damage: Damage) -> Bench {
    let bench = Bench::new(512 * MIB, &[]);
    bench.machine.make_filesystem(medium(), "ext4");
    bench.machine.damage(medium(), damage);
    bench
}

#[test]
fn an_ext4_that_still_asks_for_a_check_after_one_is_not_used() {
    let checked = damaged(Damage::Slight).check().0;
    assert!(matches!(checked, Ok(Checked::Corrected(_))), "{checked:?}");
    let checked = damaged(Damage::Lasting).check().0;
    let is_expected = |what: &str| what.contains("still asks for a check");
    assert!(
        matches!(&checked, Err(Unchecked::Unable(what)) if is_expected(what)),
        "{checked:?}"
    );
}

#[test]
fn a_check_that_does_not_end_by_itself_is_no_result_and_says_why() {
    let failed = |bench: &Bench| match bench.check().0 {
        Err(Unchecked::Failed(failure)) => failure.kind,
        other => panic!("{other:?}"),
    };
    for (stop, kind) in [
        (Stop::Deadline, Kind::Timeout),
        (Stop::Signal, Kind::System),
    ] {
        let bench = damaged(Damage::Slight);
        bench.machine.stop_tools(Some(stop));
        assert_eq!(failed(&bench), kind, "{stop:?}");
    }
    // NodeUnstageVolume cancels the check.
    let bench = damaged(Damage::Slight);
    bench.progress.advance(0, 1);
    assert!(bench.progress.give_up());
    assert_eq!(failed(&bench), Kind::Busy);
    let killed = std::cell::Cell::new(false);
    let on_kill = || killed.set(true);
    let checked = check(&bench.kernel, &bench.device(false), DEADLINE, &on_kill);
    assert!(checked.is_err() && killed.get());
    // Another process claims the device after the agent has checked that no process has claimed it.
    let bench = damaged(Damage::Slight);
    let opens = |call: &Call| call.name == "e2fsck open";
    let number = damaged(Damage::Slight).check().1.iter().position(opens);
    let claim = Meanwhile::Claim("/dev/vda".into());
    bench.machine.meanwhile(number.unwrap() + 1, claim);
    assert_eq!(failed(&bench), Kind::Busy);
}
