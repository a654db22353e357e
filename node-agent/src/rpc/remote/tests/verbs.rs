//! Tests of the results of calls while the NFS server responds.

use std::path::Path;

use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use tonic::Code;

use super::bench::{Agent, SERVER, Volume, machine, target};
use crate::kernel::fake::{Fault, Server};
use crate::kernel::{MountAttrs, Remotes as _};

fn code(result: Result<(), tonic::Status>) -> Code {
    result.map_or_else(|status| status.code(), |()| Code::Ok)
}

#[test]
fn a_volume_is_published_once_measured_and_unpublished_and_nothing_is_left() {
    let machine = machine();
    let before = machine.picture();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    agent.publish(&volume, 1).unwrap();
    let published = machine.picture();
    let helpers = machine.helpers_started();
    agent.publish(&volume, 1).unwrap();
    assert_eq!(machine.picture().difference(&published), "");
    assert_eq!(
        machine.helpers_started(),
        helpers,
        "a repeated call asks no server"
    );
    let stats = agent.stats(&volume, 1).unwrap();
    assert_eq!(stats.usage[0].total, 7 << 30);
    assert!(!stats.volume_condition.unwrap().abnormal);
    agent.unpublish(&volume, 1).unwrap();
    agent.unpublish(&volume, 1).unwrap();
    assert_eq!(machine.picture().difference(&before), "");
    assert_eq!(machine.violations(), Vec::<String>::new());
    assert_eq!(agent.stats(&volume, 1).unwrap_err().code(), Code::NotFound);
}

#[test]
fn the_version_is_the_best_that_the_server_has_and_flags_pin_it() {
    for (versions, flag, expected) in [
        (&["3", "4.0", "4.1", "4.2"][..], None, Code::Ok),
        (&["3", "4.0"], None, Code::Ok),
        (&["3"], None, Code::Ok),
        (&[], None, Code::FailedPrecondition),
        (&["4.1"], Some("nfsvers=4.1"), Code::Ok),
        (&["4.1"], Some("vers=4"), Code::Ok),
        (&["3"], Some("vers=4"), Code::FailedPrecondition),
        (&["3", "4.0"], Some("nfsvers=4.1"), Code::FailedPrecondition),
    ] {
        let machine = machine();
        let directories = machine.server_of(SERVER).directories;
        let versions = versions.to_vec();
        machine.serve_nfs(
            SERVER,
            Server {
                versions: versions.clone(),
                directories,
            },
        );
        let agent = Agent::new(&machine);
        let volume = flag
            .iter()
            .fold(Volume::new("a"), |it, flag| it.flagged(flag));
        assert_eq!(
            code(agent.publish(&volume, 1)),
            expected,
            "{versions:?} {flag:?}"
        );
    }
}

#[test]
fn a_server_by_name_is_tried_at_each_of_its_addresses() {
    let machine = machine();
    machine.name_host("filer.example", &["10.0.0.99", SERVER]);
    let agent = Agent::new(&machine);
    let volume = Volume::new("a").with("server", "filer.example");
    agent.publish(&volume, 1).unwrap();
    let source = machine
        .process()
        .mount_source(Path::new(&target(1)))
        .unwrap()
        .unwrap();
    assert_eq!(source.source, "filer.example:/exports/a");
    let unknown = Volume::new("a").with("server", "other.example");
    assert_eq!(code(agent.publish(&unknown, 2)), Code::Unavailable);
}

#[test]
fn read_only_is_an_attribute_of_the_mount_alone() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let reader = Volume {
        mode: Mode::MultiNodeReaderOnly,
        ..Volume::new("a")
    };
    let asked = Volume {
        read_only: true,
        ..Volume::new("b")
    };
    let flagged = Volume::new("c").flagged("ro");
    for (pod, volume) in (1..).zip([reader.clone(), asked, flagged]) {
        agent.publish(&volume, pod).unwrap();
        let found = machine
            .process()
            .mount_source(Path::new(&target(pod)))
            .unwrap()
            .unwrap();
        assert!(found.attrs.contains(MountAttrs::READ_ONLY) && !found.superblock_read_only);
    }
    let writer = Volume {
        mode: Mode::MultiNodeMultiWriter,
        ..reader
    };
    assert_eq!(code(agent.publish(&writer, 1)), Code::AlreadyExists);
}

#[test]
fn a_repeated_publish_that_forbids_more_than_the_mount_is_refused() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    agent.publish(&volume, 1).unwrap();
    let stricter = volume.clone().flagged("noexec");
    assert_eq!(code(agent.publish(&stricter, 1)), Code::AlreadyExists);
    agent.publish(&stricter, 2).unwrap();
    agent.publish(&volume, 2).unwrap();
}

