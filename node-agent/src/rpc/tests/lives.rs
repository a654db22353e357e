//! Tests of random sequences of events on the Node service. A kubelet makes calls while other calls
//! hang in the kernel, repeats calls, and disconnects; the agent may be killed at any time. The
//! results are compared with the model of the operations.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use belay_contract::drivers::LOCAL;
use belay_server::request::AccessMode;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokio::task::{JoinHandle, yield_now};
use tonic::{Code, Status};

use super::calls::send;
use crate::kernel::fake::{Fake, Fault};
use crate::operation::tests::bench::{Verb, Volume, World};
use crate::operation::tests::is_nightly;
use crate::operation::tests::model::{Answer, Known, config, verb, volumes};
use crate::operation::tests::simulated::Simulated;
use crate::rpc::NodeService;
use crate::work::Pool;

const CASES: u32 = 300;
const CASES_NIGHTLY: u32 = 20_000;
const STEPS_MAX: usize = 20;
/// Maximum number of calls that hang at the same time, which is below the number of slots for
/// changes.
const HUNG_MAX: usize = 2;
/// A timeout after which the agent is considered stuck.
const WATCHDOG: Duration = Duration::from_secs(120);

/// An event of a random sequence.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A call. If there is a number, the call hangs in its first system call that may block on a
    /// disk and whose position is at least this number.
    Call(usize, Verb, Option<usize>),
    /// A call during which the agent is killed; the number is the position of the system call.
    Kill(usize, Verb, usize),
    /// The kubelet repeats the hung call for this volume.
    Again(usize),
    /// All callers of the hung call for this volume disconnect.
    Leave(usize),
    /// The hung call for this volume continues.
    LetGo(usize),
    /// The agent is killed between two calls and is started again.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let volume = || 0..4_usize;
    let hang = prop::option::weighted(0.5, 1..30_usize);
    prop_oneof![
        12 => (volume(), verb(), hang).prop_map(|(v, verb, hang)| Step::Call(v, verb, hang)),
        2 => (volume(), verb(), 1..40_usize).prop_map(|(v, verb, at)| Step::Kill(v, verb, at)),
        4 => volume().prop_map(Step::Again),
        2 => volume().prop_map(Step::Leave),
        4 => volume().prop_map(Step::LetGo),
        1 => Just(Step::Restart),
    ]
}

type Caller = JoinHandle<Result<(), Status>>;

/// A call that hangs.
struct Hung {
    verb: Verb,
    expected: Answer,
    callers: Vec<Caller>,
    /// The system call in which the call hangs.
    at: u64,
}

struct Life {
    world: Simulated,
    service: Arc<NodeService<Fake>>,
    volumes: Vec<Volume>,
    known: Vec<Known>,
    hung: HashMap<usize, Hung>,
}

fn start(world: &Simulated) -> Arc<NodeService<Fake>> {
    // At startup, before it serves calls, the agent may make system calls that block.
    world.machine.never_wait_here(false);
    let node = world.start_swept();
    world.machine.never_wait_here(true);
    let service = NodeService::new("", Pool::new(), &LOCAL);
    service.come_up(node);
    Arc::new(service)
}

impl Life {
    fn new() -> Life {
        let world = Simulated::new();
        let volumes = volumes(&world);
        Life {
            service: start(&world),
            known: vec![Known::default(); volumes.len()],
            hung: HashMap::new(),
            volumes,
            world,
        }
    }

