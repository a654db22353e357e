//! Callers that time out and retry while a disk does not respond: they must not exhaust the agent.
//! strace simulates the disk: it blocks fstatfs.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use belay_proto::csi::v1 as csi;
use belay_proto::dial::dial;
use csi::node_client::NodeClient;
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Rig, access, least_bytes};

/// The duration of the block, far longer than the test takes. It ends with the strace.
const HELD_UP: Duration = Duration::from_secs(50);
/// The timeout of an impatient caller, always exceeded, since it is shorter than the hang.
const CALLER_PATIENCE: Duration = Duration::from_millis(500);
/// The number of callers, more than the agent's threads.
const CALLERS: u32 = 10;

/// Blocks the agent's calls of fstatfs until this is dropped.
struct HeldUp(Child);

impl HeldUp {
    fn new(rig: &Rig) -> Self {
        let how = format!("fstatfs:delay_enter={}", HELD_UP.as_micros());
        let mut strace = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", "trace=fstatfs", "-e"])
            .arg(format!("inject={how}"))
            .args(["-p", &rig.agent().pid().to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace; `make setup` installs it");
        let mut words = BufReader::new(strace.stderr.take().expect("a pipe"));
        let held_up = HeldUp(strace);
        let mut line = String::new();
        while !line.contains("attached") {
            line.clear();
            let length = words.read_line(&mut line).expect("read");
            assert_ne!(length, 0, "strace could not attach");
        }
        // Read to the end, so that strace never waits for a reader.
        thread::spawn(move || drop(words.read_to_string(&mut line)));
        held_up
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        // strace detaches from the agent when it exits.
        if let Err(errno) = kill_process(Pid::from_child(&self.0), Signal::TERM) {
            eprintln!("strace has ended already: {errno}");
        }
        drop(self.0.wait());
    }
}

/// Makes a call as an impatient caller; returns whether the response came in time.
fn ask_in_passing(socket: PathBuf, request: csi::NodeGetVolumeStatsRequest) -> bool {
    let ask = async {
        let channel = dial(&socket).await.expect("a connection");
        NodeClient::new(channel)
            .node_get_volume_stats(request)
            .await
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime
        .block_on(async { tokio::time::timeout(CALLER_PATIENCE, ask).await })
        .is_ok()
}

#[test]
#[ignore = "needs root: make test"]
fn callers_who_ask_about_a_hanging_volume_again_and_again_do_not_stop_the_others() {
    let rig = Rig::new();
    let node = rig.node();
    // Statistics of ext4 and xfs are read in a way that no disk can block.
    let (hangs, other) = (
        rig.volume(least_bytes("btrfs")),
        rig.volume(least_bytes("ext4")),
    );
    let target = other.target("a");
    for (volume, kind) in [(&hangs, "btrfs"), (&other, "ext4")] {
        node.stage(volume.stage(access(kind))).expect("stage");
    }
    let held_up = HeldUp::new(&rig);
    let (tell, answers) = mpsc::channel();
    let (patient, request) = (rig.node(), hangs.stats(&hangs.staging));
    let asked = request.clone();
    let asking = thread::spawn(move || tell.send(patient.stats(asked)));
    for _ in 0..CALLERS {
        let is_answered = ask_in_passing(rig.socket(), request.clone());
        assert!(!is_answered, "fstatfs was not blocked");
    }
    node.publish(other.publish(&target, access("ext4")))
        .expect("publish");
    other.down(&node, &[&target]);
    node.stage(other.stage(access("ext4"))).expect("stage");
    other.down(&node, &[]);
    assert!(
        matches!(answers.try_recv(), Err(TryRecvError::Empty)),
        "the other volume had to wait until fstatfs came back"
    );
    drop(held_up);
    let answer = answers.recv().expect("an answer");
    answer.expect("stats");
    asking.join().expect("the caller").expect("its answer");
    hangs.down(&node, &[]);
}
