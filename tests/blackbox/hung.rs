//! A disk that does not respond: the filesystem below the volumes' files is frozen, so that every
//! writer waits in the kernel, for as long as the test needs.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use belay_proto::csi::v1 as csi;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Signal;
use tonic::{Code, Status};

use crate::rig::{
    Answer, Frozen, Kubelet, Launch, Process, Rig, TestDir, Volume, access, free_port, get,
    least_bytes, mount_image, probe, refused_with, run, text, until,
};

/// The number of hung volumes, more than the slots of the agent's pool.
const HUNG: usize = 8;

/// The disk of the volumes' files.
struct Disk {
    point: PathBuf,
}

impl Disk {
    fn mount(test_dir: &TestDir) -> Self {
        let disk = test_dir.path().join("disk");
        File::create_new(&disk)
            .and_then(|file| file.set_len(8 << 30))
            .expect("a disk");
        let point = test_dir.directory("storage");
        run("mkfs.ext4", &["-q", text(&disk)]);
        mount_image(&disk, &point, "loop");
        Disk { point }
    }

    fn freeze(&self) -> Frozen {
        Frozen::at(&self.point)
    }
}

/// Returns a volume that is staged and published, with data that is not on the disk yet.
fn up(rig: &Rig) -> Volume {
    let (node, volume) = (rig.node(), rig.volume(least_bytes("ext4")));
    let target = volume.target("a");
    node.stage(volume.stage(access("ext4"))).expect("stage");
    node.publish(volume.publish(&target, access("ext4")))
        .expect("publish");
    node.stats(volume.stats(&target)).expect("stats");
    volume
}

type Caller<T> = JoinHandle<Answer<T>>;

/// Starts a caller in a separate thread, which retries while a query of [`is_in`] is in progress.
fn caller<T: Send + 'static>(act: impl Fn() -> Answer<T> + Send + 'static) -> Caller<T> {
    thread::spawn(move || {
        loop {
            let answer = act();
            let again = |reported: &Status| reported.message().contains("is in progress");
            if !answer.as_ref().is_err_and(again) {
                return answer;
            }
        }
    })
}

fn unstage(rig: &Rig, volume: &Volume) -> Caller<csi::NodeUnstageVolumeResponse> {
    let (node, request) = (rig.node(), volume.unstage());
    caller(move || node.unstage(request.clone()))
}

fn stage(rig: &Rig, volume: &Volume) -> Caller<csi::NodeStageVolumeResponse> {
    let (node, request) = (rig.node(), volume.stage(access("ext4")));
    caller(move || node.stage(request.clone()))
}

