//! Tests of the calls of a helper process, on the simulated machine.

use std::path::Path;

use belay_server::call::{Failure, Kind};

use super::serve;
use crate::kernel::fake::{Call, Fault, Machine, Server};
use crate::kernel::{Answer, MountAttrs, RemoteCall, RemoteMount};

const SERVER: &str = "10.0.0.5";
const OTHER: &str = "10.0.0.6";

type Options<'a> = &'a [(&'a str, Option<&'a str>)];

/// Returns a machine with an NFS server that exports `/exports`.
fn machine(versions: &[&'static str]) -> Machine {
    let machine = Machine::new();
    machine.serve_nfs(SERVER, server(versions, &["exports"]));
    machine
}

fn server(versions: &[&'static str], directories: &[&str]) -> Server {
    let directories = directories.iter().map(|&it| (it.to_owned(), 0o755));
    Server {
        versions: versions.to_vec(),
        directories: directories.collect(),
    }
}

fn mount(host: &str, options: Options<'_>) -> RemoteCall {
    let owned =
        |(name, value): &(&str, Option<&str>)| ((*name).to_owned(), value.map(str::to_owned));
    RemoteCall::Mount(RemoteMount {
        server: host.to_owned(),
        source: format!("{host}:/exports"),
        attrs: MountAttrs::default(),
        options: options.iter().map(owned).collect(),
        permissions: None,
    })
}

/// Returns the system calls that a helper process makes for `call`, whether it succeeds or fails.
fn calls(machine: &Machine, call: &RemoteCall) -> Vec<Call> {
    machine.begin(None);
    drop(serve(&machine.process(), call));
    machine.end()
}

/// Returns the failure of `call` if the system call with the number `at` fails with `errno`.
fn failed(machine: &Machine, call: &RemoteCall, at: usize, errno: &'static str) -> Failure {
    machine.begin(Some(Fault::Fail(at, errno)));
    let answer = serve(&machine.process(), call);
    machine.end();
    match answer {
        Err(failure) => failure,
        Ok(_) => panic!("{errno} at {at} is ignored"),
    }
}

#[test]
fn a_version_3_that_does_not_answer_may_lack_its_lock_service() {
    let cases: [(&[&'static str], Options<'_>, bool); 4] = [
        (&["3"], &[("nfsvers", Some("3"))], true),
        (&["3"], &[("nfsvers", Some("3")), ("hard", None)], true),
        (&["3"], &[("nfsvers", Some("3")), ("nolock", None)], false),
        (&["4.1"], &[("nfsvers", Some("4.1"))], false),
    ];
    for (versions, options, is_hinted) in cases {
        let (machine, call) = (machine(versions), mount(SERVER, options));
        let calls = calls(&machine, &call);
        let create = calls.iter().position(|call| call.object == "create");
        let failure = failed(&machine, &call, create.unwrap() + 1, "ETIMEDOUT");
        assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
        let has_hint = failure.message.contains("rpc.statd");
        assert_eq!(has_hint, is_hinted, "{options:?}: {failure}");
    }
}

#[test]
fn the_next_address_is_tried_only_if_one_does_not_answer() {
    let machine = machine(&["4.2"]);
    machine.serve_nfs(OTHER, server(&["4.2"], &[]));
    machine.name_host("late.example", &["10.0.0.99", SERVER]);
    machine.name_host("other.example", &[OTHER, SERVER]);
    let kernel = machine.process();
    let made = serve(&kernel, &mount("late.example", &[]));
    assert!(matches!(made, Ok(Answer::Mount(_))));
    let Err(refused) = serve(&kernel, &mount("other.example", &[])) else {
        panic!("mounted from the second address");
    };
    assert_eq!(refused.kind, Kind::NotFound, "{refused}");
}

#[test]
fn a_mount_that_is_not_there_is_unmounted_and_an_error_is_none() {
    let machine = machine(&["4.2"]);
    machine.make_dir(Path::new("/pods/1"));
    let kernel = machine.process();
    for path in ["/pods/1", "/pods/2"] {
        for call in [
            RemoteCall::Unmount(path.into()),
            RemoteCall::Detach(path.into()),
        ] {
            let answer = serve(&kernel, &call);
            assert!(matches!(answer, Ok(Answer::Unmounted)), "{path}");
        }
    }
    for call in [
        RemoteCall::Unmount("/pods/1".into()),
        RemoteCall::Detach("/pods/1".into()),
    ] {
        let failure = failed(&machine, &call, 1, "EIO");
        assert!(failure.message.contains("EIO"), "{failure}");
    }
}

#[test]
fn each_refusal_of_a_server_has_its_kind_and_its_cure() {
    let machine = machine(&["4.2"]);
    machine.make_dir(Path::new("/pods"));
    let call = RemoteCall::Usage("/pods".into());
    for (errno, kind, cure) in [
        ("ENOENT", Kind::NotFound, "does not have that directory"),
        ("EACCES", Kind::Precondition, "refuses it to this node"),
        ("EINVAL", Kind::Invalid, "is not accepted"),
        ("EPROTONOSUPPORT", Kind::Precondition, "that version of NFS"),
        ("ECONNREFUSED", Kind::Unreachable, "does not answer"),
        ("ESTALE", Kind::Unreachable, "no longer has the directory"),
        ("ENODEV", Kind::Precondition, "load the kernel module nfs"),
    ] {
        let failure = failed(&machine, &call, 1, errno);
        assert_eq!(failure.kind, kind, "{failure}");
        assert!(failure.message.contains(cure), "{failure}");
        assert!(failure.message.contains(errno), "{failure}");
    }
}
