//! Several drivers in one agent: each has its own name, socket and volumes, and none can affect
//! another's.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::mount::MountPropagationFlags;
use tonic::Code;

use crate::kubelet_dir::Mount;
use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{
    Fuse, Kubelet, NodeCalls, Pages, Process, TestDir, Volume, access, least_bytes, mounts_of,
    probe, refused, until,
};

const NAMES: [&str; 2] = ["local.csi.belay.dev", "fast.belay.dev"];

/// The node IDs of the drivers; the first driver uses the node's name.
const NODE_IDS: [&str; 2] = ["node-1", "4711"];

/// An agent with the two drivers of [`NAMES`].
struct Bed {
    agent: Process,
    kubelet: Kubelet,
    test_dir: TestDir,
}

impl Bed {
    fn new() -> Self {
        let test_dir = TestDir::new();
        for name in NAMES {
            test_dir.directory(name);
        }
        Self::at(test_dir)
    }

    fn at(test_dir: TestDir) -> Self {
        let kubelet = Kubelet::start(&test_dir.path().join("registry"));
        let agent = start(&test_dir, &flags(&test_dir));
        Bed {
            agent,
            kubelet,
            test_dir,
        }
    }

    /// Kills the agent, and starts another with these additional flags.
    fn restarted(self, more: &[String]) -> Self {
        let Bed {
            agent,
            kubelet,
            test_dir,
        } = self;
        drop(agent);
        let agent = start(&test_dir, &[more, &flags(&test_dir)].concat());
        Bed {
            agent,
            kubelet,
            test_dir,
        }
    }

    fn node(&self, driver: usize) -> NodeCalls {
        NodeCalls::new(socket(&self.test_dir, driver))
    }

    /// Returns a volume of the driver. The volumes of all drivers have the same ID.
    fn volume(&self, driver: usize, bytes: u64) -> Volume {
        self.named(driver, "vol-0123456789abcdef0123456789abcdef", bytes)
    }

    fn named(&self, driver: usize, id: &str, bytes: u64) -> Volume {
        let name = NAMES[driver];
        let volumes = self.test_dir.path().join(name);
        let id = id.to_owned();
        let volume = Volume::made(&self.test_dir.directory(format!("of-{name}")), &volumes, id);
        let file = std::fs::File::create_new(&volume.file).expect("a new file");
        file.set_len(bytes).expect("ftruncate");
        volume.mark_new();
        volume
    }
}

fn socket(test_dir: &TestDir, driver: usize) -> PathBuf {
    test_dir.path().join(format!("{}.sock", NAMES[driver]))
}

/// Returns all flags except the first `--endpoint`, which the starter of the agent passes.
fn flags(test_dir: &TestDir) -> Vec<String> {
    let path = |path: &Path| path.display().to_string();
    let of_driver = |driver: usize| {
        let socket = path(&socket(test_dir, driver));
        let loop_dir = path(&test_dir.path().join(NAMES[driver]));
        vec![
            format!("--driver-name={}", NAMES[driver]),
            format!("--kubelet-registration-path={socket}"),
            format!("--loop-dir={loop_dir}"),
            format!("--max-volumes={}", driver + 1),
        ]
    };
    let mut flags = vec![
        "--http-endpoint=127.0.0.1:0".to_owned(),
        format!("--node-name={}", NODE_IDS[0]),
        format!(
            "--registration-dir={}",
            path(&test_dir.path().join("registry"))
        ),
    ];
    flags.extend(of_driver(0));
    flags.push("--next-driver".to_owned());
    flags.push(format!("--endpoint={}", path(&socket(test_dir, 1))));
    flags.extend(of_driver(1));
    flags.push(format!("--node-id={}", NODE_IDS[1]));
    flags
}

fn start(test_dir: &TestDir, flags: &[String]) -> Process {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Process::start(test_dir, "belay-node", &socket(test_dir, 0), &flags)
}