/// Waits until the volume's job is in this phase. Queries it with a call that changes nothing.
fn is_in(rig: &Rig, volume: &Volume, phase: &str) {
    let in_phase = format!("now in {phase}");
    until(&in_phase, || {
        let question = volume.unpublish(&volume.target("none"));
        rig.node().unpublish(question).is_err_and(|reported| {
            assert_eq!(reported.code(), Code::Aborted, "{reported}");
            reported.message().contains(&in_phase)
        })
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_disk_that_does_not_answer_blocks_only_its_own_volumes() {
    let test_dir = TestDir::new();
    let disk = Disk::mount(&test_dir);
    let mut rig = Rig::with_volumes_in(test_dir, disk.point.clone());
    let node = rig.node();
    let sound = up(&rig);
    let volumes: Vec<Volume> = (0..HUNG).map(|_| up(&rig)).collect();
    run("sync", &["--file-system", text(&disk.point)]);
    for volume in &volumes {
        fs::write(volume.target("a").join("late"), vec![1; 1 << 20]).expect("write");
        let request = volume.unpublish(&volume.target("a"));
        node.unpublish(request).expect("unpublish");
    }
    let frozen = disk.freeze();
    let hung: Vec<_> = volumes.iter().map(|volume| unstage(&rig, volume)).collect();
    // Only a call on a thread reports its phase, so each call has a thread once all report theirs.
    for volume in &volumes {
        is_in(&rig, volume, "unmount");
    }

    // Calls that need no write continue, on the same threads.
    let (first, second) = (sound.target("a"), sound.target("b"));
    for _ in 0..3 {
        node.stats(sound.stats(&first)).expect("stats");
        node.publish(sound.publish(&second, access("ext4")))
            .expect("publish");
        node.unpublish(sound.unpublish(&second)).expect("unpublish");
    }
    for unstage in &hung {
        assert!(!unstage.is_finished(), "the disk is frozen");
    }
    if std::env::var_os("BELAY_NIGHTLY").is_some() {
        error_at_the_deadline(&rig, &volumes[0], hung);
        drop(frozen);
    } else {
        drop(frozen);
        for unstage in hung {
            unstage.join().expect("no panic").expect("unstage");
        }
    }

    for volume in &volumes {
        node.unstage(volume.unstage()).expect("unstage again");
    }
    sound.down(&node, &[&first]);
    rig.kill();
    run("umount", &[text(&disk.point)]);
    rig.test_dir().expect_nothing_left();
}

/// The agent reads the statistics of ext4 and xfs on its main thread, which must never wait.
#[test]
#[ignore = "needs root: make test"]
fn statistics_of_frozen_filesystems_and_of_one_on_a_frozen_disk_are_answered() {
    let test_dir = TestDir::new();
    let disk = Disk::mount(&test_dir);
    let mut rig = Rig::with_volumes_in(test_dir, disk.point.clone());
    let node = rig.node();
    let volumes = ["ext4", "xfs"].map(|fs_type| {
        let volume = rig.volume(least_bytes(fs_type));
        let target = volume.target("a");
        node.stage(volume.stage(access(fs_type))).expect("stage");
        let request = volume.publish(&target, access(fs_type));
        node.publish(request).expect("publish");
        // Write data that is not on the disk yet.
        fs::write(target.join("late"), vec![1; 1 << 20]).expect("write");
        volume
    });
    let ask = || {
        for volume in &volumes {
            let answer = node
                .stats(volume.stats(&volume.target("a")))
                .expect("stats");
            assert!(!answer.usage.is_empty());
        }
    };
    for volume in &volumes {
        let frozen = Frozen::at(&volume.staging);
        let file = volume.target("a").join("later");
        let writer = thread::spawn(move || fs::write(file, vec![1; 1 << 20]));
        ask();
        ask();
        drop(frozen);
        writer.join().expect("no panic").expect("write");
    }
    let frozen = disk.freeze();
    let syncs = volumes.each_ref().map(|volume| {
        let root = File::open(volume.target("a")).expect("open");
        thread::spawn(move || rustix::fs::syncfs(root))
    });
    ask();
    ask();
    drop(frozen);
    for sync in syncs {
        sync.join().expect("no panic").expect("syncfs");
    }
    for volume in &volumes {
        volume.down(&node, &[&volume.target("a")]);
    }
    rig.kill();
    run("umount", &[text(&disk.point)]);
    rig.test_dir().expect_nothing_left();
}

#[test]
#[ignore = "needs root: make test"]
fn an_unstage_cancels_a_stage_that_waits_for_others() {
    let test_dir = TestDir::new();
    let disk = Disk::mount(&test_dir);
    let mut rig = Rig::with_volumes_in(test_dir, disk.point.clone());
    let node = rig.node();
    let volumes: Vec<Volume> = (0..3).map(|_| rig.volume(least_bytes("ext4"))).collect();
    let frozen = disk.freeze();
    // Both slots for mkfs are taken, and the processes in them cannot write.
    let holders = &volumes[..2];
    let formats: Vec<_> = holders.iter().map(|volume| stage(&rig, volume)).collect();
    for volume in holders {
        is_in(&rig, volume, "format");
    }
    let waiting = &volumes[2];
    let cancelled = stage(&rig, waiting);
    until(
        "the third stage has found its device blank, and waits",
        || node.unstage(waiting.unstage()).is_ok() && cancelled.is_finished(),
    );
    let answer = cancelled.join().expect("no panic");
    refused_with(answer, Code::Aborted, &["was cancelled by a NodeUnstage"]);
    drop(frozen);

    for format in formats {
        format.join().expect("no panic").expect("stage");
    }
    for volume in &volumes {
        node.unstage(volume.unstage()).expect("unstage");
    }
    rig.kill();
    run("umount", &[text(&disk.point)]);
    rig.test_dir().expect_nothing_left();
}

/// The command of a container runtime: the process it starts sees no process of another container.
const CONTAINED: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// An agent that was killed while one of its threads hangs still has its sockets and its port. The
/// next agent serves on the sockets at once, and on the port as soon as it is free.
fn is_succeeded(command: &[&str]) {
    let test_dir = TestDir::new();
    let disk = Disk::mount(&test_dir);
    let (registry, pages) = (test_dir.directory("plugins_registry"), free_port());
    let (socket, pages_at) = (test_dir.path().join("node.sock"), pages.to_string());
    let flags = [
        "--registration-dir",
        text(&registry),
        "--http-endpoint",
        &pages_at,
    ];
    let flags = [&flags[..], &["--kubelet-registration-path", text(&socket)]].concat();
    let launch = Launch {
        flags: flags.into_iter().map(str::to_owned).collect(),
        ..Launch::default()
    };
    let mut rig = Rig::launched(test_dir, disk.point.clone(), launch);
    let volume = up(&rig);
    run("sync", &["--file-system", text(&disk.point)]);
    fs::write(volume.target("a").join("late"), vec![1; 1 << 20]).expect("write");
    let unpublish = volume.unpublish(&volume.target("a"));
    rig.node().unpublish(unpublish).expect("unpublish");
    // The killed process is awaited at the end, even if the test fails: by then, the disk responds.
    let killed;
    let frozen = disk.freeze();
    let hung = unstage(&rig, &volume);
    is_in(&rig, &volume, "unmount");
    killed = rig.kill_hung();
    UnixStream::connect(&socket).expect("the killed agent still has the socket");

    rig.launch_by(command);
    rig.start();
    assert_eq!(probe(&socket).expect("probe").ready, Some(true));
    Kubelet::start(&registry).asks(&registry.join("local.csi.belay.dev-reg.sock"));
    until("the log names the port", || {
        rig.agent().last_words().contains("is taken")
    });
    assert!(killed.is_zombie());
    drop(frozen);
    drop(killed);
    let unanswered = hung.join().expect("no panic");
    assert!(unanswered.is_err(), "its agent was killed");
    until("the pages are shown", || get(pages, "/livez").is_some());

    rig.kill();
    rig.launch_by(&[]);
    rig.start();
    rig.node().unstage(volume.unstage()).expect("unstage");
    rig.kill();
    run("umount", &[text(&disk.point)]);
    rig.test_dir().expect_nothing_left();
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_takes_the_sockets_of_a_killed_one_whose_thread_hangs() {
    is_succeeded(&[]);
}

#[test]
#[ignore = "needs root: make test"]
fn so_does_an_agent_that_cannot_see_the_process_of_the_killed_one() {
    is_succeeded(&CONTAINED);
}

/// Returns the last log line of a second agent, which must not start on the first agent's socket.
fn refused_beside(rig: &Rig, command: &[&str]) -> String {
    let volumes = rig.test_dir().directory("others");
    let flags = ["--node-id", "node-1", "--loop-dir", text(&volumes)];
    Process::refused_by(command, rig.test_dir(), "belay-node", &rig.socket(), &flags)
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_that_lives_keeps_its_socket() {
    let rig = Rig::new();
    for command in [&[][..], &CONTAINED] {
        let line = refused_beside(&rig, command);
        assert!(line.contains("another process serves it"), "{line}");
    }
    rig.agent().signal(Signal::STOP);
    let line = refused_beside(&rig, &[]);
    rig.agent().signal(Signal::CONT);
    assert!(line.contains("another process serves it"), "{line}");
    assert!(line.contains("stopped by a signal"), "{line}");
    assert_eq!(probe(&rig.socket()).expect("probe").ready, Some(true));
}

#[test]
#[ignore = "needs root: make test"]
fn so_does_a_stopped_agent_whose_queue_is_full() {
    let rig = Rig::new();
    rig.agent().signal(Signal::STOP);
    let waiting = fill_queue(&rig.socket());
    let line = refused_beside(&rig, &[]);
    rig.agent().signal(Signal::CONT);
    assert!(line.contains("stopped by a signal"), "{line}");
    drop(waiting);
    // The agent accepts the queued connections one by one.
    until("it answers", || {
        probe(&rig.socket()).is_ok_and(|answer| answer.ready == Some(true))
    });
}

/// Connects until connecting fails.
fn fill_queue(socket: &Path) -> Vec<OwnedFd> {
    let address = SocketAddrUnix::new(socket).expect("a short path");
    let connection = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let stream = stream.expect("a socket");
        connect(&stream, &address).is_ok().then_some(stream)
    };
    std::iter::from_fn(connection).collect()
}

/// Checks that after a hundred seconds, the callers and the health calls get an error. By then, the
/// first callers have disconnected, and others have replaced them.
fn error_at_the_deadline(
    rig: &Rig,
    volume: &Volume,
    hung: Vec<Caller<csi::NodeUnstageVolumeResponse>>,
) {
    for unstage in hung {
        // A caller of a rig panics at its own timeout, after a minute.
        drop(unstage.join().expect_err("the disk is frozen"));
    }
    let answer = rig.node().unstage(volume.unstage());
    refused_with(answer, Code::DeadlineExceeded, &["now in unmount"]);
    let request = csi::NodeGetVolumeHealthRequest {
        volume_id: volume.id.clone(),
        ..Default::default()
    };
    let health = rig.node().volume_health(request).expect("health");
    let reported = &health.volume_health.expect("always set").health_statuses[0];
    assert_eq!(reported.reason, "OperationHung");
    assert!(reported.message.contains("now in unmount"), "{reported:?}");
}
