//! Tests in which each system call of each CSI call fails, or in which the agent or a helper
//! process is killed at each system call. Repeated calls must then succeed, and nothing may be
//! left.

use super::bench::{Agent, Volume, machine};
use crate::kernel::fake::{Fault, Machine};

/// The errnos that are injected, which NFS servers and the kernel return.
const ERRNOS: [&str; 7] = [
    "EIO",
    "EBUSY",
    "ENOENT",
    "EPERM",
    "EINVAL",
    "ESTALE",
    "EPROTONOSUPPORT",
];

fn volume() -> Volume {
    Volume::new("a").with("mountPermissions", "0700")
}

/// Counts the system calls of a CSI call without a fault.
fn calls(machine: &Machine, verb: impl FnOnce()) -> usize {
    machine.begin(None);
    verb();
    machine.end().len()
}

/// Counts the system calls of NodePublishVolume, NodeGetVolumeStats and NodeUnpublishVolume.
fn all(machine: &Machine, agent: &Agent) -> usize {
    let volume = volume();
    calls(machine, || {
        agent.publish(&volume, 1).unwrap();
        agent.stats(&volume, 1).unwrap();
        agent.unpublish(&volume, 1).unwrap();
    })
}

/// Publishes a volume, reads its statistics and unpublishes it, all with the fault, and ignores the
/// results. Then does the same without a fault, and checks that nothing is left.
fn converges(machine: &Machine, agent: Agent, fault: Fault) {
    let before = machine.picture();
    let volume = volume();
    machine.begin(Some(fault));
    let outcome = [
        agent.publish(&volume, 1).is_ok(),
        agent.stats(&volume, 1).is_ok(),
        agent.unpublish(&volume, 1).is_ok(),
    ];
    machine.end();
    if outcome[2] {
        assert_eq!(
            machine.picture().difference(&before),
            "",
            "{fault:?} {outcome:?}"
        );
    }
    agent.publish(&volume, 1).unwrap();
    agent.publish(&volume, 1).unwrap();
    let mounts = machine.picture().beyond(&before);
    assert!(
        mounts.iter().filter(|line| line.contains("nfs4")).count() == 1,
        "{fault:?} {mounts:?}"
    );
    agent.unpublish(&volume, 1).unwrap();
    assert_eq!(machine.picture().difference(&before), "", "{fault:?}");
    assert_eq!(machine.violations(), Vec::<String>::new(), "{fault:?}");
    drop(agent);
}

#[test]
fn every_call_may_fail_with_every_errno_once_or_from_then_on() {
    let first = machine();
    let count = all(&first, &Agent::new(&first));
    assert!(count > 20, "{count}");
    for number in 1..=count {
        for errno in ERRNOS {
            for fault in [Fault::Fail(number, errno), Fault::FailFrom(number, errno)] {
                let machine = machine();
                let agent = Agent::new(&machine);
                converges(&machine, agent, fault);
            }
        }
    }
}

#[test]
fn a_publish_that_fails_at_any_call_of_the_agent_leaves_no_directory() {
    let first = machine();
    let agent = Agent::new(&first);
    let count = calls(&first, || agent.publish(&volume(), 1).unwrap());
    for number in 1..=count {
        let machine = machine();
        let before = machine.picture();
        let agent = Agent::new(&machine);
        machine.begin(Some(Fault::Fail(number, "EIO")));
        let answer = agent.publish(&volume(), 1);
        machine.end();
        if answer.is_err() {
            let left = machine.picture().difference(&before);
            assert_eq!(left, "", "call {number}");
        }
    }
}

#[test]
fn a_process_may_die_at_every_call_and_the_next_agent_converges() {
    let first = machine();
    let count = all(&first, &Agent::new(&first));
    for number in 1..=count {
        let machine = machine();
        let before = machine.picture();
        let agent = Agent::new(&machine);
        let volume = volume();
        machine.begin(Some(Fault::Die(number)));
        let _outcome = [
            agent.publish(&volume, 1).is_ok(),
            agent.stats(&volume, 1).is_ok(),
            agent.unpublish(&volume, 1).is_ok(),
        ];
        machine.end();
        agent.kill();
        let next = Agent::new(&machine);
        converges_after(&machine, &next, &volume, &before, number);
    }
}

fn converges_after(
    machine: &Machine,
    agent: &Agent,
    volume: &Volume,
    before: &crate::kernel::fake::Picture,
    number: usize,
) {
    agent.publish(volume, 1).unwrap();
    let lines = machine.picture().beyond(before);
    let mounts = lines.iter().filter(|line| line.contains("nfs4")).count();
    assert_eq!(mounts, 1, "call {number}: {lines:?}");
    agent.unpublish(volume, 1).unwrap();
    assert_eq!(machine.picture().difference(before), "", "call {number}");
}
