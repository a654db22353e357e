//! Both programs on one state directory, which is on its own disk.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use belay_proto::csi::v1 as csi;

use super::caller::Op;
use super::calls::{ControllerCalls, NodeCalls};
use super::controller::Controller;
use super::disk::Disk;
use super::journal::Journal;
use super::mounts::{Mount, mounts_of};
use super::process::Process;
use super::test_dir::{LoopDevice, TestDir, loops_below};
use super::{Rig, until};

/// Both running programs.
pub(crate) struct Pair<D: Drive = Disk> {
    rig: Rig,
    controller: Option<Controller>,
    drive: D,
    site: Site,
}

/// The storage of a state directory.
pub(crate) trait Drive {
    /// Unmounts the storage; fails while a process has a file open in it.
    fn unmount(self);
}

impl Drive for Disk {
    fn unmount(self) {
        Disk::unmount(self);
    }
}

/// The paths of a pair, for its callers.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// The directory that contains everything.
    pub(crate) top: PathBuf,
}

/// The state of one volume in the kernel and the state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The mount points.
    pub(crate) mounts: BTreeSet<PathBuf>,
    /// The number of bound loop devices.
    pub(crate) loops: usize,
    /// The size of the volume's file.
    pub(crate) bytes: Option<u64>,
}

impl Site {
    /// Returns the RPCs of the node agent.
    pub(crate) fn node(&self) -> NodeCalls {
        NodeCalls::new(self.top.join("node.sock"))
    }

    /// Returns the RPCs of the controller.
    pub(crate) fn controller(&self) -> ControllerCalls {
        ControllerCalls::new(self.top.join("controller.sock"))
    }

    /// Returns the directory of the volumes' files.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.top.join("state/volumes")
    }

    /// Returns the current state of this volume.
    pub(crate) fn see(&self, id: &str) -> Seen {
        let file = self.volumes().join(id);
        let mounts = self.mounts(id).into_iter().map(|mount| mount.point);
        let loops = self.loops();
        Seen {
            mounts: mounts.collect(),
            loops: loops.iter().filter(|device| is_of(device, &file)).count(),
            bytes: fs::metadata(file).ok().map(|stat| stat.len()),
        }
    }

    /// Returns the current state of this volume as text, for messages.
    pub(crate) fn show(&self, id: &str) -> String {
        let lines = self.mounts(id).into_iter().map(|mount| mount.line + "\n");
        let loops = self.loops();
        let file = self.volumes().join(id);
        let loops: Vec<_> = loops.iter().filter(|device| is_of(device, &file)).collect();
        let size = fs::metadata(&file).map(|stat| stat.len());
        format!(
            "{}{loops:?}\nfile: {size:?} bytes\n",
            lines.collect::<String>()
        )
    }

    /// Fails with everything that is known about the call's volume, and about `words`.
    #[track_caller]
    pub(crate) fn fail(&self, journal: &Journal, op: &Op, why: &str, words: &[&str]) -> ! {
        let id = op.id().unwrap_or_default();
        let word = if id.is_empty() { op.rpc() } else { id };
        panic!(
            "{} {why}: {op:?}\nits history:\n{}now:\n{}not answered yet:\n{}",
            op.rpc(),
            journal.about(&[&[word], words].concat()),
            self.show(id),
            journal.outstanding()
        );
    }

    /// Returns the loop devices of volumes.
    pub(crate) fn loops(&self) -> Vec<LoopDevice> {
        loops_below(&self.volumes())
    }

    fn mounts(&self, id: &str) -> Vec<Mount> {
        let mounts = mounts_of("self").into_iter();
        let is_of_it = |mount: &Mount| {
            mount.point.starts_with(&self.top)
                && mount.point.iter().any(|part| part.to_str() == Some(id))
        };
        mounts.filter(is_of_it).collect()
    }
}

fn is_of(device: &LoopDevice, file: &Path) -> bool {
    let shown = device.file.to_string_lossy();
    // sysfs shows a removed file with this suffix.
    Path::new(shown.trim_end_matches(" (deleted)")) == file
}

/// The message of a controller that has started.
const RECOVERED: &str = "state recovered";

impl Pair {
    /// Starts both programs, with their state on a disk with this filesystem.
    pub(crate) fn new(filesystem: &str) -> Self {
        let test_dir = TestDir::new();
        let disk = Disk::new(&test_dir, filesystem, "state");
        Pair::on(test_dir, disk)
    }
}

impl<D: Drive> Pair<D> {
    /// Starts both programs, with their state on storage that is mounted at `state`.
    pub(crate) fn on(test_dir: TestDir, drive: D) -> Self {
        let controller = Controller::start(&test_dir);
        let site = Site {
            top: test_dir.path().to_owned(),
        };
        Pair {
            rig: Rig::with_volumes_in(test_dir, site.volumes()),
            controller: Some(controller),
            drive,
            site,
        }
    }

    /// Returns the storage of the state directory.
    pub(crate) fn drive(&self) -> &D {
        &self.drive
    }

    /// Returns the paths.
    pub(crate) fn site(&self) -> &Site {
        &self.site
    }

    /// Returns the running node agent.
    pub(crate) fn agent(&self) -> &Process {
        self.rig.agent()
    }

