//! Tests with an NFS server that does not respond: every system call that may wait for the server
//! hangs, but each caller must receive a response.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::advance;
use tonic::{Code, Status};

use super::bench::{Agent, SERVER, Volume, machine, publish, stats, unpublish};
use crate::kernel::fake::{Fault, Machine};

/// A time that is longer than the deadline of any call.
const LONG: Duration = Duration::from_secs(61);

#[derive(Clone, Copy, Debug)]
enum Verb {
    Publish,
    Stats,
    Unpublish,
}

/// Makes the call, and advances the clock whenever a system call hangs. Returns the response, and
/// whether any system call was hung.
fn send(
    agent: &Agent,
    machine: &Machine,
    verb: Verb,
    volume: &Volume,
) -> (Result<(), Status>, bool) {
    let service = Arc::clone(&agent.service);
    let volume = volume.clone();
    agent.runtime.block_on(async {
        let mut hangs = machine.hangs();
        hangs.mark_unchanged();
        let call = tokio::spawn(async move {
            match verb {
                Verb::Publish => publish(&service, &volume, 1).await,
                Verb::Stats => stats(&service, &volume, 1).await.map(drop),
                Verb::Unpublish => unpublish(&service, &volume, 1).await,
            }
        });
        tokio::pin!(call);
        let mut has_hung = false;
        loop {
            tokio::select! {
                answer = &mut call => return (answer.unwrap(), has_hung),
                changed = hangs.changed() => {
                    changed.unwrap();
                    has_hung = true;
                    advance(LONG).await;
                }
            }
        }
    })
}

#[test]
fn a_publish_that_hangs_at_any_call_is_answered_and_leaves_nothing() {
    for die_hard in [false, true] {
        for number in 1.. {
            let machine = machine();
            let before = machine.picture();
            let agent = Agent::new(&machine);
            let volume = Volume::new("a").with("mountPermissions", "0700");
            machine.let_helpers_die_hard(die_hard);
            machine.begin(Some(Fault::HangWaiting(number)));
            let (answer, has_hung) = send(&agent, &machine, Verb::Publish, &volume);
            machine.end();
            if !has_hung {
                answer.unwrap();
                assert!(number > 3, "the calls of a publish that wait: {number}");
                break;
            }
            let status = answer.unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
            assert!(status.message().contains(SERVER), "{status}");
            // The helper process may have created its mount although it was killed, but this mount
            // was never attached to a path.
            machine.let_go();
            let (retried, _) = send(&agent, &machine, Verb::Publish, &volume);
            retried.unwrap();
            agent.unpublish(&volume, 1).unwrap();
            machine.let_go();
            agent.settle();
            assert_eq!(machine.picture().difference(&before), "", "{number}");
            assert_eq!(machine.violations(), Vec::<String>::new());
        }
    }
}

#[test]
fn an_unpublish_that_hangs_ends_with_a_detach_or_an_answer_and_a_retry_converges() {
    for die_hard in [false, true] {
        for number in 1.. {
            let machine = machine();
            let before = machine.picture();
            let agent = Agent::new(&machine);
            let volume = Volume::new("a");
            agent.publish(&volume, 1).unwrap();
            machine.let_helpers_die_hard(die_hard);
            machine.begin(Some(Fault::HangWaiting(number)));
            let (answer, has_hung) = send(&agent, &machine, Verb::Unpublish, &volume);
            machine.end();
            if !has_hung {
                answer.unwrap();
                break;
            }
            // A second helper process has detached the mount.
            answer.unwrap();
            machine.let_go();
            agent.settle();
            assert_eq!(machine.picture().difference(&before), "", "{number}");
        }
    }
}

#[test]
fn an_unpublish_that_hangs_is_not_said_to_be_of_a_volume_in_use() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    agent.publish(&volume, 1).unwrap();
    let inside = std::path::Path::new("/pods/1/inside");
    machine.make_dir(inside);
    machine.cover(inside);
    machine.begin(Some(Fault::HangWaiting(1)));
    let (answer, has_hung) = send(&agent, &machine, Verb::Unpublish, &volume);
    machine.end();
    let refused = answer.unwrap_err();
    assert!(has_hung, "{refused}");
    // The killed helper process may still unmount the volume.
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    let message = refused.message();
    assert!(message.contains("was not unmounted in time"), "{refused}");
    assert!(message.contains("/pods/1/inside"), "{refused}");
    machine.let_go();
    agent.settle();
}

#[test]
fn an_unpublish_detaches_however_many_processes_hang_on_the_server() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    agent.publish(&volume, 1).unwrap();
    machine.let_helpers_die_hard(true);
    machine.let_servers_hang(true);
    for number in 0.. {
        assert!(number < 100, "the server is asked without a limit");
        let (answer, _) = send(&agent, &machine, Verb::Stats, &volume);
        // When no further helper process may be started, the call fails immediately.
        if answer.unwrap_err().code() == Code::Unavailable {
            break;
        }
    }
    let before = machine.helpers_started();
    let (answer, has_hung) = send(&agent, &machine, Verb::Unpublish, &volume);
    assert!(
        has_hung && machine.helpers_started() == before + 2,
        "{answer:?}"
    );
    machine.let_servers_hang(false);
    agent.settle();
    let (answer, _) = send(&agent, &machine, Verb::Unpublish, &volume);
    answer.unwrap();
}

#[test]
fn statistics_of_a_dead_server_are_the_last_ones_with_the_reason() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    agent.publish(&volume, 1).unwrap();
    machine.begin(Some(Fault::HangWaiting(1)));
    let (answer, _) = send(&agent, &machine, Verb::Stats, &volume);
    assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
    machine.let_go();
    let known = agent.stats(&volume, 1).unwrap();
    machine.begin(Some(Fault::HangWaiting(1)));
    let (answer, has_hung) = send(&agent, &machine, Verb::Stats, &volume);
    answer.unwrap();
    assert!(has_hung);
    // The fourth system call of the CSI call is the first system call in the helper process.
    machine.begin(Some(Fault::Fail(4, "ESTALE")));
    let old = agent.stats(&volume, 1).unwrap();
    machine.end();
    assert_eq!(old.usage, known.usage);
    let condition = old.volume_condition.unwrap();
    assert!(
        condition.abnormal && condition.message.contains("ServerUnreachable"),
        "{condition:?}"
    );
    assert!(condition.message.contains("StatisticsOld"), "{condition:?}");
    let well = agent.stats(&volume, 1).unwrap();
    assert!(!well.volume_condition.unwrap().abnormal);
}
