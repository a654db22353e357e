//! Simulated tools. mkfs writes in steps; a mkfs that is stopped leaves an incomplete filesystem.

use rustix::io::Errno;

use super::loops::Change;
use super::sparse::Sparse;
use super::state::{Answer, Object, State};
use super::superblock::BLOCK_BYTES;
use super::{Fake, Fd, btrfs, cryptsetup, ext4, fsck, xfs};
use crate::kernel::{Child, ChildEnd, Open, Result};

/// The offset of the agent's format mark. The agent relies on the measured fact that no mkfs writes
/// at this offset.
const MARK_AT: u64 = 100 << 20;
/// The content of tables and logs, which does not resemble a superblock.
const FILLER: [u8; 4096] = [0xa5; 4096];
const TABLES_AT: u64 = 8 * BLOCK_BYTES;
const JOURNAL_AT: u64 = 64 << 20;

/// The steps of mkfs, in order.
const STEPS: [(&str, Step); 4] = [
    ("old signatures", Step::Wipe),
    ("tables", Step::Tables),
    ("journal", Step::Journal),
    ("superblock", Step::Superblock),
];

/// The installed tools, the features that the tools enable by default, and the reason why no tool
/// completes.
#[derive(Default)]
pub(super) struct Tools {
    /// The features that mkfs.btrfs enables by default.
    pub(super) btrfs_features: btrfs::Features,
    /// The features that mkfs.xfs enables by default, as bits of `sb_features_incompat`.
    pub(super) xfs_incompat: u32,
    /// Whether e2fsck is not installed.
    pub(super) lacks_e2fsck: bool,
    /// The reason why no tool completes; `None` if all tools complete.
    pub(super) stop: Option<Stop>,
}

/// The reason why a tool does not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The tool exceeds its deadline.
    Deadline,
    /// Another process kills the tool.
    Signal,
}

/// The filesystem that mkfs creates.
#[derive(Clone, Copy)]
struct Made {
    fs_type: &'static str,
    uuid: [u8; 16],
    features: btrfs::Features,
    xfs_incompat: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Wipe,
    Tables,
    Journal,
    Superblock,
}

/// Runs a tool until it exits. Each step of the tool counts as a call, so a fault can make the step
/// fail, or crash the agent and the child.
pub(super) fn run(fake: &Fake, child: &Child<'_, Fd>) -> Result<ChildEnd> {
    let fs_type = match child.program {
        "e2fsck" => return fsck::run(fake, child),
        "cryptsetup" => return cryptsetup::run(fake, child),
        "mkfs.ext4" => "ext4",
        "mkfs.xfs" => "xfs",
        "mkfs.btrfs" => "btrfs",
        other => panic!("the simulated machine has no {other}"),
    };
    let line = format!("{} {}", child.program, child.args.join(" "));
    fake.call("spawn", line, &[], |_| Ok(()))?;
    let own = match claim(fake, child, "mkfs open") {
        Ok(own) => own,
        Err(error) => return Ok(end(1, error.to_string())),
    };
    let (features, xfs_incompat) = {
        let tools = &fake.machine.lock().tools;
        (tools.btrfs_features, tools.xfs_incompat)
    };
    let made = Made {
        fs_type,
        uuid: uuid_in(&child.args),
        features: features.without(&child.args),
        xfs_incompat: xfs::without(xfs_incompat, &child.args),
    };
    for (what, step) in STEPS {
        if step == Step::Journal
            && let Some(end) = stopped(fake, child)
        {
            return Ok(end);
        }
        let written = fake.call("mkfs write", what, &[], |state| {
            state.mkfs_step(own.id, made, step)
        });
        if let Err(error) = written {
            return Ok(end(1, error.to_string()));
        }
    }
    Ok(end(0, String::new()))
}

/// Returns the result of a child that exits.
pub(super) fn end(code: i32, stderr: String) -> ChildEnd {
    ChildEnd {
        code: Some(code),
        timed_out: false,
        stderr,
        memory_max: None,
    }
}

