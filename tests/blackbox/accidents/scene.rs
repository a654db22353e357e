//! The scene of accidents: both programs, a state directory on its own disk, and two neighbouring
//! volumes in use. One is on the victim's disk; the other belongs to another driver of the same
//! agent, and is on another disk.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Status;

use super::collector::Collector;
use super::data;
use crate::rig::{
    Controller, ControllerCalls, Disk, Launch, Leaving, NodeCalls, Rig, TestDir, Volume, access,
    least_bytes, orders, until,
};

/// The time that a caller waits during an accident.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

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
    /// The collectors of the agent's and of the controller's log.
    collectors: [Collector; 2],
    disk: PathBuf,
    filesystem: &'static str,
    beside: Neighbour,
    apart: Neighbour,
    made: u32,
    /// The time that a caller waits now.
    pub(super) patience: Duration,
}

impl Scene {
    /// Starts everything, with the state directory on this filesystem.
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
        apart.mark_new();
        let beside = made(&rig, &controller.calls(), "beside", "ext4");
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
            patience: PATIENCE,
        }
    }

    /// Returns the filesystem of the state directory.
    pub(super) fn filesystem(&self) -> &'static str {
        self.filesystem
    }

    /// Returns the mount point of the disk with the state directory.
    pub(super) fn disk(&self) -> &Path {
        &self.disk
    }

    /// Returns the directory that contains everything.
    pub(super) fn test_dir(&self) -> &TestDir {
        self.rig.test_dir()
    }

    /// Returns the agent's RPCs, with the usual timeout.
    pub(super) fn node(&self) -> NodeCalls {
        self.rig.node()
    }

    /// Returns the controller's RPCs, with the usual timeout.
    pub(super) fn controller(&self) -> ControllerCalls {
        ControllerCalls::new(self.test_dir().path().join("controller.sock"))
    }

    /// Returns the agent's RPCs, with a short timeout, for broken parts.
    pub(super) fn hasty_node(&self) -> NodeCalls {
        self.node()
            .leaving(Some(Leaving::Connection(self.patience)))
    }

    /// Returns the controller's RPCs with a short timeout, for a program that may not respond.
    pub(super) fn hasty_controller(&self) -> ControllerCalls {
        let leaving = Some(Leaving::Connection(self.patience));
        self.controller().leaving(leaving)
    }

    /// Returns the agent's PID.
    pub(super) fn agent_pid(&self) -> u32 {
        self.rig.agent().pid()
    }

    /// Returns the controller's PID.
    pub(super) fn controller_pid(&self) -> u32 {
        let running = self.controller.as_ref().map(Controller::pid);
        running.expect("the controller runs")
    }

    /// Returns the collector of the agent's log.
    pub(super) fn agent_log(&self) -> &Collector {
        &self.collectors[0]
    }

    /// Returns the collector of the controller's log.
    pub(super) fn controller_log(&self) -> &Collector {
        &self.collectors[1]
    }

    /// Kills the agent and starts it again.
    pub(super) fn restart_agent(&mut self) {
        self.rig.restart();
        self.await_sockets();
    }

    /// Waits for both sockets: the other driver's appears a moment after the first one.
    fn await_sockets(&self) {
        until("the other driver is served", || {
            UnixStream::connect(&self.apart.socket).is_ok()
        });
    }

    /// Kills the controller and starts it again.
    pub(super) fn restart_controller(&mut self) {
        self.stop_controller();
        self.start_controller();
    }

    /// Kills the controller.
    pub(super) fn stop_controller(&mut self) {
        drop(self.controller.take());
    }

    /// Starts the controller.
    pub(super) fn start_controller(&mut self) {
        let command = self.controller_log().command();
        self.controller = Some(Controller::start_by(&command, self.rig.test_dir()));
    }

    /// Creates a volume in the controller, with its paths on the node.
    pub(super) fn make(&mut self, kind: &str) -> Volume {
        self.made += 1;
        let name = format!("victim-{}", self.made);
        made(&self.rig, &self.controller(), &name, kind)
    }

    /// Fails unless the other driver's volume works, and also the neighbour on the victim's disk,
    /// if `with_beside` is set.
    pub(super) fn expect_neighbours_served(&self, with_beside: bool, when: &str) {
        self.apart.expect_served(when);
        if with_beside {
            self.beside.expect_served(when);
        }
    }

    /// Fails unless all neighbours work again within a minute.
    pub(super) fn await_neighbours(&self) {
        for neighbour in [&self.apart, &self.beside] {
            until("the neighbours are served again", || {
                neighbour.is_served().is_none()
            });
        }
    }

    /// Ends the pod of the neighbour on the victim's disk.
    pub(super) fn leave_disk(&self) {
        self.beside.leave();
    }

    /// Unmounts the disk and mounts it again, restarts both programs, and starts the pod of the
    /// neighbour on the disk again.
    pub(super) fn remount(&mut self) {
        let (image, point) = (self.test_dir().path().join("disk"), self.disk.clone());
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        self.stop_controller();
        self.rig.kill();
        crate::rig::run("umount", &[&text(&point)]);
        crate::rig::mount_image(&image, &point, "loop");
        self.rig.start();
        self.await_sockets();
        self.start_controller();
        let Neighbour { volume, target, .. } = &self.beside;
        let node = self.rig.node();
        node.stage(volume.stage(access("ext4"))).expect("stage");
        node.publish(volume.publish(target, access("ext4")))
            .expect("publish");
    }

    /// Returns the ends of both logs.
    pub(super) fn last_words(&self) -> String {
        let controller = self.controller.as_ref().map(Controller::last_words);
        format!(
            "agent:\n{}\ncontroller:\n{}",
            self.rig.agent().last_words(),
            controller.unwrap_or_default()
        )
    }

    /// Takes everything down in an orderly way.
    pub(super) fn end(mut self) {
        self.beside.leave();
        self.apart.leave();
        let calls = self.controller();
        let id = &self.beside.volume.id;
        calls.delete(orders::delete(id)).expect("delete");
        if let Some(controller) = self.controller.take() {
            controller.terminate();
        }
        self.rig.stop();
        crate::rig::run("umount", &[self.disk.to_str().expect("UTF-8")]);
    }
}

impl Neighbour {
    /// Brings up a neighbour, with data.
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
        let patience = crate::rig::PATIENCE;
        NodeCalls::new(self.socket.clone()).leaving(Some(Leaving::Connection(patience)))
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

    /// Returns what fails, if anything: queries, a second pod, reading or writing.
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
    Volume::made(rig.test_dir().path(), rig.volumes(), id)
}