#[test]
#[ignore = "needs root: make test"]
fn each_driver_registers_has_its_own_limits_and_goes_with_the_agent() {
    let mut bed = Bed::new();
    let pages = Pages::of(&bed.agent);
    let sockets = NAMES.map(|name| {
        bed.test_dir
            .path()
            .join(format!("registry/{name}-reg.sock"))
    });
    for (driver, name) in NAMES.into_iter().enumerate() {
        assert_eq!(pages.health().0, 503, "{name} is not registered yet");
        bed.kubelet.node_id = NODE_IDS[driver];
        assert_eq!(bed.kubelet.registers(&sockets[driver]).name, name);
        let info = bed.node(driver).info(Default::default()).expect("info");
        assert_eq!(info.max_volumes_per_node, if driver == 0 { 1 } else { 2 });
    }
    until("all drivers are registered", || pages.health().0 == 200);
    for name in NAMES {
        let registered = format!("belay_kubelet_registered{{driver=\"{name}\"}}");
        assert_eq!(pages.metric(&registered).as_deref(), Some("1"));
    }
    bed.agent.terminate();
    for (driver, registration) in sockets.iter().enumerate() {
        assert!(!registration.exists());
        assert!(UnixStream::connect(socket(&bed.test_dir, driver)).is_err());
    }
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_of_one_id_of_two_drivers_are_never_mixed_up() {
    let bed = Bed::new();
    let (node, other_node) = (bed.node(0), bed.node(1));
    let volume = bed.volume(0, least_bytes("ext4"));
    let other = bed.volume(1, least_bytes("xfs"));
    let (target, other_target) = (volume.target("data"), other.target("data"));
    for (node, volume, target, kind) in [
        (&node, &volume, &target, "ext4"),
        (&other_node, &other, &other_target, "xfs"),
    ] {
        node.stage(volume.stage(access(kind))).expect("stage");
        node.publish(volume.publish(target, access(kind)))
            .expect("publish");
    }
    leave_words("ext4", &target);
    assert!(!other_target.join("words").exists());

    // The request reaches the wrong driver, which has a volume with this ID, but not the mounted
    // one.
    refused(
        other_node.stage(volume.stage(access("ext4"))),
        Code::AlreadyExists,
    );
    refused(other_node.stats(volume.stats(&target)), Code::NotFound);
    other_node
        .unpublish(volume.unpublish(&target))
        .expect_err("another driver's volume stays mounted");
    other_node
        .unstage(volume.unstage())
        .expect_err("another driver's volume stays staged");
    expect_words("ext4", &target);

    volume.down(&node, &[&target]);
    expect_nothing_at(&target);
    other_node.stats(other.stats(&other_target)).expect("stats");
    other.down(&other_node, &[&other_target]);
    drop(bed.agent);
    bed.test_dir.expect_nothing_left();
}

fn expect_nothing_at(target: &Path) {
    assert!(!target.exists(), "{} was removed", target.display());
}

#[test]
#[ignore = "needs root: make test"]
fn a_restarted_agent_finds_the_volumes_of_all_its_drivers() {
    let bed = Bed::new();
    let volumes = [0, 1].map(|driver| bed.volume(driver, least_bytes("block")));
    let targets = [0, 1].map(|driver| volumes[driver].target("disk"));
    for driver in [0, 1] {
        let (node, volume) = (bed.node(driver), &volumes[driver]);
        node.stage(volume.stage(access("block"))).expect("stage");
        node.publish(volume.publish(&targets[driver], access("block")))
            .expect("publish");
        leave_words("block", &targets[driver]);
    }
    let bed = bed.restarted(&[]);
    for driver in [0, 1] {
        let (node, volume) = (bed.node(driver), &volumes[driver]);
        node.stats(volume.stats(&targets[driver])).expect("stats");
        expect_words("block", &targets[driver]);
        volume.down(&node, &[&targets[driver]]);
    }
    drop(bed.agent);
    bed.test_dir.expect_nothing_left();
}

/// Checks that the first driver works; that the second responds to calls that need no disk and
/// reports the reason everywhere; and that it is not registered with the kubelet.
fn expect_the_second_waits(bed: &mut Bed, why: &str) {
    let (pages, words) = (Pages::of(&bed.agent), [NAMES[1], "--loop-dir", why]);
    let says_so = |text: &str| words.iter().all(|word| text.contains(word));
    let registration = |driver: usize| {
        let name = format!("registry/{}-reg.sock", NAMES[driver]);
        bed.test_dir.path().join(name)
    };
    bed.kubelet.registers(&registration(0));
    until("the first driver is registered", || {
        let registered = |driver: usize| {
            let name = format!("belay_kubelet_registered{{driver=\"{}\"}}", NAMES[driver]);
            pages.metric(&name)
        };
        assert_eq!(registered(1).as_deref(), Some("0"));
        registered(0).as_deref() == Some("1")
    });
    assert!(!registration(1).exists());
    let (status, page) = pages.health();
    assert!(status == 503 && says_so(&page), "{page}");
    assert_eq!(pages.life().0, 200);

    assert!(is_ready(bed, 0) && !is_ready(bed, 1));
    bed.node(1).info(Default::default()).expect("info");
    let volume = Volume::made(bed.test_dir.path(), bed.test_dir.path(), "vol-1".to_owned());
    let target = volume.target("a");
    let node = bed.node(1);
    let answers = [
        node.unpublish(volume.unpublish(&target)).err(),
        node.unstage(volume.unstage()).err(),
        node.stats(volume.stats(&target)).err(),
    ];
    for refused in answers.map(|answer| answer.expect("a refusal")) {
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(says_so(refused.message()), "{refused}");
    }
    expect_a_life(bed, 0);
}

fn is_ready(bed: &Bed, driver: usize) -> bool {
    let answer = probe(&socket(&bed.test_dir, driver));
    // The socket may not exist yet.
    answer.is_ok_and(|answer| answer.ready.expect("always set"))
}

fn expect_a_life(bed: &Bed, driver: usize) {
    let (node, volume) = (bed.node(driver), bed.volume(driver, least_bytes("ext4")));
    let target = volume.target("a");
    node.stage(volume.stage(access("ext4"))).expect("stage");
    node.publish(volume.publish(&target, access("ext4")))
        .expect("publish");
    leave_words("ext4", &target);
    volume.down(&node, &[&target]);
    std::fs::remove_file(&volume.file).expect("unlink");
}

fn expect_both(bed: &mut Bed) {
    until("the second driver has come up", || is_ready(bed, 1));
    let registration = bed
        .test_dir
        .path()
        .join(format!("registry/{}-reg.sock", NAMES[1]));
    until("it is offered to the kubelet", || registration.exists());
    bed.kubelet.node_id = NODE_IDS[1];
    bed.kubelet.registers(&registration);
    let pages = Pages::of(&bed.agent);
    until("all drivers are registered", || pages.health().0 == 200);
    for driver in [0, 1] {
        expect_a_life(bed, driver);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_driver_whose_directory_is_created_later_comes_up_then_and_blocks_no_other() {
    let test_dir = TestDir::new();
    test_dir.directory(NAMES[0]);
    let mut bed = Bed::at(test_dir);
    expect_the_second_waits(&mut bed, "No such file or directory");
    bed.test_dir.directory(NAMES[1]);
    expect_both(&mut bed);
    drop(bed.agent);
    bed.test_dir.expect_nothing_left();
}

#[test]
#[ignore = "needs root: make test"]
fn a_driver_whose_disk_fails_or_hangs_at_the_start_blocks_no_other() {
    let test_dir = TestDir::new();
    test_dir.directory(NAMES[0]);
    let mut fuse = Fuse::mount(&test_dir, "file");
    let directory = test_dir.path().join(NAMES[1]);
    symlink(fuse.point().join("directory"), &directory).expect("symlink");
    fuse.silence();
    let mut bed = Bed::at(test_dir);
    expect_the_second_waits(&mut bed, "does not answer");
    // The hung thread returns with an error.
    drop(fuse);
    let pages = Pages::of(&bed.agent);
    until("its disk has failed", || {
        let page = pages.health().1;
        !page.contains("does not answer") && page.contains(NAMES[1])
    });
    std::fs::remove_file(&directory).expect("unlink");
    bed.test_dir.directory(NAMES[1]);
    expect_both(&mut bed);
    drop(bed.agent);
    bed.test_dir.expect_nothing_left();
}

/// A number of calls that exceeds the agent's threads for changes of one driver, including hung
/// ones.
const HUNG: usize = 70;

#[test]
#[ignore = "needs root: make test"]
fn a_driver_whose_calls_hang_on_all_its_threads_blocks_no_other() {
    let test_dir = TestDir::new();
    test_dir.directory(NAMES[0]);
    let mut fuse = Fuse::mount(&test_dir, "file");
    symlink(fuse.point(), test_dir.path().join(NAMES[1])).expect("symlink");
    let bed = Bed::at(test_dir);
    until("the second driver has come up", || is_ready(&bed, 1));
    fuse.silence();
    let directory = bed.test_dir.directory("hung");
    let hung: Vec<_> = (0..HUNG)
        .map(|number| {
            let volume = Volume::made(&directory, &directory, format!("vol-{number}"));
            let (node, request) = (bed.node(1), volume.unstage());
            thread::spawn(move || node.unstage(request))
        })
        .collect();
    let pages = Pages::of(&bed.agent);
    until("no thread is left to the second driver", || {
        let waiting = pages.metric("belay_pool_waiting");
        let slow = pages.metric(r#"belay_pool_threads{state="slow"}"#);
        // One more thread may be measuring the storage for the page.
        waiting.is_some_and(|count| count != "0") && matches!(slow.as_deref(), Some("64" | "65"))
    });
    expect_a_life(&bed, 0);
    assert!(hung.iter().all(|call| !call.is_finished()));
    drop(fuse);
    for call in hung {
        drop(call.join().expect("no panic"));
    }
    drop(bed.agent);
    bed.test_dir.expect_nothing_left();
}

#[test]
#[ignore = "needs root: make test"]
fn two_drivers_whose_directories_turn_out_to_be_one_are_never_both_served() {
    let test_dir = TestDir::new();
    let (first, second) = (test_dir.directory(NAMES[0]), test_dir.path().join(NAMES[1]));
    let bed = Bed::at(test_dir);
    symlink(first, &second).expect("symlink");
    let pages = Pages::of(&bed.agent);
    until("it is noticed", || {
        pages.health().1.contains("another driver has it")
    });
    assert!(is_ready(&bed, 0) && !is_ready(&bed, 1));
    std::fs::remove_file(&second).expect("unlink");
    bed.test_dir.directory(NAMES[1]);
    until("the second driver has come up", || is_ready(&bed, 1));
    for driver in [0, 1] {
        expect_a_life(&bed, driver);
    }
    drop(bed.agent);
    bed.test_dir.expect_nothing_left();
}

#[test]
#[ignore = "needs root: make test"]
fn two_drivers_with_one_directory_are_refused() {
    let test_dir = TestDir::new();
    for name in NAMES {
        test_dir.directory(name);
    }
    Kubelet::start(&test_dir.path().join("registry"));
    let (first, second) = (
        test_dir.path().join(NAMES[0]),
        test_dir.path().join(NAMES[1]),
    );
    std::fs::remove_dir(&second).expect("rmdir");
    std::os::unix::fs::symlink(&first, &second).expect("symlink");
    let flags = flags(&test_dir);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let reported = Process::refused(&test_dir, "belay-node", &socket(&test_dir, 0), &flags);
    assert!(
        reported.contains("another driver has it") && reported.contains(NAMES[1]),
        "{reported}"
    );
}

/// Returns the path at which the kubelet stages a driver's volume.
fn staging(kubelet: &Path, driver: usize, volume: &Volume) -> PathBuf {
    let plugin = kubelet.join("plugins/kubernetes.io/csi");
    plugin
        .join(NAMES[driver])
        .join(&volume.id)
        .join("globalmount")
}

#[test]
#[ignore = "needs root: make test"]
fn a_deletion_for_one_driver_takes_nothing_down_that_is_another_drivers() {
    let bed = Bed::new();
    let kubelet = bed.test_dir.directory("kubelet");
    let mount = Mount::of(&bed.test_dir, MountPropagationFlags::SHARED);
    let more = [format!("--kubelet-dir={}", kubelet.display())];
    let bed = bed.restarted(&more);
    let mut volume = bed.volume(0, least_bytes("ext4"));
    let other = bed.volume(1, least_bytes("ext4"));
    let mut last = bed.named(1, "vol-last", least_bytes("ext4"));
    for (driver, volume) in [(0, &mut volume), (1, &mut last)] {
        volume.staging = staging(&kubelet, driver, volume);
        std::fs::create_dir_all(&volume.staging).expect("mkdir");
        let stage = volume.stage(access("ext4"));
        bed.node(driver).stage(stage).expect("stage");
    }
    std::fs::remove_file(&volume.file).expect("unlink");
    let bed = bed.restarted(&more);
    until("the other driver has looked", || {
        // An agent that has just started may not watch the directory yet, so repeat the claim.
        other.claim_to_delete();
        last.claim_to_delete();
        !is_staged(&last)
    });
    assert!(is_staged(&volume), "it was unstaged without a request");
    bed.node(0).unstage(volume.unstage()).expect("unstage");
    drop(bed.agent);
    drop(mount);
    bed.test_dir.expect_nothing_left();
}

fn is_staged(volume: &Volume) -> bool {
    let mounts = mounts_of("self");
    mounts.iter().any(|mount| mount.point == volume.staging)
}
