//! Invalid requests to the controller.

use std::collections::HashMap;
use std::fmt::Debug;

use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use tonic::Code::{self, InvalidArgument, NotFound};
use tonic::Status;

use crate::rig::{Controller, ControllerCalls, TestDir, World, access, refused_with, with_mode};

const GIB: i64 = 1 << 30;
const UNKNOWN: &str = "vol-00000000000000000000000000000000";

/// A controller with one volume, which is called `kept`.
struct Scene {
    controller: Controller,
    calls: ControllerCalls,
    test_dir: TestDir,
    id: String,
}

fn order(name: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(range(GIB, 0)),
        volume_capabilities: vec![access("ext4")],
        ..Default::default()
    }
}

fn range(required_bytes: i64, limit_bytes: i64) -> csi::CapacityRange {
    csi::CapacityRange {
        required_bytes,
        limit_bytes,
    }
}

fn entry(key: &str, value: &str) -> HashMap<String, String> {
    HashMap::from([(key.to_owned(), value.to_owned())])
}

impl Scene {
    fn new() -> Self {
        let test_dir = TestDir::new();
        let controller = Controller::start(&test_dir);
        let calls = controller.calls();
        let made = calls.create(order("kept")).expect("create").volume;
        let id = made.expect("a volume").volume_id;
        Scene {
            controller,
            calls,
            test_dir,
            id,
        }
    }

    /// Makes the call. It must be refused with this code and message, change nothing, and leave the
    /// controller healthy.
    #[track_caller]
    fn expect<T: Debug>(
        &self,
        answer: impl FnOnce(&ControllerCalls) -> Result<T, Status>,
        code: Code,
        word: &str,
    ) {
        let before = World::around(&self.test_dir);
        let message = refused_with(answer(&self.calls), code, &[word]);
        before.expect_unchanged(&self.test_dir, &message);
        let list = self
            .calls
            .list(csi::ListVolumesRequest::default())
            .expect("the next call");
        let ids: Vec<_> = list
            .entries
            .into_iter()
            .filter_map(|entry| entry.volume)
            .collect();
        assert!(
            ids.len() == 1 && ids[0].volume_id == self.id,
            "{ids:?} after {message}"
        );
    }

    fn down(self) {
        let request = csi::DeleteVolumeRequest {
            volume_id: self.id,
            ..Default::default()
        };
        self.calls.delete(request).expect("delete");
        self.controller.terminate();
        self.test_dir.expect_nothing_left();
    }
}

type Order = csi::CreateVolumeRequest;

fn sized(required_bytes: i64, limit_bytes: i64) -> Order {
    Order {
        capacity_range: Some(range(required_bytes, limit_bytes)),
        ..order("wish")
    }
}

fn used(usages: &[csi::VolumeCapability]) -> Order {
    Order {
        volume_capabilities: usages.to_vec(),
        ..order("wish")
    }
}

