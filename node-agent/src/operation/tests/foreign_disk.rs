//! Tests of disks whose content is not a filesystem of the volume. Such a disk must never be
//! formatted, regardless of failures during NodeStageVolume and of changes of the disk.

use belay_server::call::Failure;

use super::bench::{BYTES, Form, MIB, Verb, Volume, World, hear};
use super::simulated::{DISK_DRIVER, Media, Simulated};
use crate::device::DiskRules;
use crate::kernel::fake::meanwhile::Meanwhile;
use crate::kernel::fake::{Call, Fake, Fault, Plug};
use crate::operation::Node;

const ATTACHED: u64 = 1_800_000_000;
/// An offset at which a sample of a new disk is read: a disk has 256 parts, and this is the middle
/// of part 78.
const SAMPLE: u64 = 77 * (BYTES / 256) + BYTES / 512;
/// Maximum offset of content in tests in which the disk is read completely, because reading a whole
/// disk is slow in the simulation.
const NEAR: u64 = 16 * MIB;
/// Offset in bytes of the format mark, which an interrupted mkfs leaves on the disk.
const MARK: u64 = 100 * MIB;

/// Offsets and contents that are not zero.
const CONTENTS: [(u64, &[u8]); 14] = [
    (0, &[1]),
    (0, b"LUKS\xba\xbe\x00\x02"),
    (510, &[0x55, 0xaa]),
    (512, b"EFI PART\0\0\x01\0"),
    (0x218, b"LVM2 001"),
    (4086, b"SWAPSPACE2"),
    (16 << 10, b"SKUL\xba\xbe\x00\x02"),
    (5 * MIB + 3, &[1]),
    (8 * MIB + 0x438, &[0x53, 0xef]),
    (64 * MIB + 0x40, b"_BHRfS_M"),
    (128 * MIB + 0x38, &[0x53, 0xef]),
    (SAMPLE, &[1]),
    (BYTES - 512, b"EFI PART\0\0\x01\0"),
    (BYTES - 1, &[1]),
];

/// An event that disturbs NodeStageVolume.
#[derive(Clone, Copy, Debug)]
enum Event {
    Fails,
    ReadsHalf,
    Vanishes,
    /// The disk is replaced by a blank disk with the same serial number.
    IsSwapped,
    /// The disk was not attached before, and is attached now.
    IsLate,
}

const EVENTS: [Event; 5] = [
    Event::Fails,
    Event::ReadsHalf,
    Event::Vanishes,
    Event::IsSwapped,
    Event::IsLate,
];

/// A volume on a disk, and an agent. The controller reports `content` in the publish context.
struct Stage {
    world: Simulated,
    node: Node<Fake>,
    volume: Volume,
}

impl Stage {
    fn new(content: &'static str, accepts_uncleared: bool) -> Stage {
        let world = Simulated::of(Media::Disks);
        let mut volume = world.volume("vol", Form::Ext4);
        (volume.content, volume.attached_at) = (content, Some(ATTACHED));
        world.machine.discard(&volume.file());
        world.machine.set_clock(ATTACHED);
        let rules = DiskRules {
            proves_unknown: true,
            accepts_uncleared,
        };
        let node = world.start_disks_which(DISK_DRIVER, rules);
        Stage {
            world,
            node,
            volume,
        }
    }

    /// Returns another disk with the volume's serial number, either blank or with this content.
    fn other(&self, content: Option<(u64, &[u8])>) -> Plug {
        let medium = self.world.base().join("other");
        self.world.machine.make_file(&medium, BYTES);
        if let Some((at, bytes)) = content {
            self.world.machine.write_file(&medium, at, bytes);
        }
        Plug::virtio(&medium, "vol")
    }

    fn calls(&self) -> (bool, Vec<Call>) {
        self.world.machine.begin(None);
        let staged = self.volume.call(&self.node, Verb::Stage);
        (staged.is_ok(), self.world.machine.end())
    }

    /// Makes the call. The event happens right before the system call with the position `number`.
    fn under(&self, event: Event, number: usize, own: Plug) -> Result<(), Failure> {
        let (machine, file) = (&self.world.machine, self.volume.file());
        if let Event::IsLate = event {
            machine.unplug(&file);
        }
        let fault = match event {
            Event::Fails => Some(Fault::Fail(number, "EIO")),
            _ => None,
        };
        machine.begin(fault);
        match event {
            Event::Fails => {}
            Event::ReadsHalf => machine.meanwhile(number, Meanwhile::Short),
            Event::Vanishes => machine.meanwhile(number, Meanwhile::Unplug(file)),
            Event::IsSwapped => {
                machine.meanwhile(number, Meanwhile::Swap(file, self.other(None)));
            }
            Event::IsLate => machine.meanwhile(number, Meanwhile::Plug(own)),
        }
        let staged = self.volume.call(&self.node, Verb::Stage);
        machine.end();
        staged
    }

