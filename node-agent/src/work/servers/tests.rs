//! Tests of the limits for helper processes, on a simulated machine whose servers do not respond,
//! with a paused clock.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belay_server::call::{Failure, Kind};
use belay_server::helper::{TOTAL, Unanswered};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::advance;

use super::{KILLED_MAX, Servers};
use crate::kernel::fake::{Fake, Fd, Machine};
use crate::kernel::{Answer, Answered, MountAttrs, RemoteCall, RemoteMount, Remotes as _};

const CHANGES: usize = super::CHANGES.slots;
const MOUNTS: usize = super::MOUNTS.slots;
const READS: usize = super::READS.slots;
const MINUTE: Duration = Duration::from_secs(60);

/// Handles every kind of request in a helper process with the same system call, which may hang.
fn work(kernel: &Fake, _: &RemoteCall) -> Answered<Fd> {
    let addresses = kernel.addresses("10.0.0.5");
    addresses.map_err(|why| Failure::new(Kind::System, why))?;
    Ok(Answer::Unmounted)
}

struct Bench {
    machine: Machine,
    kernel: Arc<Fake>,
    servers: Arc<Servers>,
}

impl Bench {
    fn new() -> Self {
        let machine = Machine::new();
        machine.let_helpers(work);
        Bench {
            kernel: Arc::new(machine.process()),
            machine,
            servers: Servers::new(),
        }
    }

    fn ask(&self, server: &str, call: &RemoteCall) -> JoinHandle<Result<(), Unanswered>> {
        let (servers, kernel) = (Arc::clone(&self.servers), Arc::clone(&self.kernel));
        let (server, call) = (server.to_owned(), call.clone());
        tokio::spawn(async move {
            let asked = servers.ask(&*kernel, &server, &call, MINUTE).await;
            asked.map(drop)
        })
    }

    fn asks(
        &self,
        server: &str,
        call: &RemoteCall,
        count: usize,
    ) -> Vec<JoinHandle<Result<(), Unanswered>>> {
        (0..count).map(|_| self.ask(server, call)).collect()
    }

    fn running(&self) -> usize {
        self.servers.0.running()
    }

    fn killed(&self) -> usize {
        self.servers.0.killed()
    }
}

fn mount() -> RemoteCall {
    RemoteCall::Mount(RemoteMount {
        server: "10.0.0.5".to_owned(),
        source: "10.0.0.5:/exports".to_owned(),
        attrs: MountAttrs::default(),
        options: Vec::new(),
        permissions: None,
    })
}

fn unmount() -> RemoteCall {
    RemoteCall::Unmount(Path::new("/nothing").to_owned())
}

fn usage() -> RemoteCall {
    RemoteCall::Usage(Path::new("/volume").to_owned())
}

impl Drop for Bench {
    /// Releases the hung threads. Otherwise, a test with a failed assertion would wait indefinitely
    /// for these threads.
    fn drop(&mut self) {
        self.machine.let_helpers_die_hard(false);
        self.machine.let_servers_hang(false);
    }
}

/// Runs all tasks until every task is waiting.
async fn settle() {
    for _ in 0..1000 {
        yield_now().await;
    }
}

/// Advances the clock, and lets tasks that wait for threads run.
async fn pass(time: Duration) {
    settle().await;
    advance(time).await;
    settle().await;
}