/// Returns the result of a child that is stopped; `None` if the child completes.
pub(super) fn stopped(fake: &Fake, child: &Child<'_, Fd>) -> Option<ChildEnd> {
    let stop = match (child.is_given_up)() {
        true => Some(Stop::Signal),
        false => fake.machine.lock().tools.stop,
    };
    stop.map(|stop| ChildEnd {
        code: None,
        timed_out: stop == Stop::Deadline,
        stderr: String::new(),
        memory_max: None,
    })
}

/// Opens the device exclusively for the child.
pub(super) fn claim(fake: &Fake, child: &Child<'_, Fd>, call: &'static str) -> Result<Fd> {
    fake.open_by(call, child.program, &[], |state| {
        let device = state.object(child.device.ok_or(Errno::BADF)?.id)?;
        let (number, location) = (device.device()?, device.location()?);
        let object = state.open_device(location, number, Open::DeviceWrite)?;
        match (object, state.is_claimed(number)) {
            (_, true) => Err(Errno::BUSY),
            (
                Object::Device {
                    location, number, ..
                },
                false,
            ) => Ok(Object::Device {
                location,
                number,
                writable: true,
                exclusive: true,
                buffered: true,
            }),
            _ => Err(Errno::NOTTY),
        }
    })
}

/// Returns the UUID for the new filesystem.
fn uuid_in(args: &[String]) -> [u8; 16] {
    let all = args.iter().flat_map(|arg| arg.split(','));
    let text = all.filter_map(|word| word.strip_prefix("uuid=")).next();
    let digits = text.map_or(String::new(), |text| text.replace('-', ""));
    u128::from_str_radix(&digits, 16).map_or([0xee; 16], u128::to_be_bytes)
}

fn fill(contents: &mut Sparse, at: u64) {
    contents.write(at, &FILLER);
}

/// Whether everything that the simulated mkfs writes, except the superblock, is present.
pub(super) fn is_whole(contents: &Sparse, fs_type: &str) -> bool {
    let is_filled = |at| {
        let mut found = FILLER;
        found.fill(0);
        contents.read(at, &mut found);
        found == FILLER
    };
    is_filled(JOURNAL_AT) && (fs_type != "ext4" || is_filled(TABLES_AT))
}

impl State {
    /// Performs a step of mkfs in the way of the real tools, whose system calls were traced. The
    /// tools write through the device's cache. Except for mkfs.xfs, the tools sync everything else
    /// before the superblock becomes valid. The agent does not rely on the tools' final sync.
    fn mkfs_step(&mut self, device: u64, made: Made, step: Step) -> Answer<()> {
        let Made {
            fs_type,
            uuid,
            features,
            xfs_incompat,
        } = made;
        let number = self.object(device)?.device()?;
        if self.refuses_writes(number) {
            return Err(Errno::PERM);
        }
        let binding = self.binding(device)?.ok_or(Errno::NXIO)?;
        let (ino, blocks) = (binding.ino, binding.bytes / BLOCK_BYTES);
        let file = self.file(ino)?;
        if step == Step::Wipe && file.used {
            self.violations
                .push(format!("inode {ino} was formatted with data on it"));
            return Err(Errno::IO);
        }
        if step == Step::Superblock {
            file.formats += 1;
        }
        if step == Step::Superblock && fs_type != "xfs" {
            self.fsync(device)?;
        }
        let change: Change = match (step, fs_type) {
            (Step::Wipe, _) => Box::new(|to| to.discard_but(MARK_AT)),
            (Step::Tables, "xfs") => Box::new(move |to| xfs::write(to, blocks, uuid, true)),
            (Step::Tables, "btrfs") => Box::new(move |to| btrfs::write(to, blocks, true)),
            (Step::Tables, _) => Box::new(|to| fill(to, TABLES_AT)),
            (Step::Journal, _) => Box::new(|to| fill(to, JOURNAL_AT)),
            (Step::Superblock, "xfs") => Box::new(move |to| {
                xfs::write(to, blocks, uuid, false);
                xfs::enable(to, xfs_incompat);
            }),
            (Step::Superblock, "btrfs") => Box::new(move |to| {
                btrfs::write(to, blocks, false);
                btrfs::enable(to, features);
            }),
            (Step::Superblock, _) => Box::new(move |to| ext4::write(to, blocks)),
        };
        self.write_cached(number, 0..u64::MAX, change);
        Ok(())
    }
}