fn named(name: &str, order: Order) -> Order {
    Order {
        name: name.to_owned(),
        ..order
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_without_a_proper_name_or_use_is_not_made() {
    let scene = Scene::new();
    let multi = with_mode(access("ext4"), Mode::MultiNodeMultiWriter);
    let (mut no_mode, mut neither) = (access("ext4"), access("ext4"));
    no_mode.access_mode = None;
    neither.access_type = None;
    for (order, word) in [
        (order(""), "name: is required"),
        (order(&"n".repeat(129)), "name: has 129 bytes"),
        (order("a\0b"), "name"),
        (used(&[]), "volume_capabilities"),
        (used(&[access("ext4"), access("block")]), "contradict"),
        (used(&[access("ext4"), access("xfs")]), "contradict"),
        (used(&[access("zfs")]), "zfs"),
        (used(&[access("ext4"), multi]), "volume_capabilities[1]"),
        (used(&[no_mode]), "access_mode"),
        (used(&[neither]), "must set block or mount"),
    ] {
        scene.expect(|calls| calls.create(order), InvalidArgument, word);
    }
    scene.down();
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_of_no_possible_size_is_not_made() {
    let scene = Scene::new();
    let (required, limit) = (
        "capacity_range.required_bytes",
        "capacity_range.limit_bytes",
    );
    for (order, code, word) in [
        (sized(2 * GIB, GIB), InvalidArgument, limit),
        (sized(-1, 0), InvalidArgument, required),
        (sized(0, -1), InvalidArgument, limit),
        (sized(0, 0), InvalidArgument, "capacity_range"),
        (sized(1, 4096), Code::OutOfRange, limit),
        (sized(i64::MAX, 0), Code::OutOfRange, required),
    ] {
        scene.expect(|calls| calls.create(order), code, word);
    }
    scene.down();
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_with_unknown_parameters_is_not_created() {
    use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
    let scene = Scene::new();
    let with = |parameters| Order {
        parameters,
        ..order("wish")
    };
    let from = |kind| Order {
        volume_content_source: Some(csi::VolumeContentSource { r#type: Some(kind) }),
        ..order("wish")
    };
    let volume_id = UNKNOWN.to_owned();
    let mut mutable = order("wish");
    mutable.mutable_parameters = entry("iops", "9");
    for (order, word) in [
        (with(entry("colour", "red")), "colour"),
        (with(entry("k", &"x".repeat(5000))), "parameters"),
        (mutable, "mutable_parameters"),
        (
            from(Type::Snapshot(SnapshotSource::default())),
            "snapshot_id",
        ),
    ] {
        scene.expect(|calls| calls.create(order), InvalidArgument, word);
    }
    let unknown = from(Type::Volume(VolumeSource { volume_id }));
    scene.expect(|calls| calls.create(unknown), NotFound, UNKNOWN);
    scene.down();
}

#[test]
#[ignore = "needs root: make test"]
fn a_name_that_belongs_to_another_kind_of_volume_is_refused() {
    let scene = Scene::new();
    for other in [
        used(&[access("block")]),
        used(&[access("xfs")]),
        sized(2 * GIB, 0),
        sized(0, GIB / 2),
    ] {
        let order = named("kept", other);
        scene.expect(|calls| calls.create(order), Code::AlreadyExists, "kept");
    }
    scene.down();
}

/// IDs that no volume has; only the first two are not valid IDs at all.
const NO_IDS: [(&str, Code, &str); 5] = [
    ("", InvalidArgument, "volume_id: is required"),
    ("vol\n", InvalidArgument, "volume_id"),
    (UNKNOWN, NotFound, UNKNOWN),
    ("../state.redb", NotFound, "../state.redb"),
    ("..", NotFound, ".."),
];

#[test]
#[ignore = "needs root: make test"]
fn a_volume_that_is_not_there_is_refused_by_every_call_that_needs_one() {
    let scene = Scene::new();
    let long = "v".repeat(129);
    let too_long = (long.as_str(), InvalidArgument, "volume_id: has 129 bytes");
    for (id, code, word) in NO_IDS.into_iter().chain([too_long]) {
        let volume_id = || id.to_owned();
        let validate = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: volume_id(),
            volume_capabilities: vec![access("ext4")],
            ..Default::default()
        };
        scene.expect(|calls| calls.validate(validate), code, word);
        let get = csi::ControllerGetVolumeRequest {
            volume_id: volume_id(),
        };
        scene.expect(|calls| calls.get(get), code, word);
        let expand = csi::ControllerExpandVolumeRequest {
            volume_id: volume_id(),
            capacity_range: Some(range(2 * GIB, 0)),
            ..Default::default()
        };
        scene.expect(|calls| calls.expand(expand), code, word);
    }
    scene.down();
}

#[test]
#[ignore = "needs root: make test"]
fn what_is_not_there_is_deleted_already_and_nothing_else_is_touched() {
    let scene = Scene::new();
    for (id, code, word) in NO_IDS {
        let delete = csi::DeleteVolumeRequest {
            volume_id: id.to_owned(),
            ..Default::default()
        };
        if code == InvalidArgument {
            scene.expect(|calls| calls.delete(delete), code, word);
            continue;
        }
        let before = World::around(&scene.test_dir);
        scene.calls.delete(delete).expect("it is deleted already");
        before.expect_unchanged(&scene.test_dir, id);
    }
    scene.down();
}

#[test]
#[ignore = "needs root: make test"]
fn an_expansion_to_no_possible_size_is_refused() {
    let scene = Scene::new();
    let id = || scene.id.clone();
    for (required, limit, code, word) in [
        (2 * GIB, GIB, InvalidArgument, "capacity_range.limit_bytes"),
        (-1, 0, InvalidArgument, "capacity_range.required_bytes"),
        (0, 0, InvalidArgument, "capacity_range"),
        (1, GIB / 2, Code::OutOfRange, "capacity_range.limit_bytes"),
        (
            i64::MAX,
            0,
            Code::OutOfRange,
            "capacity_range.required_bytes",
        ),
    ] {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: id(),
            capacity_range: Some(range(required, limit)),
            ..Default::default()
        };
        scene.expect(|calls| calls.expand(request), code, word);
    }
    let no_range = csi::ControllerExpandVolumeRequest {
        volume_id: id(),
        ..Default::default()
    };
    scene.expect(
        |calls| calls.expand(no_range),
        InvalidArgument,
        "capacity_range",
    );
    scene.down();
}

#[test]
#[ignore = "needs root: make test"]
fn a_question_that_makes_no_sense_is_refused() {
    let scene = Scene::new();
    let nothing = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: scene.id.clone(),
        ..Default::default()
    };
    scene.expect(
        |calls| calls.validate(nothing),
        InvalidArgument,
        "volume_capabilities",
    );
    let page = |max_entries, token: &str| csi::ListVolumesRequest {
        max_entries,
        starting_token: token.to_owned(),
    };
    scene.expect(
        |calls| calls.list(page(-1, "")),
        InvalidArgument,
        "max_entries",
    );
    scene.expect(
        |calls| calls.list(page(1, "no such token")),
        Code::Aborted,
        "starting_token",
    );
    scene.down();
}
