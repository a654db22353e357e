//! The program with `--backend nfs`: its calls reach a worker process, and come back. The server
//! has no address, so no privilege is needed and nothing is mounted; guests have a real one.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use belay_bed::programs::{Running, server};
use belay_bed::requests::capability;
use belay_proto::csi::v1 as csi;
use belay_proto::dial::dial;
use csi::controller_client::ControllerClient;
use csi::controller_service_capability::Type;
use csi::controller_service_capability::rpc::Type as Call;
use csi::volume_capability::AccessType;
use csi::volume_capability::access_mode::Mode;
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// No resolver has an address for it.
const SERVER: &str = "no..host";

struct Site {
    _dir: TempDir,
    _controller: Running,
    client: ControllerClient<Channel>,
}

impl Site {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("csi.sock");
        let program = Path::new(env!("CARGO_BIN_EXE_belay-controller"));
        let mut command = server(&[], program, &socket);
        command.arg("--backend=nfs");
        let controller = Running::serving(&mut command, &socket).unwrap();
        let client = ControllerClient::new(dial(&socket).await.unwrap());
        Self {
            _dir: dir,
            _controller: controller,
            client,
        }
    }

    async fn create(&mut self, request: csi::CreateVolumeRequest) -> Status {
        self.client.create_volume(request).await.unwrap_err()
    }

    async fn delete(&mut self, id: &str) -> Result<(), Status> {
        let request = csi::DeleteVolumeRequest {
            volume_id: id.to_owned(),
            ..Default::default()
        };
        self.client.delete_volume(request).await.map(drop)
    }
}

fn request(parameters: &[(&str, &str)]) -> csi::CreateVolumeRequest {
    let class = [("server", SERVER), ("share", "/a")];
    let parameters = class.iter().chain(parameters);
    csi::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        volume_capabilities: vec![capability("", Mode::MultiNodeMultiWriter)],
        parameters: parameters
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect::<HashMap<_, _>>(),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_worker_process_answers_and_its_failure_is_the_answer() {
    let mut site = Site::start().await;
    let refused = site.create(request(&[])).await;
    let words = "the controller cannot resolve its name";
    assert!(refused.message().contains(words), "{refused}");
    assert_eq!(refused.code(), Code::Internal, "{refused}");
    let id = format!("{SERVER}#a#pvc-1##");
    let refused = site.delete(&id).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(
        refused.message().starts_with(&format!("volume {id}: ")),
        "{refused}"
    );
    let long = format!("{SERVER}#a#{}#pvc-1#", "d".repeat(250));
    let refused = site.delete(&long).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let too_long = format!("{SERVER}#a#{}#pvc-1#", "d/".repeat(600));
    let refused = site.delete(&too_long).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
}

#[tokio::test]
async fn a_request_that_no_server_could_serve_reaches_none() {
    let mut site = Site::start().await;
    for (parameter, words) in [
        (("subDir", "../x"), "subDir: has the part"),
        (
            ("SUBDIR", "${pvc.metadata.name}"),
            "--extra-create-metadata",
        ),
        (("onDelete", "keep"), "not one of delete, retain, archive"),
        (("share", &"d".repeat(250)), "has 266 bytes"),
        (("blockSize", "4096"), "\"blockSize\" is unknown"),
        (("sever", "x"), "\"sever\" is unknown"),
    ] {
        let refused = site.create(request(&[parameter])).await;
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(words), "{refused}");
    }
    let mut block = request(&[]);
    block.volume_capabilities = vec![capability("block", Mode::MultiNodeMultiWriter)];
    let refused = site.create(block).await;
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let mut flagged = request(&[]);
    if let Some(AccessType::Mount(mount)) = &mut flagged.volume_capabilities[0].access_type {
        mount.mount_flags = vec!["addr=10.0.0.1".to_owned()];
    }
    let refused = site.create(flagged).await;
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    // No driver has given this one out, so there is nothing to delete.
    site.delete("x").await.unwrap();
    // csi-driver-nfs may have created these.
    for (id, part) in [
        ("s#a##n#", "subDir: names the share itself"),
        ("s#../a#d#n#", "share: has the part \"..\""),
        ("s#a#d//x#n#", "subDir: has the part \"\""),
        ("s#a#.belay#n#", "subDir: begins with .belay"),
        ("s#a#d#n##", "onDelete: "),
    ] {
        let refused = site.delete(id).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let start = format!("volume {id}: ");
        assert!(refused.message().starts_with(&start), "{refused}");
        assert!(refused.message().contains(part), "{refused}");
    }
}

#[tokio::test]
async fn a_copy_names_its_source_if_it_cannot_be_made() {
    use csi::volume_content_source::{Type, VolumeSource};
    let mut site = Site::start().await;
    for (id, code, words) in [
        ("x", Code::NotFound, "volume x: "),
        ("s#..#d#n#", Code::FailedPrecondition, "share: has the part"),
        // The server decides whether a volume with this ID exists.
        (
            "no..other#a#d#n#",
            Code::Internal,
            "cannot resolve its name",
        ),
    ] {
        let mut copy = request(&[]);
        copy.volume_content_source = Some(csi::VolumeContentSource {
            r#type: Some(Type::Volume(VolumeSource {
                volume_id: id.to_owned(),
            })),
        });
        let refused = site.create(copy).await;
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(words), "{refused}");
    }
}

