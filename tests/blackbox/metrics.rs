//! The metrics of both programs: well-formed, and exactly as in docs/metrics.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use belay_proto::csi::v1 as csi;
use tonic::Code;

use crate::rig::{
    ControllerCalls, NodeCalls, Process, Prometheus, TestDir, access, get, least_bytes, lint,
    refused, until,
};

const DOCUMENTATION: &str = include_str!("../../docs/metrics.md");
const PROGRAMS: [&str; 2] = ["belay-node", "belay-controller"];
/// The maximum size of a page, far more than both programs need for one volume; a label per volume
/// would exceed it eventually.
const PAGE_BYTES_MAX: usize = 256 << 10;

/// Both programs on one directory of volumes.
struct Pair {
    controller: ControllerCalls,
    node: NodeCalls,
    processes: [(Process, SocketAddr); 2],
}

impl Pair {
    fn start(test_dir: &TestDir) -> Self {
        let state = test_dir.directory("state");
        let volumes = state.join("volumes");
        let (state, volumes) = (text(&state), text(&volumes));
        let start = |name: &str, flags: &[&str]| {
            let socket = test_dir.path().join(format!("{name}.sock"));
            let common = ["--node-id", "node-1", "--http-endpoint", "127.0.0.1:0"];
            let process = Process::start(test_dir, name, &socket, &[&common, flags].concat());
            let address = http_address(&process);
            (socket, (process, address))
        };
        // The controller creates the directory that the agent opens.
        let state_dir = ["--backend", "local", "--state-dir", &state];
        let (controller, its_process) = start("belay-controller", &state_dir);
        let registry = text(&test_dir.directory("plugins_registry"));
        let mut flags = vec!["--loop-dir", &volumes, "--registration-dir", &registry];
        flags.extend(["--kubelet-registration-path", "/run/belay/node.sock"]);
        let (node, process) = start("belay-node", &flags);
        Pair {
            controller: ControllerCalls::new(controller),
            node: NodeCalls::new(node),
            processes: [process, its_process],
        }
    }

    /// Returns the name and address of each program, in the order of [`PROGRAMS`].
    fn jobs(&self) -> [(&'static str, SocketAddr); 2] {
        [0, 1].map(|n| (PROGRAMS[n], self.processes[n].1))
    }

    /// Creates a volume. Returns the ID.
    fn create(&self, name: &str, fs: &str) -> String {
        let volume = self.controller.create(csi::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(capacity(least_bytes(fs))),
            volume_capabilities: vec![access(fs)],
            ..Default::default()
        });
        volume.expect("create").volume.expect("a volume").volume_id
    }

    fn delete(&self, id: &str) {
        let delete = csi::DeleteVolumeRequest {
            volume_id: id.to_owned(),
            ..Default::default()
        };
        self.controller.delete(delete).expect("delete");
    }
}

/// Returns the address of the pages: with port 0, the kernel selects a free port, which the log
/// shows.
fn http_address(process: &Process) -> SocketAddr {
    let mut address = None;
    until("it shows /metrics", || {
        let log = process.last_words();
        let line = log.lines().find(|line| line.contains("serving /metrics"));
        let found = line.and_then(|line| line.split("address=").nth(1));
        address = found.and_then(|found| found.trim().parse().ok());
        address.is_some()
    });
    address.expect("an address")
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

fn capacity(bytes: u64) -> csi::CapacityRange {
    csi::CapacityRange {
        required_bytes: i64::try_from(bytes).expect("a size"),
        limit_bytes: 0,
    }
}

/// Runs a volume's whole lifecycle.
fn live(pair: &Pair, test_dir: &TestDir) {
    let id = pair.create("measured", "xfs");
    let staging = text(&test_dir.directory("staging/measured"));
    let target = text(&test_dir.directory("pod").join("target"));
    let stage = csi::NodeStageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: staging.clone(),
        volume_capability: Some(access("xfs")),
        ..Default::default()
    };
    pair.node.stage(stage).expect("stage");
    let publish = csi::NodePublishVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: staging.clone(),
        target_path: target.clone(),
        volume_capability: Some(access("xfs")),
        ..Default::default()
    };
    pair.node.publish(publish).expect("publish");
    let stats = csi::NodeGetVolumeStatsRequest {
        volume_id: id.clone(),
        volume_path: target.clone(),
        ..Default::default()
    };
    pair.node.stats(stats).expect("stats");
    let larger = capacity(2 * least_bytes("xfs"));
    let expand = csi::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: Some(larger),
        volume_capability: Some(access("xfs")),
        ..Default::default()
    };
    pair.controller.expand(expand).expect("expand");
    let expand = csi::NodeExpandVolumeRequest {
        volume_id: id.clone(),
        volume_path: target.clone(),
        staging_target_path: staging.clone(),
        capacity_range: Some(larger),
        volume_capability: Some(access("xfs")),
        ..Default::default()
    };
    pair.node.expand(expand).expect("expand on the node");
    let unpublish = csi::NodeUnpublishVolumeRequest {
        volume_id: id.clone(),
        target_path: target,
    };
    pair.node.unpublish(unpublish).expect("unpublish");
    let unstage = csi::NodeUnstageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: staging,
    };
    pair.node.unstage(unstage).expect("unstage");
    pair.delete(&id);
}