    async fn run(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Call(number, verb, hang) => self.call(number, verb, hang).await?,
            Step::Kill(number, verb, at) => self.kill(number, verb, at).await?,
            Step::Again(number) => self.again(number).await?,
            Step::Leave(number) => {
                if let Some(hung) = self.hung.get_mut(&number) {
                    leave(&mut hung.callers).await;
                }
            }
            Step::LetGo(number) => self.let_go(number).await?,
            Step::Restart => self.restart().await?,
        }
        self.check()
    }

    /// Makes a call in a separate task, as the gRPC server does.
    fn begin(&self, number: usize, verb: Verb) -> Caller {
        let (service, volume) = (Arc::clone(&self.service), self.volumes[number].clone());
        tokio::spawn(async move { send(&service, &volume, verb).await })
    }

    async fn call(&mut self, number: usize, verb: Verb, hang: Option<usize>) -> Result<(), String> {
        if self.hung.contains_key(&number) {
            return self.refused_meanwhile(number, verb).await;
        }
        // Do not let read-only calls hang, because the test does not wait for their deadline. Do
        // not let two NodeStageVolume calls hang at the same time, because they would occupy both
        // slots for mkfs, and a third volume may need one.
        let stages = self.hung.values().any(|hung| hung.verb == Verb::Stage);
        let may_hang =
            self.hung.len() < HUNG_MAX && !only_looks(verb) && !(stages && verb == Verb::Stage);
        let fault = hang.filter(|_| may_hang).map(Fault::HangWaiting);
        let expected = self.known[number].expected(&self.volumes[number], verb);
        let machine = &self.world.machine;
        let mut hangs = machine.hangs();
        hangs.mark_unchanged();
        machine.begin(fault);
        let mut caller = self.begin(number, verb);
        let ended = tokio::select! {
            ended = &mut caller => Some(ended),
            _ = hangs.changed() => None,
        };
        machine.end();
        match ended {
            Some(result) => self.ended(number, verb, expected, &result.unwrap()),
            None => {
                let hung = Hung {
                    verb,
                    expected,
                    callers: vec![caller],
                    at: machine.hung_last(),
                };
                self.hung.insert(number, hung);
                Ok(())
            }
        }
    }

    /// Checks that a different call for the volume is refused immediately while a call for this
    /// volume hangs.
    async fn refused_meanwhile(&mut self, number: usize, verb: Verb) -> Result<(), String> {
        // Read-only calls have separate jobs, so they are not refused.
        if only_looks(verb) {
            return Ok(());
        }
        if verb == self.hung[&number].verb {
            return self.again(number).await;
        }
        self.world.machine.begin(None);
        let told = self.begin(number, verb).await.unwrap();
        let calls = self.world.machine.end();
        match told {
            Err(status) if status.code() == Code::Aborted && calls.is_empty() => Ok(()),
            told => Err(format!("while another call hangs, {told:?} and {calls:?}")),
        }
    }

    /// Checks that a repetition of a hung call joins the job of the hung call.
    async fn again(&mut self, number: usize) -> Result<(), String> {
        let Some(hung) = self.hung.get(&number) else {
            return Ok(());
        };
        self.world.machine.begin(None);
        let mut caller = self.begin(number, hung.verb);
        // Yield three times: to the task of the call, to a task that this task may spawn, and to
        // the response of the spawned task.
        for _ in 0..3 {
            yield_now().await;
        }
        let calls = self.world.machine.end();
        if caller.is_finished() || !calls.is_empty() {
            let told = (&mut caller).await;
            return Err(format!("it did not join: {told:?}, {calls:?}"));
        }
        self.hung.get_mut(&number).unwrap().callers.push(caller);
        Ok(())
    }

    async fn let_go(&mut self, number: usize) -> Result<(), String> {
        let Some(hung) = self.hung.remove(&number) else {
            return Ok(());
        };
        self.world.machine.let_go_of(hung.at);
        let Hung {
            verb,
            expected,
            mut callers,
            ..
        } = hung;
        if callers.is_empty() {
            // No caller remains. The kubelet therefore retries the call, and joins the same job or
            // receives its result.
            callers.push(self.begin(number, verb));
        }
        let mut told = Vec::new();
        for caller in callers {
            told.push(caller.await.unwrap());
        }
        if told.iter().any(|one| one.is_ok() != told[0].is_ok()) {
            return Err(format!(
                "the callers that joined got different answers: {told:?}"
            ));
        }
        self.ended(number, verb, expected, &told[0])
    }

    fn ended(
        &mut self,
        number: usize,
        verb: Verb,
        expected: Answer,
        told: &Result<(), Status>,
    ) -> Result<(), String> {
        let is_busy = |status: &Status| status.code() == Code::Aborted;
        match (told, expected) {
            (Ok(()), Answer::Done | Answer::Either) => {
                self.known[number] = self.known[number].after(verb);
                Ok(())
            }
            (Err(_), Answer::Refused(_) | Answer::RefusedSomehow | Answer::Either) => Ok(()),
            // The call that was hung may still have the volume's former device open.
            (Err(status), _) if is_busy(status) && verb == Verb::Unstage => {
                self.accept_either(number, verb, expected)
            }
            (told, expected) => Err(format!("the result is {told:?}, not {expected:?}")),
        }
    }

    fn accept_either(&mut self, number: usize, verb: Verb, expected: Answer) -> Result<(), String> {
        let (seen, known) = (self.seen(number), &mut self.known[number]);
        let is_done = expected.may_be_done() && seen == known.after(verb);
        if seen != *known && !is_done {
            return Err(format!("{seen:?} is neither the state before nor after"));
        }
        *known = seen;
        Ok(())
    }

    async fn kill(&mut self, number: usize, verb: Verb, at: usize) -> Result<(), String> {
        if self.hung.contains_key(&number) {
            return Ok(());
        }
        let expected = self.known[number].expected(&self.volumes[number], verb);
        self.world.machine.begin(Some(Fault::Die(at)));
        let told = self.begin(number, verb).await.unwrap();
        let is_dead = self.world.machine.end().len() >= at;
        if !is_dead {
            return self.ended(number, verb, expected, &told);
        }
        if told.is_ok() {
            return Err("a killed agent reports success".to_owned());
        }
        self.restart().await?;
        self.accept_either(number, verb, expected)
    }

    async fn restart(&mut self) -> Result<(), String> {
        self.world.machine.kill_all();
        for (number, hung) in std::mem::take(&mut self.hung) {
            for caller in hung.callers {
                if caller.await.unwrap().is_ok() {
                    return Err("a killed agent reports success".to_owned());
                }
            }
            self.accept_either(number, hung.verb, hung.expected)?;
        }
        self.service = start(&self.world);
        Ok(())
    }

    fn seen(&self, number: usize) -> Known {
        self.known[number].seen(&self.world.machine.picture(), &self.volumes[number])
    }

    fn check(&mut self) -> Result<(), String> {
        let violations = self.world.machine.violations();
        if !violations.is_empty() {
            return Err(violations.join("; "));
        }
        for (number, volume) in self.volumes.iter().enumerate() {
            let (seen, known) = (self.seen(number), &self.known[number]);
            let hung = self.hung.get(&number);
            let is_after =
                hung.is_some_and(|h| h.expected.may_be_done() && seen == known.after(h.verb));
            if seen != *known && !is_after {
                return Err(format!("{} is {seen:?}, not {known:?}", volume.id));
            }
            let one_only = volume.mode == AccessMode::SingleNodeSingleWriter;
            if !seen.targets.is_empty() && !seen.staged || one_only && seen.targets.len() > 1 {
                return Err(format!("{} is {seen:?}", volume.id));
            }
        }
        Ok(())
    }

    /// Lets all hung calls continue, unpublishes and unstages all volumes, and checks that nothing
    /// is left.
    async fn end(&mut self) -> Result<(), String> {
        for number in 0..self.volumes.len() {
            self.let_go(number).await?;
        }
        for number in 0..self.volumes.len() {
            for verb in [Verb::Unpublish(1), Verb::Unpublish(2), Verb::Unstage] {
                self.run(Step::Call(number, verb, None)).await?;
            }
        }
        self.world.machine.kill_all();
        match self.world.left() {
            left if left.is_empty() => Ok(()),
            left => Err(format!("left at the end: {left:?}")),
        }
    }
}