#[test]
fn the_root_gets_the_permissions_that_were_asked_for_and_else_keeps_its_own() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let mode = |directory: &str| machine.server_of(SERVER).directories[directory];
    agent
        .publish(&Volume::new("a").with("mountPermissions", "0"), 1)
        .unwrap();
    agent
        .publish(&Volume::new("b").with("mountPermissions", "1777"), 2)
        .unwrap();
    let reader = Volume {
        read_only: true,
        ..Volume::new("c").with("mountPermissions", "1777")
    };
    agent.publish(&reader, 3).unwrap();
    let flagged = Volume::new("c").with("mountPermissions", "1777");
    agent.publish(&flagged.flagged("ro"), 4).unwrap();
    assert_eq!(
        [mode("exports/a"), mode("exports/b"), mode("exports/c")],
        [0o755, 0o1777, 0o755]
    );
}

#[test]
fn two_volumes_of_one_share_are_two_mounts_and_neither_call_touches_the_other() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let (a, b) = (Volume::new("a"), Volume::new("b"));
    agent.publish(&a, 1).unwrap();
    agent.publish(&b, 2).unwrap();
    assert_eq!(code(agent.publish(&b, 1)), Code::AlreadyExists);
    assert_eq!(code(agent.unpublish(&b, 1)), Code::FailedPrecondition);
    assert_eq!(agent.stats(&b, 1).unwrap_err().code(), Code::NotFound);
    agent.unpublish(&a, 1).unwrap();
    agent.stats(&b, 2).unwrap();
}

#[test]
fn a_mount_that_another_program_made_is_recognised_by_its_source() {
    let machine = machine();
    let agent = Agent::new(&machine);
    for pod in [1, 2, 3] {
        machine.make_dir(Path::new(&target(pod)));
    }
    machine.mount_nfs(
        &format!("{SERVER}:/exports/a"),
        SERVER,
        Path::new(&target(1)),
    );
    machine.mount_nfs(
        &format!("{SERVER}:/exports/b"),
        SERVER,
        Path::new(&target(2)),
    );
    machine.cover(Path::new(&target(3)));
    let a = Volume::new("a");
    let helpers = machine.helpers_started();
    agent.publish(&a, 1).unwrap();
    assert_eq!(machine.helpers_started(), helpers);
    agent.stats(&a, 1).unwrap();
    assert_eq!(code(agent.publish(&a, 2)), Code::AlreadyExists);
    assert_eq!(code(agent.publish(&a, 3)), Code::AlreadyExists);
    // The mount at the third target is a tmpfs, which is never a volume.
    assert_eq!(code(agent.unpublish(&a, 3)), Code::FailedPrecondition);
    agent.unpublish(&a, 1).unwrap();
    // A different agent or a previous agent may have published the volume.
    agent.unpublish(&Volume::new("b"), 2).unwrap();
    assert!(!machine.is_there(Path::new(&target(2))));
}

#[test]
fn a_repeated_publish_knows_its_mount_under_another_source() {
    let machine = machine();
    machine.show_source(&format!("{SERVER}:/exports/a"), "filer.example:/data");
    let agent = Agent::new(&machine);
    let a = Volume::new("a");
    agent.publish(&a, 1).unwrap();
    agent.publish(&a, 1).unwrap();
    assert_eq!(
        code(agent.publish(&Volume::new("b"), 1)),
        Code::AlreadyExists
    );
    let reader = Volume {
        read_only: true,
        ..a.clone()
    };
    assert_eq!(code(agent.publish(&reader, 1)), Code::AlreadyExists);
    // A different agent has a new mount created, compares the existing mount with it, and drops the
    // new mount.
    let next = Agent::new(&machine);
    let before = machine.picture();
    next.publish(&a, 1).unwrap();
    assert_eq!(machine.picture().difference(&before), "");
    for other in [reader, Volume::new("b")] {
        assert_eq!(code(next.publish(&other, 1)), Code::AlreadyExists);
    }
    agent.unpublish(&a, 1).unwrap();
    // If mounts have no unique IDs, the same agent also has to compare the mounts.
    machine.number_no_mounts();
    agent.publish(&a, 2).unwrap();
    agent.publish(&a, 2).unwrap();
    // Two mounts without a common root cannot be recognized as the same directory.
    let apart = a.flagged("nosharecache");
    agent.publish(&apart, 3).unwrap();
    let refused = agent.publish(&apart, 3).unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(
        refused.message().contains("filer.example:/data"),
        "{refused}"
    );
}

#[test]
fn a_second_target_is_for_modes_that_allow_it() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let alone = Volume {
        mode: Mode::SingleNodeSingleWriter,
        ..Volume::new("a")
    };
    agent.publish(&alone, 1).unwrap();
    assert_eq!(code(agent.publish(&alone, 2)), Code::FailedPrecondition);
    agent.publish(&alone, 1).unwrap();
    agent.unpublish(&alone, 1).unwrap();
    agent.publish(&alone, 2).unwrap();
    let many = Volume::new("b");
    agent.publish(&many, 3).unwrap();
    agent.publish(&many, 4).unwrap();
}

