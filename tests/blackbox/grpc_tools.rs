//! The services that the CSI sockets offer to gRPC tools that do not know CSI: none by default.

use std::collections::BTreeSet;
use std::path::Path;

use prost::Message as _;
use prost_types::FileDescriptorProto;
use tokio_stream::StreamExt as _;
use tonic::{Code, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::rig::{Answer, Process, TestDir, call_at};

/// Queries one version of the reflection protocol; the two differ only in the name.
macro_rules! reflection {
    ($ask:ident, $version:ident) => {
        fn $ask(socket: &Path, asked: Asked) -> Answer<Reported> {
            use tonic_reflection::pb::$version as wire;
            use wire::server_reflection_client::ServerReflectionClient;
            use wire::server_reflection_request::MessageRequest;
            use wire::server_reflection_response::MessageResponse;
            let message = match asked {
                Asked::Services => MessageRequest::ListServices(String::new()),
                Asked::FileWith(symbol) => MessageRequest::FileContainingSymbol(symbol),
                Asked::File(name) => MessageRequest::FileByFilename(name),
            };
            let request = wire::ServerReflectionRequest {
                host: String::new(),
                message_request: Some(message),
            };
            let requests = tokio_stream::once(request);
            call_at(socket, async |channel| {
                let mut client = ServerReflectionClient::new(channel);
                let answers = client.server_reflection_info(requests).await?;
                let mut answers = answers.into_inner();
                let answer = answers.next().await.expect("an answer")?;
                Ok(Response::new(match answer.message_response {
                    Some(MessageResponse::ListServicesResponse(list)) => {
                        let names = list.service.into_iter().map(|service| service.name);
                        Reported::Services(names.collect())
                    }
                    Some(MessageResponse::FileDescriptorResponse(files)) => {
                        let [file] = files.file_descriptor_proto.as_slice() else {
                            panic!("{} files", files.file_descriptor_proto.len())
                        };
                        let file = FileDescriptorProto::decode(file.as_slice());
                        Reported::File(Box::new(file.expect("a descriptor")))
                    }
                    other => panic!("{other:?}"),
                }))
            })
        }
    };
}

enum Asked {
    Services,
    FileWith(String),
    File(String),
}

#[derive(Debug)]
enum Reported {
    Services(BTreeSet<String>),
    File(Box<FileDescriptorProto>),
}

reflection!(ask, v1);
reflection!(ask_alpha, v1alpha);

type Ask = fn(&Path, Asked) -> Answer<Reported>;

/// Checks that a client can read the file of a service and all its imports, which it needs before
/// it can make a call.
fn expect_all_files_of(ask: Ask, socket: &Path, service: &str) {
    let file = |asked| match ask(socket, asked).expect("a file") {
        Reported::File(file) => *file,
        Reported::Services(_) => panic!("services instead of a file"),
    };
    let first = file(Asked::FileWith(service.to_owned()));
    let (package, name) = service.rsplit_once('.').expect("a package");
    assert_eq!(first.package(), package);
    assert!(first.service.iter().any(|service| service.name() == name));
    let mut missing = first.dependency;
    while let Some(name) = missing.pop() {
        let imported = file(Asked::File(name.clone()));
        assert_eq!(imported.name(), name);
        missing.extend(imported.dependency);
    }
}

fn check(socket: &Path, service: &str) -> Answer<HealthCheckResponse> {
    call_at(socket, async |channel| {
        let service = service.to_owned();
        HealthClient::new(channel)
            .check(HealthCheckRequest { service })
            .await
    })
}

/// Runs each of both programs with these flags, with its CSI services.
fn for_both(flags: &[&str], act: impl Fn(&Path, &str)) {
    let test_dir = TestDir::new();
    let [volumes, state] = ["volumes", "state"].map(|name| path(&test_dir.directory(name)));
    for (program, directory, service) in [
        ("belay-node", ["--loop-dir", &volumes], "csi.v1.Node"),
        (
            "belay-controller",
            ["--state-dir", &state],
            "csi.v1.Controller",
        ),
    ] {
        let socket = test_dir.path().join("csi.sock");
        let needed = ["--node-id", "node-1"];
        let flags = [needed.as_slice(), &directory, flags].concat();
        let agent = Process::start(&test_dir, program, &socket, &flags);
        act(&socket, service);
        agent.terminate();
    }
}

fn path(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
#[ignore = "needs root: make test"]
fn reflection_reports_services_and_messages() {
    for_both(
        &["--grpc-reflection", "--grpc-health"],
        |socket, service| {
            let served = [
                "csi.v1.Identity",
                service,
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            ];
            for ask in [ask, ask_alpha] {
                let Reported::Services(reported) = ask(socket, Asked::Services).expect("services")
                else {
                    panic!("a file instead of services")
                };
                assert_eq!(reported, served.map(str::to_owned).into());
                for service in served {
                    expect_all_files_of(ask, socket, service);
                }
            }
        },
    );
}

#[test]
#[ignore = "needs root: make test"]
fn the_health_service_reports_the_readiness_of_served_services() {
    for_both(&["--grpc-health"], |socket, service| {
        for service in ["", "csi.v1.Identity", service] {
            let reported = check(socket, service).expect("an answer").status();
            assert_eq!(reported, ServingStatus::Serving, "{service:?}");
        }
        let refused = check(socket, "csi.v1.GroupController").expect_err("it is not served");
        assert_eq!(refused.code(), Code::NotFound);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn tools_get_nothing_that_was_not_asked_for() {
    let unserved = |status: Status| assert_eq!(status.code(), Code::Unimplemented, "{status}");
    for_both(&[], |socket, _| {
        for ask in [ask, ask_alpha] {
            unserved(ask(socket, Asked::Services).expect_err("it is off"));
        }
        unserved(check(socket, "").expect_err("it is off"));
    });
}