fn only_looks(verb: Verb) -> bool {
    matches!(verb, Verb::Stats | Verb::Health)
}

/// Disconnects these callers.
async fn leave(callers: &mut Vec<Caller>) {
    for caller in callers.drain(..) {
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
    }
}

fn live(steps: &[Step]) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let ended = runtime.block_on(async {
        let mut life = Life::new();
        let all = async {
            for (number, step) in steps.iter().enumerate() {
                let run = life.run(*step).await;
                run.map_err(|why| format!("step {number}, {step:?}: {why}"))?;
            }
            life.end().await
        };
        let ended = tokio::time::timeout(WATCHDOG, all).await;
        // Release all hung calls. Otherwise, the runtime could not shut down.
        life.world.machine.kill_all();
        ended.unwrap_or_else(|_| Err("the agent is stuck".to_owned()))
    });
    drop(runtime);
    ended
}

#[test]
fn random_histories_of_the_service_keep_to_the_model() {
    let cases = if is_nightly() { CASES_NIGHTLY } else { CASES };
    let histories = prop::collection::vec(step(), 1..STEPS_MAX);
    let ended = TestRunner::new(config(cases)).run(&histories, |steps| {
        live(&steps).map_err(TestCaseError::fail)
    });
    if let Err(error) = ended {
        panic!("{error}");
    }
}