#[test]
fn a_failed_assertion_ends_the_test_though_helpers_hang() {
    let (sender, ended) = std::sync::mpsc::channel();
    #[expect(
        clippy::disallowed_methods,
        reason = "the pool waits for it, but not forever"
    )]
    let test = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(async {
                let bench = Bench::new();
                bench.machine.let_servers_hang(true);
                bench.machine.let_helpers_die_hard(true);
                let _asked = bench.asks("dead", &mount(), MOUNTS);
                settle().await;
                assert_eq!(bench.running(), 0, "expected of this test");
            });
        }));
        drop(runtime);
        sender.send(outcome.is_err()).unwrap();
    });
    assert_eq!(ended.recv_timeout(MINUTE), Ok(true));
    test.join().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dead_server_has_a_bounded_number_of_processes_and_each_kind_its_slots() {
    let bench = Bench::new();
    bench.machine.let_servers_hang(true);
    let mounts = bench.asks("dead", &mount(), 100);
    settle().await;
    assert_eq!(bench.running(), MOUNTS);
    let unmounts = bench.asks("dead", &unmount(), 100);
    settle().await;
    assert_eq!(bench.running(), CHANGES);
    let reads = bench.asks("dead", &usage(), 100);
    settle().await;
    assert_eq!(bench.running(), CHANGES + READS);
    // For a second server, there is a separate limit.
    let others = bench.asks("other", &usage(), 100);
    settle().await;
    assert_eq!(bench.running(), CHANGES + READS + READS);
    pass(MINUTE).await;
    for asked in mounts
        .into_iter()
        .chain(unmounts)
        .chain(reads)
        .chain(others)
    {
        let Unanswered { failure, by_server } = asked.await.unwrap().unwrap_err();
        assert_eq!(failure.kind, Kind::Timeout, "{failure}");
        assert!(by_server, "{failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_with_many_killed_processes_is_asked_nothing_until_they_exit() {
    let bench = Bench::new();
    bench.machine.let_servers_hang(true);
    bench.machine.let_helpers_die_hard(true);
    let asked = bench.asks("dead", &mount(), MOUNTS);
    pass(MINUTE).await;
    for asked in asked {
        let failure = asked.await.unwrap().unwrap_err().failure;
        assert_eq!(failure.kind, Kind::Timeout, "{failure}");
    }
    let asked = bench.asks("dead", &unmount(), KILLED_MAX - MOUNTS);
    pass(MINUTE).await;
    for asked in asked {
        let failure = asked.await.unwrap().unwrap_err().failure;
        assert_eq!(
            failure.certainty,
            belay_server::call::Certainty::MayBeRunning
        );
    }
    assert_eq!((bench.running(), bench.killed()), (0, KILLED_MAX));
    let refused = bench.ask("dead", &usage()).await.unwrap().unwrap_err();
    assert!(refused.by_server, "{refused:?}");
    let refused = refused.failure;
    assert_eq!(refused.kind, Kind::Unreachable, "{refused}");
    assert!(refused.message.contains("8 killed processes"), "{refused}");
    // Calls are refused only for this server.
    bench.machine.let_servers_hang(false);
    bench.ask("10.0.0.5", &mount()).await.unwrap().unwrap();
    while bench.killed() > 0 {
        pass(Duration::from_millis(1)).await;
    }
    bench.ask("dead", &mount()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn killed_processes_refuse_no_unmount_and_unmounts_take_no_others_slots() {
    let bench = Bench::new();
    bench.machine.let_servers_hang(true);
    bench.machine.let_helpers_die_hard(true);
    while bench.killed() < TOTAL + KILLED_MAX {
        let killed = bench.killed();
        let asked = bench.asks("dead", &unmount(), CHANGES);
        pass(MINUTE).await;
        for asked in asked {
            let failure = asked.await.unwrap().unwrap_err().failure;
            assert_eq!(failure.kind, Kind::Timeout, "{failure}");
        }
        assert_eq!(bench.killed(), killed + CHANGES, "an unmount was not begun");
    }
    let refused = bench.ask("dead", &mount()).await.unwrap().unwrap_err();
    let refused = refused.failure;
    assert_eq!(refused.kind, Kind::Unreachable, "{refused}");
    // The helper processes of one server must not prevent calls for a different server.
    let reads = bench.asks("other", &usage(), READS);
    settle().await;
    assert_eq!(bench.running(), READS);
    bench.machine.let_servers_hang(false);
    for asked in reads {
        asked.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn all_servers_together_have_a_bounded_number_of_processes() {
    let bench = Bench::new();
    bench.machine.let_servers_hang(true);
    let mut asked = Vec::new();
    for number in 0..=TOTAL {
        asked.extend(bench.asks(&format!("dead{number}"), &usage(), READS));
    }
    settle().await;
    assert_eq!(bench.running(), TOTAL);
    pass(MINUTE).await;
    let mut not_begun = 0;
    for asked in asked {
        let Unanswered { failure, by_server } = asked.await.unwrap().unwrap_err();
        assert_eq!(failure.kind, Kind::Timeout, "{failure}");
        // If no helper process was started for the server, the server is not the cause of the
        // failure.
        assert_eq!(
            !by_server,
            failure.message.contains("none of 64"),
            "{failure}"
        );
        not_begun += usize::from(!by_server);
    }
    assert_eq!(not_begun, READS * (TOTAL + 1) - TOTAL);
    bench.machine.let_servers_hang(false);
    pass(Duration::from_secs(1)).await;
    bench.ask("10.0.0.5", &mount()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_begun_late_blames_its_server_only_if_that_has_not_answered_earlier_ones() {
    let bench = Bench::new();
    bench.machine.let_servers_hang(true);
    let mut asked = bench.asks("dead", &usage(), READS);
    for number in 0..TOTAL / READS - 1 {
        asked.extend(bench.asks(&format!("dead{number}"), &usage(), READS));
    }
    settle().await;
    assert_eq!(bench.running(), TOTAL);
    pass(MINUTE / 4).await;
    let behind = bench.ask("dead", &usage());
    let other = bench.ask("other", &usage());
    pass(MINUTE / 4 * 3).await;
    for asked in asked {
        assert!(asked.await.unwrap().unwrap_err().by_server);
    }
    while bench.running() < 2 {
        pass(Duration::from_millis(1)).await;
    }
    // Both helper processes were started when a quarter of the time limit remained.
    pass(MINUTE / 4).await;
    for (asked, is_blamed) in [(behind, true), (other, false)] {
        let Unanswered { failure, by_server } = asked.await.unwrap().unwrap_err();
        assert_eq!(failure.kind, Kind::Timeout, "{failure}");
        assert_eq!(by_server, is_blamed, "{failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_mounts_of_a_server_that_answers_all_succeed() {
    let bench = Bench::new();
    for asked in bench.asks("10.0.0.5", &mount(), 200) {
        asked.await.unwrap().unwrap();
    }
    assert_eq!(bench.machine.helpers_started(), 200);
    while bench.running() > 0 {
        pass(Duration::from_millis(1)).await;
    }
    assert_eq!(bench.killed(), 0);
}
