//! Tests of random lifecycles of writable and read-only volumes on the simulated machine, compared
//! with the model. Calls fail or are killed at any system call, agents are restarted, the power is
//! lost, requests are wrong, and other processes remove or truncate files.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

use belay_server::call::{Certainty, Failure};
use belay_server::request::AccessMode;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::bench::{BYTES, Form, MIB, Verb, Volume, World, sweep};
use super::is_nightly;
use super::model::{
    Answer, Known, STEPS_MAX, VOLUMES, Wrong, config, verb, volumes_and_readers, wrong, wrongly,
};
use super::simulated::Simulated;
use crate::kernel::fake::{Died, Fake, Fault, Picture, Survives};
use crate::operation::Node;

const CASES: u32 = 1_000;
const CASES_NIGHTLY: u32 = 100_000;
/// A number that is higher than the number of system calls of any operation.
const CALLS_MAX: usize = 72;
const DATA_AT: u64 = 50 * MIB;

/// An event of a random lifecycle.
#[derive(Clone, Debug)]
enum Step {
    Call(usize, Verb, Option<Fault>),
    /// A call with a wrong request, and possibly a fault during the call.
    Wrong(usize, Wrong, Verb, Option<Fault>),
    /// The next agent starts after the previous agent has exited, and may be killed while it
    /// starts.
    Restart(Option<Fault>),
    /// The next agent starts before the previous agent has exited.
    Relay,
    /// The power is lost between two calls.
    PowerOff(Survives),
    /// The controller enlarges a volume.
    Grow(usize),
    /// A process removes a volume's file.
    Remove(usize),
    /// A process truncates a volume's file to this number of bytes.
    Cut(usize, u64),
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    let errno = prop::sample::select(&["EIO", "EBUSY", "ENOENT", "EPERM", "ENOSPC", "EINVAL"][..]);
    // Prefer low positions, because most operations make only a few system calls.
    let at = || prop_oneof![1..12_usize, 1..CALLS_MAX];
    prop_oneof![
        5 => Just(None),
        2 => at().prop_map(|at| Some(Fault::Die(at))),
        2 => (at(), errno).prop_map(|(at, errno)| Some(Fault::Fail(at, errno))),
        1 => at().prop_map(|at| Some(Fault::FailFrom(at, "EIO"))),
        1 => (at(), survives()).prop_map(|(at, part)| Some(Fault::PowerOff(at, part))),
    ]
}