    /// Checks that the medium has this content and no other.
    #[track_caller]
    fn check(&self, medium: &std::path::Path, (at, bytes): (u64, &[u8]), what: &str) {
        let machine = &self.world.machine;
        assert_eq!(machine.violations(), Vec::<String>::new(), "{what}");
        assert_eq!(machine.read_file(medium, at, bytes.len()), bytes, "{what}");
        let zeros = MIB - bytes.len() as u64;
        let start = if at < MIB { at + bytes.len() as u64 } else { 0 };
        for from in [start, MARK] {
            let length = usize::try_from(zeros.min(MIB - from % MIB)).unwrap();
            let found = machine.read_file(medium, from, length);
            assert!(found.iter().all(|byte| *byte == 0), "{what}: {from}");
        }
    }
}

/// Returns the positions of all system calls except most of the reads.
fn positions(calls: &[Call]) -> Vec<usize> {
    let mut reads = 0;
    let is_one = |at: &usize| {
        let is_read = calls[at - 1].name == "pread";
        reads += usize::from(is_read);
        !is_read || reads <= 6 || reads % 61 == 0 || at + 8 > calls.len()
    };
    (1..=calls.len()).filter(is_one).collect()
}

#[test]
fn what_is_on_a_disk_stays_whatever_happens_during_its_stage() {
    for (content, accepts) in [
        ("new", false),
        ("used", false),
        ("unknown", false),
        ("new", true),
    ] {
        for (at, bytes) in CONTENTS {
            // Contents of two bytes are not known signatures.
            let is_signature = bytes.len() > 2;
            if content != "new" && at > NEAR || accepts && !is_signature {
                continue;
            }
            let stage = || {
                let stage = Stage::new(content, accepts);
                let machine = &stage.world.machine;
                machine.write_file(&stage.volume.file(), at, bytes);
                stage
            };
            let (is_staged, calls) = stage().calls();
            assert!(!is_staged, "{content}, {accepts}, {at}");
            for (number, event) in positions(&calls)
                .into_iter()
                .flat_map(|number| EVENTS.map(|event| (number, event)))
            {
                let stage = stage();
                let (machine, file) = (&stage.world.machine, stage.volume.file());
                let own = Plug::virtio(&file, "vol");
                let staged = stage.under(event, number, own.clone());
                let what = format!("{content}, {accepts}, {at}, {event:?} at {number}: {staged:?}");
                stage.check(&file, (at, bytes), &what);
                if let Event::Vanishes = event {
                    machine.plug(own);
                }
                if let Event::IsSwapped = event {
                    continue;
                }
                // The kubelet repeats the call.
                assert!(staged.is_err(), "{what}");
                hear(&stage.node).unwrap();
                stage.volume.call(&stage.node, Verb::Stage).unwrap_err();
                stage.check(&file, (at, bytes), &what);
            }
        }
    }
}

/// The disk is replaced after the agent has found it blank, or while the agent is formatting it.
#[test]
fn a_disk_that_takes_the_place_of_a_blank_one_is_not_formatted() {
    const DATA: (u64, &[u8]) = (SAMPLE, b"data of another volume");
    let (is_staged, calls) = Stage::new("new", false).calls();
    assert!(is_staged);
    for number in positions(&calls) {
        let stage = Stage::new("new", false);
        let other = stage.other(Some(DATA));
        let medium = other.medium.clone();
        let machine = &stage.world.machine;
        machine.begin(None);
        machine.meanwhile(number, Meanwhile::Swap(stage.volume.file(), other));
        let staged = stage.volume.call(&stage.node, Verb::Stage);
        let made = machine.end();
        let what = format!("{number} ({:?}): {staged:?}", made.get(number - 1));
        stage.check(&medium, DATA, &what);
        hear(&stage.node).unwrap();
        let again = stage.volume.call(&stage.node, Verb::Stage);
        // The volume has a different disk by now, so the call must fail whether the first disk is
        // mounted or not.
        assert!(again.is_err(), "{what}, {again:?}");
        stage.check(&medium, DATA, &what);
    }
}