    /// Kills the node agent and starts it again.
    pub(crate) fn restart_agent(&mut self) {
        self.rig.restart();
    }

    /// Returns the PID of the running controller.
    pub(crate) fn controller_pid(&self) -> u32 {
        self.controller.as_ref().expect("the controller runs").pid()
    }

    /// Kills the controller.
    pub(crate) fn stop_controller(&mut self) {
        drop(self.controller.take());
    }

    /// Kills the controller and starts it again.
    pub(crate) fn restart_controller(&mut self) {
        self.stop_controller();
        self.controller = Some(Controller::start(self.rig.test_dir()));
    }

    /// Returns the ends of both logs.
    pub(crate) fn last_words(&self) -> String {
        let controller = self.controller.as_ref().map(Controller::last_words);
        format!(
            "the node agent's last words:\n{}\nthe controller's:\n{}\n",
            self.agent().last_words(),
            controller.unwrap_or_default()
        )
    }

    /// Returns the IDs of all volumes and of all snapshots in the ledger.
    pub(crate) fn ledger(&self) -> [BTreeSet<String>; 2] {
        let calls = self.site.controller();
        let volumes = calls.list(csi::ListVolumesRequest::default());
        let volumes = volumes.expect("list").entries.into_iter();
        let snapshots = calls.list_snapshots(csi::ListSnapshotsRequest::default());
        let snapshots = snapshots.expect("list snapshots").entries.into_iter();
        [
            volumes
                .filter_map(|entry| Some(entry.volume?.volume_id))
                .collect(),
            snapshots
                .filter_map(|entry| Some(entry.snapshot?.snapshot_id))
                .collect(),
        ]
    }

    /// Fails unless every volume and snapshot of the ledger has its file, and every file its entry.
    #[track_caller]
    pub(crate) fn expect_files_of_ledger(&self, when: &str) {
        let [volumes, snapshots] = self.ledger();
        assert_eq!(names(&self.site.volumes()), volumes, "volumes, {when}");
        let directory = self.site.top.join("state/snapshots");
        // A copy in progress may have no file yet.
        until(&format!("each of {snapshots:?} has a file, {when}"), || {
            names(&directory).is_superset(&snapshots)
        });
        assert_eq!(names(&directory), snapshots, "snapshots, {when}");
    }

    /// Fails if the running controller reported a problem at its start that requires an operator.
    #[track_caller]
    pub(crate) fn expect_no_trouble(&self, when: &str) {
        let words = self.controller.as_ref().map(Controller::log);
        let troubles = words.unwrap_or_default();
        // Interrupted work is finished without any call.
        let is_finished = |line: &str| line.contains("was complete");
        let is_trouble = |line: &&str| line.contains("recovery: ") && !is_finished(line);
        let troubles: Vec<_> = troubles.lines().filter(is_trouble).collect();
        assert!(troubles.is_empty(), "{when}: {troubles:#?}");
    }

    /// Fails unless all of these counts of the controller's recovery are zero.
    fn expect_recovered(&self, counts: &[&str]) {
        let words = self.controller.as_ref().map(Controller::log);
        let words = words.unwrap_or_default();
        let recovered = words.lines().rfind(|line| line.contains(RECOVERED));
        let recovered = recovered.expect("a line about the recovery");
        for count in counts {
            let is_none = recovered
                .split(' ')
                .any(|word| word == format!("{count}=0"));
            assert!(is_none, "{count}: {recovered}");
        }
    }

    /// Stops both programs, and fails if anything is left: a mount, a device, a file, a directory
    /// that a call created, or an entry of the ledger that no list shows.
    pub(crate) fn end(mut self) {
        assert_eq!(
            self.ledger().map(|ids| ids.len()),
            [0, 0],
            "left in the ledger"
        );
        self.expect_files_of_ledger("at the end");
        until("no volume has a device", || self.site.loops().is_empty());
        let left = made_by_calls(&self.site.top);
        assert!(left.is_empty(), "left: {left:?}");
        let starts = |pair: &Self| {
            let log = pair.controller.as_ref().map(Controller::log);
            log.unwrap_or_default().matches(RECOVERED).count()
        };
        let before = starts(&self);
        if let Some(controller) = self.controller.take() {
            controller.terminate();
        }
        self.controller = Some(Controller::start(self.rig.test_dir()));
        // A thread of the controller writes the log.
        until("the start is logged", || starts(&self) > before);
        self.expect_recovered(&["volumes", "snapshots", "undone", "deleted", "grown"]);
        self.expect_no_trouble("at the end");
        self.end_after_trouble();
    }

    /// Stops both programs, after a test that made the controller report problems.
    pub(crate) fn end_after_trouble(mut self) {
        if let Some(controller) = self.controller.take() {
            controller.terminate();
        }
        self.rig.stop();
        self.drive.unmount();
    }
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("readdir").flatten();
    let names = entries.map(|entry| entry.file_name().into_string().expect("UTF-8"));
    names.collect()
}

/// Returns the content of staging directories and of the pods' directories.
fn made_by_calls(top: &Path) -> Vec<PathBuf> {
    let inside = |directory: PathBuf| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let staged = inside(top.join("staging")).flat_map(|volume| inside(volume.join("globalmount")));
    let published = inside(top.join("pods")).flat_map(inside);
    staged.chain(published).collect()
}