fn survives() -> impl Strategy<Value = Survives> {
    prop_oneof![
        1 => Just(Survives::Nothing),
        2 => any::<u64>().prop_map(Survives::Some),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let volume = || 0..VOLUMES;
    let cut = prop::sample::select(&[0, 4096, 65 << 10, 60 * MIB, 300 * MIB][..]);
    prop_oneof![
        40 => (volume(), verb(), fault()).prop_map(|(v, verb, fault)| Step::Call(v, verb, fault)),
        6 => (volume(), wrong(), verb(), fault())
            .prop_map(|(v, wrong, verb, fault)| Step::Wrong(v, wrong, verb, fault)),
        3 => fault().prop_map(Step::Restart),
        1 => Just(Step::Relay),
        1 => survives().prop_map(Step::PowerOff),
        2 => volume().prop_map(Step::Grow),
        1 => volume().prop_map(Step::Remove),
        1 => (volume(), cut).prop_map(|(volume, bytes)| Step::Cut(volume, bytes)),
    ]
}

/// A call and its expected result.
struct Asked {
    number: usize,
    volume: Volume,
    verb: Verb,
    expected: Answer,
    /// Whether the request is wrong, so that it must not change anything.
    is_wrong: bool,
}

/// A machine with volumes and an agent, and the expected state of the volumes.
struct Life {
    world: Simulated,
    /// The agent; `None` only after one agent has exited and before the next agent starts.
    node: Option<Node<Fake>>,
    volumes: Vec<Volume>,
    known: Vec<Known>,
    bytes: u64,
    /// Whether a fault was injected into a call.
    disturbed: bool,
    /// The state of the machine after the last step.
    picture: Picture,
}

impl Life {
    fn new() -> Life {
        let world = Simulated::new();
        let mut known = vec![Known::default(); VOLUMES];
        let volumes = volumes_and_readers(&world);
        for (number, reader) in volumes
            .iter()
            .enumerate()
            .filter(|(_, v)| v.mode.is_read_only())
        {
            world.write_file(&reader.file(), DATA_AT, reader.id.as_bytes());
            known[number].written = true;
        }
        let node = Some(world.start_swept());
        Life {
            picture: world.machine.picture(),
            world,
            node,
            known,
            volumes,
            bytes: BYTES,
            disturbed: false,
        }
    }

    fn run(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Restart(fault) => self.restart(fault),
            Step::Relay => self.node = Some(self.world.start_swept()),
            Step::PowerOff(survives) => {
                self.world.machine.power_off(survives);
                self.come_back();
            }
            Step::Grow(number) => self.grow(number),
            Step::Remove(number) => {
                if let Some(file) = self.harm(number) {
                    self.world.machine.delete_file(&file);
                }
            }
            Step::Cut(number, bytes) => {
                if let Some(file) = self.harm(number) {
                    self.world.machine.truncate_file(&file, bytes);
                }
            }
            Step::Call(number, verb, fault) => {
                let volume = self.volumes[number].clone();
                let asked = Asked {
                    number,
                    expected: self.known[number].expected(&volume, verb),
                    volume,
                    verb,
                    is_wrong: false,
                };
                self.call(&asked, fault)?;
                return self.check();
            }
            Step::Wrong(number, wrong, verb, fault) => {
                let asked = wrongly(&self.volumes, &self.known, number, wrong, verb);
                let Some((volume, expected)) = asked else {
                    return Ok(());
                };
                let asked = Asked {
                    number,
                    volume,
                    verb,
                    expected,
                    is_wrong: true,
                };
                self.call(&asked, fault)?;
                return self.check();
            }
        }
        self.picture = self.world.machine.picture();
        self.check()
    }

    fn restart(&mut self, fault: Option<Fault>) {
        self.node = None;
        let node = self.world.start();
        self.world.machine.begin(fault);
        let ended = catch_unwind(AssertUnwindSafe(|| sweep(&node)));
        self.world.machine.end();
        self.node = Some(match ended {
            Ok(_) => node,
            Err(payload) if payload.is::<Died>() && matches!(fault, Some(Fault::PowerOff(..))) => {
                drop(node);
                return self.come_back();
            }
            Err(payload) if payload.is::<Died>() => {
                drop(node);
                self.world.start()
            }
            Err(panic) => resume_unwind(panic),
        });
    }

    /// Starts the next agent after a power loss, which has removed all mounts.
    fn come_back(&mut self) {
        self.node = None;
        self.node = Some(self.world.start_swept());
        for known in &mut self.known {
            known.staged = false;
            known.targets.clear();
        }
        self.picture = self.world.machine.picture();
    }

    /// Returns the volume's file, and records that the caller will damage the file. `None` if the
    /// file does not exist.
    fn harm(&mut self, number: usize) -> Option<PathBuf> {
        self.known[number].harmed = true;
        let file = self.volumes[number].file();
        self.world.machine.is_there(&file).then_some(file)
    }

    fn grow(&mut self, number: usize) {
        self.bytes += MIB;
        let file = self.volumes[number].file();
        if self.world.machine.is_there(&file) {
            self.world.make_file(&file, self.bytes);
            self.known[number].grown = true;
        }
    }

    fn call(&mut self, asked: &Asked, fault: Option<Fault>) -> Result<(), String> {
        self.world.machine.begin(fault);
        let node = self.node.as_ref().unwrap();
        let ended = catch_unwind(AssertUnwindSafe(|| asked.volume.call(node, asked.verb)));
        let calls = self.world.machine.end().len();
        let before = std::mem::replace(&mut self.picture, self.world.machine.picture());
        let struck = match fault {
            Some(
                Fault::Die(at)
                | Fault::Fail(at, _)
                | Fault::FailFrom(at, _)
                | Fault::PowerOff(at, _),
            ) => at <= calls,
            _ => false,
        };
        self.disturbed |= struck;
        let result = match ended {
            Ok(result) => result,
            Err(payload) if payload.is::<Died>() && matches!(fault, Some(Fault::PowerOff(..))) => {
                self.come_back();
                return Ok(());
            }
            Err(payload) if payload.is::<Died>() => {
                self.node = None;
                self.node = Some(self.world.start());
                self.picture = self.world.machine.picture();
                return self.accept_either(asked);
            }
            Err(panic) => resume_unwind(panic),
        };
        if let Err(failure) = &result {
            self.refuse_leftovers(asked.verb, failure, struck, &before)?;
        }
        if !(asked.expected.is(&result) || struck && result.is_err()) {
            let expected = asked.expected;
            return Err(format!("the result is {result:?}, not {expected:?}"));
        }
        match result {
            Ok(()) if asked.is_wrong => Ok(()),
            Ok(()) => {
                self.known[asked.number] = self.known[asked.number].after(asked.verb);
                self.done(asked.number, asked.verb)
            }
            Err(_) if struck => self.accept_either(asked),
            Err(_) => Ok(()),
        }
    }

    /// Checks the mounts after a call that has failed or crashed: these must be as before the call
    /// or as after a successful call.
    fn accept_either(&mut self, asked: &Asked) -> Result<(), String> {
        let seen = self.seen(asked.number);
        let known = &mut self.known[asked.number];
        let may_be_done = asked.expected.may_be_done() && !asked.is_wrong;
        if seen != *known && !(may_be_done && seen == known.after(asked.verb)) {
            return Err(format!("{seen:?} is neither the state before nor after"));
        }
        *known = seen;
        Ok(())
    }

    /// Checks that nothing is left if the caller need not retry, because the error says that
    /// nothing was changed, or because the request is wrong.
    fn refuse_leftovers(
        &self,
        verb: Verb,
        failure: &Failure,
        struck: bool,
        before: &Picture,
    ) -> Result<(), String> {
        let comes_up = matches!(verb, Verb::Stage | Verb::Publish(_));
        let is_settled = failure.certainty != Certainty::MayBeRunning;
        let mut new = self.picture.beyond(before);
        // Ignore the directory's lock: the agent takes this lock to free devices, and keeps the
        // lock.
        let folder = format!("lock of {}", self.world.volumes().display());
        new.retain(|line| *line != folder);
        match (comes_up || !struck) && is_settled && !new.is_empty() {
            true => Err(format!("\"{failure}\" has left {new:?}")),
            false => Ok(()),
        }
    }

    /// Updates the expected state after a successful call.
    fn done(&mut self, number: usize, verb: Verb) -> Result<(), String> {
        let (machine, volume) = (&self.world.machine, &self.volumes[number]);
        let file = volume.file();
        match verb {
            // The pod writes data, or checks its earlier data.
            Verb::Publish(_) if !volume.mode.is_read_only() && !self.known[number].harmed => {
                machine.write_file(&file, DATA_AT, volume.id.as_bytes());
                self.known[number].written = true;
            }
            Verb::Unstage => {
                let (id, file) = (&volume.id, file.display());
                let left = self.picture.beginning_with(&[
                    &format!("lock of {file}"),
                    &format!("loop of {file}"),
                    &format!("file /base/staging/{id}"),
                ]);
                if !left.is_empty() {
                    return Err(format!("unstaged, but there is {left:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn seen(&self, number: usize) -> Known {
        self.known[number].seen(&self.picture, &self.volumes[number])
    }

    /// Checks the invariants that hold at any time.
    fn check(&self) -> Result<(), String> {
        let violations = self.world.machine.violations();
        if !violations.is_empty() {
            return Err(violations.join("; "));
        }
        for (number, volume) in self.volumes.iter().enumerate() {
            let (seen, known) = (self.seen(number), &self.known[number]);
            if seen != *known {
                return Err(format!("{} is {seen:?}, not {known:?}", volume.id));
            }
            if !seen.targets.is_empty() && !seen.staged {
                return Err(format!("{} is published and not staged", volume.id));
            }
            let one_only = volume.mode == AccessMode::SingleNodeSingleWriter;
            if one_only && seen.targets.len() > 1 {
                return Err(format!("{} is published twice", volume.id));
            }
            self.check_mounts(volume, seen.harmed)?;
        }
        self.check_data()
    }

    /// Checks that all mounts at a volume's paths show its file.
    fn check_mounts(&self, volume: &Volume, harmed: bool) -> Result<(), String> {
        let mounts = self.picture.beginning_with(&[
            &format!("mount {}", volume.staging().display()),
            &format!(
                "mount {}",
                volume.base.join("pods").join(&volume.id).display()
            ),
        ]);
        let own = format!(" of {},", volume.file().display());
        // The simulated machine lists a removed file by its inode number instead of its name.
        let is_own = |line: &&String| line.contains(&own) || harmed && line.contains(" of inode ");
        if let Some(other) = mounts.iter().find(|line| !is_own(line)) {
            return Err(format!("not of {}: {other}", volume.id));
        }
        if !volume.mode.is_read_only() {
            return Ok(());
        }
        // Check whether the loop device of a read-only raw volume is read-only, because the
        // attributes of the staging mount do not matter.
        let file = format!("loop of {}:", volume.file().display());
        let raw = self.picture.beginning_with(&[&file]);
        let writable = match volume.form {
            Form::Block => raw.iter().find(|line| !line.contains("read_only: true")),
            _ => mounts.iter().find(|line| !line.contains(", 0x1, ro true,")),
        };
        match writable {
            Some(writable) => Err(format!("a reader of {} could write: {writable}", volume.id)),
            None => Ok(()),
        }
    }

    fn check_data(&self) -> Result<(), String> {
        for (volume, known) in self.volumes.iter().zip(&self.known) {
            if known.harmed || !known.written {
                continue;
            }
            let machine = &self.world.machine;
            if machine.read_file(&volume.file(), DATA_AT, volume.id.len()) != volume.id.as_bytes() {
                return Err(format!("the data of {} is lost", volume.id));
            }
        }
        Ok(())
    }

    /// Uses every volume again without faults, and then unpublishes and unstages everything.
    /// Regardless of all earlier events, every call must succeed, and nothing may be left.
    fn end(&mut self) -> Result<(), String> {
        self.restart(None);
        let back = [Verb::Unpublish(1), Verb::Unpublish(2)];
        let use_once = [
            Verb::Stage,
            Verb::Publish(1),
            Verb::Stats,
            Verb::Unpublish(1),
        ];
        for number in 0..self.volumes.len() {
            let used = match self.known[number].harmed {
                true => &[][..],
                false => &use_once[..],
            };
            for verb in back.iter().chain(used).chain(&[Verb::Unstage]) {
                self.run(&Step::Call(number, *verb, None))
                    .map_err(|why| format!("at the end, {verb:?} of volume {number}: {why}"))?;
            }
        }
        self.node = None;
        let mut left = self.world.left();
        if self.disturbed {
            // Ignore a device whose file was removed and which is not mounted, because no call can
            // find it.
            left.retain(|line| !line.contains(" of inode "));
        }
        match left.is_empty() {
            true => Ok(()),
            false => Err(format!("left at the end: {left:?}")),
        }
    }
}

#[test]
fn random_lives_keep_to_the_model() {
    let cases = if is_nightly() { CASES_NIGHTLY } else { CASES };
    let lives = prop::collection::vec(step(), 1..STEPS_MAX);
    let ended = TestRunner::new(config(cases)).run(&lives, |steps| {
        let mut life = Life::new();
        for (number, step) in steps.iter().enumerate() {
            let run = life.run(step);
            run.map_err(|why| TestCaseError::fail(format!("step {number}, {step:?}: {why}")))?;
        }
        life.end().map_err(TestCaseError::fail)
    });
    if let Err(error) = ended {
        panic!("{error}");
    }
}