/// Stages a volume with unknown content, which is refused because it would have to be formatted.
fn be_refused(pair: &Pair, test_dir: &TestDir) {
    let id = pair.create("foreign", "ext4");
    let path = test_dir.path().join("state/volumes").join(&id);
    let file = File::options().write(true).open(path).expect("open");
    file.write_all_at(b"somebody's", 5 << 20).expect("write");
    file.sync_all().expect("fsync");
    // A file that another process has open is not staged, whatever its content.
    drop(file);
    let stage = csi::NodeStageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: text(&test_dir.directory("staging/foreign")),
        volume_capability: Some(access("ext4")),
        ..Default::default()
    };
    refused(pair.node.stage(stage), Code::FailedPrecondition);
    pair.delete(&id);
}

/// The type of a metric, and the names of its labels.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shape {
    kind: String,
    labels: BTreeSet<String>,
}

/// The metrics by program, then by name.
type Shapes = BTreeMap<&'static str, BTreeMap<String, Shape>>;

/// Reads the documented table: rows of name, type, labels, program, meaning. Omits metrics that
/// only disks have, since no driver of these programs uses disks.
fn documented() -> Shapes {
    let mut shapes: Shapes = PROGRAMS.map(|program| (program, BTreeMap::new())).into();
    for line in DOCUMENTATION.lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let Some(name) = cells[0].strip_prefix("| `") else {
            continue;
        };
        let [_, kind, labels, program, _] = cells[..] else {
            panic!("a row that is not name, type, labels, program, meaning: {line}");
        };
        let names = labels.split('`').skip(1).step_by(2);
        for (shown_by, shapes) in &mut shapes {
            if program == "both" || *shown_by == format!("belay-{program}") {
                let shape = Shape {
                    kind: kind.to_owned(),
                    labels: names.clone().map(str::to_owned).collect(),
                };
                let name = name.trim_end_matches('`').to_owned();
                assert!(shapes.insert(name, shape).is_none(), "twice: {line}");
            }
        }
    }
    shapes
}

/// Returns the metrics of a page.
fn exported(page: &str) -> BTreeMap<String, Shape> {
    let mut shapes: BTreeMap<String, Shape> = BTreeMap::new();
    let mut family = String::new();
    for line in page.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').expect("a type");
            family = name.to_owned();
            shapes.entry(family.clone()).or_default().kind = kind.to_owned();
        } else if !line.is_empty() && !line.starts_with('#') {
            assert!(line.starts_with(&family), "{line:?} below {family}");
            let labels = line.split_once('{').map_or("", |(_, labels)| labels);
            let names = labels.split("=\"").filter_map(|text| {
                let name = text.rsplit(['{', ',', '"']).next()?;
                (!name.contains('}')).then(|| name.to_owned())
            });
            let shape = shapes.entry(family.clone()).or_default();
            shape
                .labels
                .extend(names.filter(|name| !["", "le"].contains(&name.as_str())));
        }
    }
    shapes
}

#[test]
#[ignore = "needs root: make test"]
fn prometheus_gets_exactly_what_the_documentation_says() {
    let test_dir = TestDir::new();
    let pair = Pair::start(&test_dir);
    let prometheus = Prometheus::start(&test_dir, &pair.jobs());
    // Scrape once before any call: otherwise, the first refusal would not be an increase.
    until("both are scraped", || {
        prometheus.query("up == 1").len() == 2
    });
    // Run the lifecycle twice, since a rate needs two values of a series.
    live(&pair, &test_dir);
    until("the first life is scraped", || {
        let deleted = "belay_rpc_duration_seconds_count{rpc=\"DeleteVolume\"} == 1";
        let unstaged = "belay_rpc_duration_seconds_count{rpc=\"NodeUnstageVolume\"} == 1";
        [deleted, unstaged].map(|query| prometheus.query(query).len()) == [1, 1]
    });
    live(&pair, &test_dir);
    be_refused(&pair, &test_dir);

    let mut shown = Shapes::new();
    for (program, address) in pair.jobs() {
        // An agent that is not registered serves this page, too.
        let life = get(address, "/livez");
        assert_eq!(life.as_deref(), Some("ok\n"), "{program}");
        let page = get(address, "/metrics").expect("a page");
        lint(&page);
        assert!(
            page.len() < PAGE_BYTES_MAX,
            "{program}: {} bytes",
            page.len()
        );
        for secret in ["vol-", "measured", "foreign-"] {
            assert!(
                !page.contains(secret),
                "{program} shows {secret:?}:\n{page}"
            );
        }
        shown.insert(program, exported(&page));
    }
    assert_eq!(shown, documented(), "shown, and documented");

    until("the last call is scraped", || {
        let deleted = "belay_rpc_duration_seconds_count{rpc=\"DeleteVolume\"} == 3";
        let refused = "belay_format_refusals_total{reason=\"foreign\"} == 1";
        [deleted, refused].map(|query| prometheus.query(query).len()) == [1, 1]
    });
    for (program, shapes) in documented() {
        for (name, shape) in shapes {
            let series = match shape.kind.as_str() {
                "histogram" => format!("{name}_count"),
                _ => name,
            };
            let found = prometheus.query(&format!("{series}{{job=\"{program}\"}}"));
            assert!(!found.is_empty(), "{program}: no sample of {series}");
        }
    }
    drop(prometheus);
    for (process, _) in pair.processes {
        process.terminate();
    }
    test_dir.expect_nothing_left();
}