#[test]
fn what_cannot_be_a_mount_is_refused_before_a_server_is_asked() {
    let machine = machine();
    let agent = Agent::new(&machine);
    for (volume, field) in [
        (Volume::new("../etc"), "subDir"),
        (Volume::new("a").with("share", "/exports/../etc"), "share"),
        (Volume::new("a").with("server", "a/b"), "server"),
        (
            Volume::new("a").with("mountPermissions", "rwx"),
            "mountPermissions",
        ),
        (
            Volume::new("a").with("mountOptions", "addr=10.0.0.9"),
            "addr",
        ),
        (Volume::new("a").flagged("bind"), "bind"),
    ] {
        let refused = agent.publish(&volume, 1).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(field), "{refused}");
    }
    machine.make_file(Path::new(&target(2)), 0);
    assert_eq!(
        code(agent.publish(&Volume::new("a"), 2)),
        Code::FailedPrecondition
    );
    assert_eq!(machine.helpers_started(), 0);
}

#[test]
fn a_path_through_a_volume_is_refused() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    agent.publish(&volume, 1).unwrap();
    let inside = super::bench::unpublish_at(&agent, &volume, "/pods/1/below");
    assert_eq!(code(inside), Code::InvalidArgument);
}

#[test]
fn the_servers_refusal_is_in_the_answer_and_leaves_nothing() {
    let machine = machine();
    let before = machine.picture();
    let agent = Agent::new(&machine);
    for (volume, expected) in [
        (Volume::new("nothing"), Code::NotFound),
        (Volume::new("a").flagged("odd"), Code::InvalidArgument),
        (
            Volume::new("a").with("server", "10.0.0.77"),
            Code::Unavailable,
        ),
    ] {
        let refused = agent.publish(&volume, 1).unwrap_err();
        assert_eq!(refused.code(), expected, "{refused}");
        assert!(
            refused
                .message()
                .starts_with(&format!("volume {}: ", volume.id)),
            "{refused}"
        );
        assert_eq!(machine.picture().difference(&before), "");
    }
}

#[test]
fn a_target_with_files_under_its_mount_is_not_removed() {
    let machine = machine();
    let agent = Agent::new(&machine);
    machine.make_file(Path::new("/pods/1/kept"), 5);
    assert_eq!(
        code(agent.unpublish(&Volume::new("a"), 1)),
        Code::FailedPrecondition
    );
    assert!(machine.is_there(Path::new("/pods/1/kept")));
}

#[test]
fn a_target_that_another_process_removes_meanwhile_is_unpublished() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    agent.publish(&volume, 1).unwrap();
    machine.begin(None);
    agent.unpublish(&volume, 1).unwrap();
    let calls = machine.end();
    let at = calls.iter().position(|call| call.name == "rmdir").unwrap() + 1;
    for (errno, expected) in [("ENOENT", Code::Ok), ("EIO", Code::Internal)] {
        agent.publish(&volume, 1).unwrap();
        machine.begin(Some(Fault::Fail(at, errno)));
        let unpublished = agent.unpublish(&volume, 1);
        machine.end();
        let got = unpublished.map_or_else(|status| status.code(), |()| Code::Ok);
        assert_eq!(got, expected, "{errno}");
        agent.unpublish(&volume, 1).unwrap();
    }
}

/// Let each system call of NodeGetVolumeStats fail, up to the system call that starts the helper
/// process.
#[test]
fn a_failure_of_the_node_is_not_reported_as_the_servers() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    agent.publish(&volume, 1).unwrap();
    agent.stats(&volume, 1).unwrap();
    machine.begin(None);
    agent.stats(&volume, 1).unwrap();
    let calls = machine.end();
    let starts = 1 + calls.iter().position(|call| call.name == "exec").unwrap();
    for number in 1..=starts {
        machine.begin(Some(Fault::Fail(number, "EAGAIN")));
        let failed = agent.stats(&volume, 1).unwrap_err();
        machine.end();
        assert_eq!(failed.code(), Code::Internal, "{failed}");
        assert!(failed.message().contains("EAGAIN"), "{failed}");
    }
    // A system call on a soft mount fails with EIO if the server does not respond.
    machine.begin(Some(Fault::Fail(starts + 1, "EIO")));
    let stats = agent.stats(&volume, 1).unwrap();
    machine.end();
    let condition = stats.volume_condition.unwrap();
    assert!(
        condition.message.contains("ServerUnreachable"),
        "{condition:?}"
    );
    let lacking = Agent::lacking(&machine, Some("without CAP_SYS_ADMIN".to_owned()));
    let failed = lacking.stats(&volume, 1).unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
}