#[tokio::test]
async fn the_controller_advertises_what_it_can_do() {
    let mut site = Site::start().await;
    let answer = site
        .client
        .controller_get_capabilities(csi::ControllerGetCapabilitiesRequest {})
        .await;
    let advertised = answer.unwrap().into_inner().capabilities;
    let advertised: Vec<_> = advertised
        .into_iter()
        .map(|capability| match capability.r#type.unwrap() {
            Type::Rpc(rpc) => rpc.r#type(),
        })
        .collect();
    assert_eq!(
        advertised,
        [
            Call::CreateDeleteVolume,
            Call::GetVolume,
            Call::ExpandVolume,
            Call::SingleNodeMultiWriter,
            Call::GetCapacity,
            Call::CreateDeleteSnapshot,
            Call::CloneVolume,
            Call::GetVolumeHealth,
            Call::VolumeCondition,
        ]
    );
    let list = site.client.list_volumes(csi::ListVolumesRequest::default());
    assert_eq!(list.await.unwrap_err().code(), Code::Unimplemented);
    let request = csi::ListSnapshotsRequest::default();
    let listed = site.client.list_snapshots(request).await;
    assert_eq!(listed.unwrap_err().code(), Code::Unimplemented);
    let request = csi::GetSnapshotRequest::default();
    let found = site.client.get_snapshot(request).await;
    assert_eq!(found.unwrap_err().code(), Code::Unimplemented);
}

/// There is no room where no volume can be created, and no answer if the class is wrong.
#[tokio::test]
async fn the_server_of_the_class_is_asked_for_its_room() {
    let mut site = Site::start().await;
    let class = [("server", SERVER), ("share", "/a")];
    let typo = [("server", SERVER), ("share", "/a"), ("sever", "x")];
    let long = "d".repeat(250);
    let flag = "addr=10.0.0.1";
    for (parameters, modes, flag, expected) in [
        (&[][..], "", "", Ok(0)),
        (&typo[..], "", "", Ok(0)),
        (&class[..], "block", "", Ok(0)),
        (
            &class[..1],
            "",
            "",
            Err((Code::InvalidArgument, "share: is required")),
        ),
        (
            &[("server", SERVER), ("share", &long)],
            "",
            "",
            Err((Code::InvalidArgument, "has 260 bytes")),
        ),
        (&class[..], "", flag, Err((Code::InvalidArgument, "addr"))),
        (
            &class[..],
            "",
            "",
            Err((Code::Unavailable, "cannot resolve")),
        ),
    ] {
        let mut wanted = capability(modes, Mode::MultiNodeMultiWriter);
        if let Some(AccessType::Mount(mount)) = &mut wanted.access_type {
            mount.mount_flags = vec![flag.to_owned()];
        }
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let answer = site.client.get_capacity(csi::GetCapacityRequest {
            volume_capabilities: vec![wanted],
            parameters: parameters.iter().map(owned).collect(),
            ..Default::default()
        });
        match (answer.await, expected) {
            (Ok(room), Ok(bytes)) => assert_eq!(room.into_inner().available_capacity, bytes),
            (Err(refused), Err((code, words))) => {
                assert_eq!(refused.code(), code, "{refused}");
                assert!(refused.message().contains(words), "{refused}");
            }
            (answer, expected) => panic!("{answer:?}, and not {expected:?}"),
        }
    }
}

/// Their IDs may be longer than the specification allows.
#[tokio::test]
async fn a_call_for_a_snapshot_reaches_a_worker_process() {
    let mut site = Site::start().await;
    let name = "s".repeat(120);
    let id = format!("{SERVER}#a#{name}#{name}#pvc-1");
    let mut restore = request(&[]);
    restore.volume_content_source = Some(csi::VolumeContentSource {
        r#type: Some(csi::volume_content_source::Type::Snapshot(
            csi::volume_content_source::SnapshotSource {
                snapshot_id: id.clone(),
            },
        )),
    });
    let refused = site.create(restore).await;
    assert!(refused.message().contains("cannot resolve"), "{refused}");
    let cut = site.client.create_snapshot(csi::CreateSnapshotRequest {
        name,
        source_volume_id: format!("{SERVER}#a#{}#pvc-1#", "d".repeat(230)),
        ..Default::default()
    });
    let refused = cut.await.unwrap_err();
    assert!(refused.message().contains("cannot resolve"), "{refused}");
    let deletion = csi::DeleteSnapshotRequest {
        snapshot_id: id,
        ..Default::default()
    };
    let refused = site.client.delete_snapshot(deletion).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
}

/// Its controller shows the last line of that.
#[test]
fn a_worker_process_that_cannot_read_its_call_says_so() {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_belay-controller"));
    worker.arg("--nfs-worker-process");
    worker.stdin(Stdio::null());
    let output = worker.output().unwrap();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("EOF while parsing"), "{errors}");
}
