//! The scene of accidents: both programs, a state directory on its own disk, and two neighbours in
//! use. One shares the disk with the victim; the other is another driver's, on another disk, and
//! the same agent serves it.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belay_proto::csi::v1 as csi;
use tonic::Status;

use super::collector::Collector;
use super::data;
use crate::rig::{
    Controller, ControllerCalls, Disk, Launch, Leaving, NodeCalls, Rig, TestDir, Volume, access,
    least_bytes, orders, until,
};

/// How long a caller waits in the middle of an accident.
const PATIENCE: Duration = Duration::from_secs(5);

/// A volume of another user.
struct Neighbour {
    volume: Volume,
    socket: PathBuf,
    target: PathBuf,
}

/// The programs, the disk and the neighbours.
pub(super) struct Scene {
    rig: Rig,
    controller: Option<Controller>,
    /// Of the agent's log, and of the controller's.
    collectors: [Collector; 2],
    disk: PathBuf,
    filesystem: &'static str,
    beside: Neighbour,
    apart: Neighbour,
    made: u32,
}

impl Scene {
    /// All of it, running, with the state directory on that filesystem.
    pub(super) fn new(filesystem: &'static str) -> Self {
        let test_dir = TestDir::new();
        let disk = Disk::new(&test_dir, filesystem, "state").path().to_owned();
        let collect = |name| Collector::start(test_dir.path(), name);
        let collectors = ["belay-node", "belay-controller"].map(collect);
        let controller = Controller::start_by(&collectors[1].command(), &test_dir);
        let (other, socket) = (
            test_dir.directory("other"),
            test_dir.path().join("other.sock"),
        );
        let flags = vec![
            "--next-driver".to_owned(),
            "--driver-name=other.belay.dev".to_owned(),
            format!("--endpoint={}", socket.display()),
            format!("--loop-dir={}", other.display()),
            "--node-id=node-1".to_owned(),
        ];
        let command = collectors[0].command();
        let rig = Rig::launched(test_dir, disk.join("volumes"), Launch { command, flags });
        let id = "vol-0000000000000000000000000000ffff".to_owned();
        let apart = Volume::made(&rig.test_dir().directory("of-other"), &other, id);
        File::create_new(&apart.file)
            .and_then(|file| file.set_len(least_bytes("ext4")))
            .expect("a sparse file");
        let beside = made(&rig, &controller.calls(), "beside", "ext4");
        let beside = attached(&controller.calls(), beside, "ext4").expect("attach");
        let beside = Neighbour::settle(beside, rig.socket());
        let apart = Neighbour::settle(apart, socket);
        Scene {
            rig,
            controller: Some(controller),
            collectors,
            disk,
            filesystem,
            beside,
            apart,
            made: 0,
        }
    }

    /// The filesystem of the state directory.
    pub(super) fn filesystem(&self) -> &'static str {
        self.filesystem
    }

    /// The directory of the state directory, which is a mount point.
    pub(super) fn disk(&self) -> &Path {
        &self.disk
    }

    /// The directory of all.
    pub(super) fn test_dir(&self) -> &TestDir {
        self.rig.test_dir()
    }

    /// The agent's RPCs, by a caller with the usual patience.
    pub(super) fn node(&self) -> NodeCalls {
        self.rig.node()
    }

    /// The controller's.
    pub(super) fn controller(&self) -> ControllerCalls {
        ControllerCalls::new(self.test_dir().path().join("controller.sock"))
    }

    /// The agent's RPCs, by a caller that does not wait for broken parts.
    pub(super) fn hasty_node(&self) -> NodeCalls {
        self.node().leaving(Some(Leaving::Connection(PATIENCE)))
    }

    /// The controller's.
    pub(super) fn hasty_controller(&self) -> ControllerCalls {
        let leaving = Some(Leaving::Connection(PATIENCE));
        self.controller().leaving(leaving)
    }

    /// The agent's process id.
    pub(super) fn agent_pid(&self) -> u32 {
        self.rig.agent().pid()
    }

    /// The controller's.
    pub(super) fn controller_pid(&self) -> u32 {
        let running = self.controller.as_ref().map(Controller::pid);
        running.expect("the controller runs")
    }

    /// The collector of the agent's log.
    pub(super) fn agent_log(&self) -> &Collector {
        &self.collectors[0]
    }

    /// The collector of the controller's log.
    pub(super) fn controller_log(&self) -> &Collector {
        &self.collectors[1]
    }

    /// Kills the agent and starts it again.
    pub(super) fn restart_agent(&mut self) {
        self.rig.restart();
        self.await_sockets();
    }

    /// The other driver's socket comes a moment after the first one.
    fn await_sockets(&self) {
        until("the other driver is served", || {
            UnixStream::connect(&self.apart.socket).is_ok()
        });
    }

    /// Kills the controller and starts it again.
    pub(super) fn restart_controller(&mut self) {
        drop(self.controller.take());
        let command = self.controller_log().command();
        self.controller = Some(Controller::start_by(&command, self.rig.test_dir()));
    }

    /// A new volume of the controller's, with its paths on the node.
    pub(super) fn make(&mut self, kind: &str) -> Volume {
        self.made += 1;
        let name = format!("victim-{}", self.made);
        made(&self.rig, &self.controller(), &name, kind)
    }

    /// Fails unless the other driver's volume is served, and the victim's neighbour too if it must.
    pub(super) fn expect_neighbours_served(&self, with_beside: bool, when: &str) {
        self.apart.expect_served(when);
        if with_beside {
            self.beside.expect_served(when);
        }
    }

    /// Fails unless all neighbours are served again within a minute.
    pub(super) fn await_neighbours(&self) {
        for neighbour in [&self.apart, &self.beside] {
            until("the neighbours are served again", || {
                neighbour.is_served().is_none()
            });
        }
    }

    /// The neighbour on the victim's disk ends its pod.
    pub(super) fn leave_disk(&self) {
        self.beside.leave();
    }

    /// The disk is unmounted and mounted again, both programs are restarted, and the neighbour on
    /// it has a pod again.
    pub(super) fn remount(&mut self) {
        let (image, point) = (self.test_dir().path().join("disk"), self.disk.clone());
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        drop(self.controller.take());
        self.rig.kill();
        crate::rig::run("umount", &[&text(&point)]);
        crate::rig::run("mount", &["-o", "loop", &text(&image), &text(&point)]);
        self.rig.start();
        self.await_sockets();
        self.restart_controller();
        let Neighbour { volume, target, .. } = &self.beside;
        let node = self.rig.node();
        node.stage(volume.stage(access("ext4"))).expect("stage");
        node.publish(volume.publish(target, access("ext4")))
            .expect("publish");
    }

    /// The ends of both logs.
    pub(super) fn last_words(&self) -> String {
        let controller = self.controller.as_ref().map(Controller::last_words);
        format!(
            "agent:\n{}\ncontroller:\n{}",
            self.rig.agent().last_words(),
            controller.unwrap_or_default()
        )
    }

    /// Takes all of it down in peace.
    pub(super) fn end(mut self) {
        self.beside.leave();
        self.apart.leave();
        let calls = self.controller();
        let id = &self.beside.volume.id;
        calls.detach(orders::detach(id)).expect("detach");
        calls.delete(orders::delete(id)).expect("delete");
        if let Some(controller) = self.controller.take() {
            controller.terminate();
        }
        self.rig.stop();
        crate::rig::run("umount", &[self.disk.to_str().expect("UTF-8")]);
    }
}

