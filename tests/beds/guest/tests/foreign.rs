//! Disks with foreign content, which fail, vanish, shrink or are swapped while they
//! are read: whatever happens, nothing is written to them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belay_bed::chance::Chance;
use belay_bed::tools;
use belay_guest::{Disk, Failing, Guest, Machine, Medium};
use rustix::event::poll;

use crate::belay::{call, try_call};
use crate::disks::{ID, Volume, begin_stage, boot, end_of_stage, machine};
use crate::rig::{MIB, kernels, medium, until};

const SIZE_MIB: u64 = 256;
pub(crate) const BYTES: u64 = SIZE_MIB * MIB;
/// In the middle of one of the 256 parts of which a new disk has samples.
const SAMPLE: u64 = 77 * (BYTES / 256) + BYTES / 512;
/// Disks in each run; `make nightly` has all of them, on each kernel.
const DISKS: usize = 14;

/// The content of a disk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    Nothing,
    Bytes(u64, &'static [u8]),
    /// The output of a tool, with these arguments before the file.
    Made(&'static str, &'static [&'static str]),
}

pub(crate) const FOREIGN: [Content; 11] = [
    Content::Made("mkfs.vfat", &["-F", "32"]),
    Content::Made("mkswap", &["-q"]),
    Content::Made("sgdisk", &["--new=1:2048:0"]),
    Content::Bytes(0, b"LUKS\xba\xbe\x00\x02"),
    Content::Bytes(512, b"LABELONE\x01\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001"),
    Content::Bytes(16 << 10, b"SKUL\xba\xbe\x00\x02"),
    Content::Bytes(64 * MIB + 0x40, b"_BHRfS_M"),
    Content::Bytes(128 * MIB + 0x38, &[0x53, 0xef]),
    Content::Bytes(SAMPLE, &[1]),
    Content::Bytes(BYTES - 512, b"EFI PART\0\0\x01\0"),
    Content::Bytes(BYTES - 1, &[1]),
];

/// The controller's statements about the disk.
const WORDS: [&str; 3] = [
    "content=new --context attached_at=$(date +%s)",
    // Too long ago: all of it is read.
    "content=new --context attached_at=$(($(date +%s) - 601))",
    "content=used",
];

/// An event at the disk while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// It comes after the stage has begun.
    IsLate,
    ReadsFail,
    Shrinks,
    Vanishes,
    /// A blank disk with the same serial takes its place.
    IsSwappedForBlank,
    /// It takes the place of a blank disk with the same serial.
    IsSwappedForForeign,
}

const EVENTS: [Event; 6] = [
    Event::IsLate,
    Event::ReadsFail,
    Event::Shrinks,
    Event::Vanishes,
    Event::IsSwappedForBlank,
    Event::IsSwappedForForeign,
];

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_foreign_disk_is_not_written_to_whatever_happens_while_it_is_read() {
    let mut chance = Chance::new("foreign disks");
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    for kernel in kernels() {
        let machine = machine(kernel);
        let mut guest = boot(&machine);
        let all = FOREIGN.iter().flat_map(|content| {
            let words = WORDS.iter();
            words.flat_map(move |word| EVENTS.map(|event| (*content, *word, event)))
        });
        let mut disks: Vec<_> = all.collect();
        if !is_long {
            // Each event, and any content.
            let events = EVENTS.into_iter().cycle().take(DISKS / 2);
            let picked = events.map(|event| (*chance.pick(&FOREIGN), *chance.pick(&WORDS), event));
            disks = picked.collect();
        }
        for (number, disk) in disks.into_iter().enumerate() {
            let reads = chance.below(40);
            eprintln!("{number}: {disk:?}, at read {reads}");
            Stage::begin(&machine, &mut guest, disk, number).check(reads);
        }
    }
}

/// A stage of a volume whose serial a disk has.
struct Stage<'a, 'g> {
    machine: &'a Machine,
    guest: &'a mut Guest<'g>,
    volume: Volume,
    event: Event,
    /// In the slot at first, and what takes its place.
    disks: [Arc<Medium>; 2],
}

impl<'a, 'g> Stage<'a, 'g> {
    fn begin(
        machine: &'a Machine,
        guest: &'a mut Guest<'g>,
        (content, word, event): (Content, &str, Event),
        number: usize,
    ) -> Self {
        let (first, second) = match event {
            Event::IsSwappedForForeign => (Content::Nothing, content),
            _ => (content, Content::Nothing),
        };
        let disks = [
            disk(machine, &format!("first-{number}"), first),
            disk(machine, &format!("second-{number}"), second),
        ];
        let mut volume = Volume::new("ext4", &format!("serial={ID}"), SIZE_MIB);
        volume.context = volume.context.replace("content=new", word);
        Stage {
            machine,
            guest,
            volume,
            event,
            disks,
        }
    }

    fn insert(&self, disk: usize) {
        let disk = Disk::block(ID, &self.disks[disk]);
        self.machine.slot(0).insert(disk);
    }

    /// Stages, with the event at that read, and checks that nothing was written.
    fn check(mut self, reads: u64) {
        call(self.guest, "udevadm control --stop-exec-queue || true").expect("power");
        self.insert(0);
        if self.event == Event::IsLate {
            begin_stage(self.guest, &self.volume).expect("power");
            self.guest.attach(0);
        } else {
            self.guest.attach(0);
            self.guest.run(&until("[ -e /sys/block/vda ]"));
            self.stage_until(reads);
        }
        let staged = end_of_stage(self.guest).expect("power");
        let is_swapped = matches!(
            self.event,
            Event::IsSwappedForBlank | Event::IsSwappedForForeign
        );
        assert!(is_swapped || staged.code != 0, "{}", staged.text);
        let foreign = usize::from(self.event == Event::IsSwappedForForeign);
        if foreign == 1 {
            let again = try_call(self.guest, &self.volume.stage()).expect("power");
            assert_ne!(again.code, 0, "{}", again.text);
        }
        assert_eq!(
            self.disks[foreign].writes(),
            0,
            "written to: {}",
            staged.text
        );
        call(self.guest, &self.volume.unstage()).expect("power");
        self.take_out();
        call(self.guest, "udevadm control --start-exec-queue || true").expect("power");
    }

    /// Stages, and lets it happen at that read.
    fn stage_until(&mut self, reads: u64) {
        let disk = Arc::clone(&self.disks[0]);
        let has_happened = Arc::new(AtomicBool::new(false));
        let (theirs, happened) = (Arc::clone(&disk), Arc::clone(&has_happened));
        let event = self.event;
        disk.act_at_read(disk.reads() + 1 + reads, move || {
            match event {
                Event::ReadsFail => theirs.fail(Failing {
                    reads: true,
                    ..Failing::default()
                }),
                Event::Shrinks => theirs.resize(BYTES / 2),
                _ => {}
            }
            happened.store(true, Ordering::SeqCst);
        });
        begin_stage(self.guest, &self.volume).expect("power");
        if matches!(self.event, Event::ReadsFail | Event::Shrinks) {
            return;
        }
        // The stage may end before that read.
        let since = Instant::now();
        while !has_happened.load(Ordering::SeqCst) && since.elapsed() < Duration::from_secs(3) {
            let pause = Duration::from_millis(1).try_into().expect("a time");
            poll(&mut [], Some(&pause)).unwrap_or_default();
        }
        self.take_out();
        if self.event != Event::Vanishes {
            self.insert(1);
            self.guest.attach(0);
        }
    }

    /// The kernel lets go of the disk, if it is there.
    fn take_out(&mut self) {
        let unbind = "echo virtio-uml.0 >/sys/bus/platform/drivers/virtio-uml/unbind";
        self.guest.try_run(unbind).expect("power");
        self.machine.slot(0).remove();
        self.guest.run(&until("[ ! -e /sys/block/vda ]"));
    }
}

fn disk(machine: &Machine, name: &str, content: Content) -> Arc<Medium> {
    let medium = medium(machine, name, SIZE_MIB);
    let path = machine.directory().join(name);
    match content {
        Content::Nothing => {}
        Content::Bytes(at, bytes) => {
            let file = File::options().write(true).open(&path);
            let written = file.and_then(|file| file.write_all_at(bytes, at));
            written.expect("the file of a disk");
        }
        Content::Made(program, args) => {
            let path = [tools::text(&path)];
            tools::run(program, &[args, &path[..]].concat());
        }
    }
    medium
}