impl Neighbour {
    /// In use, with data.
    fn settle(volume: Volume, socket: PathBuf) -> Self {
        let (node, target) = (NodeCalls::new(socket.clone()), volume.target("in-use"));
        node.stage(volume.stage(access("ext4"))).expect("stage");
        node.publish(volume.publish(&target, access("ext4")))
            .expect("publish");
        data::write(&volume.id, &target).expect("write");
        Neighbour {
            volume,
            socket,
            target,
        }
    }

    fn calls(&self) -> NodeCalls {
        NodeCalls::new(self.socket.clone()).leaving(Some(Leaving::Connection(PATIENCE)))
    }

    #[track_caller]
    fn expect_served(&self, when: &str) {
        if let Some(why) = self.is_served() {
            panic!(
                "the neighbour {} is not served {when}: {why}",
                self.volume.id
            );
        }
    }

    /// What fails, if anything: queries, a second pod, reading and writing.
    fn is_served(&self) -> Option<String> {
        let (node, second) = (self.calls(), self.volume.target("second"));
        let reported = |rpc: &str, status: Status| format!("{rpc}: {status}");
        let asked = node.stats(self.volume.stats(&self.target));
        if let Err(status) = asked {
            return Some(reported("stats", status));
        }
        let publish = self.volume.publish(&second, access("ext4"));
        if let Err(status) = node.publish(publish) {
            return Some(reported("publish", status));
        }
        if let Some(wrong) = data::wrong(&self.volume.id, &second) {
            return Some(wrong);
        }
        if let Err(error) = data::touch(&self.volume.id, &self.target) {
            return Some(format!("writing: {error}"));
        }
        let unpublish = node.unpublish(self.volume.unpublish(&second));
        unpublish.err().map(|status| reported("unpublish", status))
    }

    fn leave(&self) {
        let node = NodeCalls::new(self.socket.clone());
        self.volume.down(&node, &[&self.target]);
    }
}

fn made(rig: &Rig, calls: &ControllerCalls, name: &str, kind: &str) -> Volume {
    let made = calls.create(orders::create(name, kind)).expect("create");
    let id = made.volume.expect("a volume").volume_id;
    let mut volume = Volume::made(rig.test_dir().path(), rig.volumes(), id);
    fs::create_dir_all(&volume.staging).expect("mkdir");
    volume.context = Some(Default::default());
    volume
}

/// The volume with its publish context, ready to be staged.
pub(super) fn attached(
    calls: &ControllerCalls,
    mut volume: Volume,
    kind: &str,
) -> Result<Volume, Status> {
    let answer: csi::ControllerPublishVolumeResponse =
        calls.attach(orders::attach(&volume.id, kind))?;
    volume.context = Some(answer.publish_context);
    Ok(volume)
}
