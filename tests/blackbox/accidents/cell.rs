//! A cell of the table: a victim that is brought to its moment, struck by the accident, and
//! followed to its end.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use belay_contract::drivers::local;
use belay_proto::csi::v1 as csi;
use rustix::fs::syncfs;
use tonic::{Code, Status};

use super::moment::{Moment, Use};
use super::scene::Scene;
use super::table::{Accident, Reach};
use super::{data, judge, strikes};
use crate::rig::{
    Answer, Clock, Frozen, Volume, access, least_bytes, orders, refused, run, text, until,
};

/// The words of a controller whose copy has failed permanently.
const LOST_COPY: &str = "the copy failed";

type Cut = JoinHandle<Answer<csi::CreateSnapshotResponse>>;

/// The victim, and everything that the accident has done.
pub(super) struct Cell {
    pub(super) scene: Scene,
    pub(super) moment: Moment,
    pub(super) kind: &'static str,
    pub(super) volume: Volume,
    pub(super) target: PathBuf,
    /// The snapshot of the victim, if its moment needs one.
    pub(super) snapshot: Option<String>,
    /// The affected file; the next field is an earlier copy of it.
    pub(super) struck: PathBuf,
    pub(super) backup: PathBuf,
    /// A descriptor that an accident keeps open.
    pub(super) held: Option<File>,
    /// The mounts of an accident.
    pub(super) mounted: Vec<PathBuf>,
    /// Whether an operator has mounted the file itself.
    pub(super) is_mounted_by_hand: bool,
    /// The disk, while it is frozen.
    pub(super) frozen: Option<Frozen>,
    /// The clock of a program, while it is set back.
    pub(super) clock: Option<Clock>,
    /// Volumes that were restored from the snapshot and not yet taken down.
    pub(super) restored: Vec<Volume>,
    copying: Option<Cut>,
    /// The code of the snapshot whose copy has failed permanently.
    lost_copy: Option<Code>,
}

impl Cell {
    /// Creates a cell whose victim is only created.
    pub(super) fn new(mut scene: Scene, moment: Moment, used_as: Use) -> Self {
        let kind = moment.kind(used_as);
        let volume = scene.make(kind);
        Cell {
            moment,
            kind,
            target: volume.target("pod"),
            snapshot: None,
            struck: volume.file.clone(),
            backup: scene.test_dir().path().join("backup"),
            held: None,
            mounted: Vec::new(),
            is_mounted_by_hand: false,
            frozen: None,
            clock: None,
            restored: Vec::new(),
            copying: None,
            lost_copy: None,
            volume,
            scene,
        }
    }

    /// Runs the cell from its moment to its end. Returns the observations for the table.
    pub(super) fn run(&mut self, accident: &Accident) -> String {
        self.bring();
        self.back_up();
        (accident.strike)(self);
        self.go_on_copying(accident);
        let mut seen = judge::during(self, accident, "in the middle");
        if accident.restarts {
            self.scene.restart_controller();
            self.scene.restart_agent();
            seen.extend(judge::during(self, accident, "after a restart"));
        }
        // A volume that is being copied is not on the node.
        if accident.destroys && !self.moment.has_snapshot() {
            self.leave_node();
        }
        (accident.end)(self);
        judge::after(self, accident);
        fs::remove_file(&self.backup).expect("unlink");
        seen.extend(self.lost_copy.map(|code| format!("snapshot: {code:?}")));
        match seen.is_empty() {
            true => "served".to_owned(),
            false => seen.into_iter().collect::<Vec<_>>().join(", "),
        }
    }

    /// Returns the scene for the next cell.
    pub(super) fn into_scene(self) -> Scene {
        self.scene
    }

    /// Returns the ends of both logs.
    pub(super) fn last_words(&self) -> String {
        self.scene.last_words()
    }

    /// Ends the accident and everything else, as far as possible.
    pub(super) fn abandon(mut self, accident: &Accident) {
        self.frozen = None;
        if accident.name == "file immutable" {
            strikes::make_mutable(&mut self);
        }
        strikes::unmount_by_hand(&mut self);
    }

    /// Stages and publishes the victim.
    fn bring(&mut self) {
        let moment = self.moment;
        if moment == Moment::Created {
            return;
        }
        self.stage();
        self.publish();
        data::write(&self.volume.id, &self.target).expect("write");
        if moment == Moment::Copying {
            self.write_bulk();
        }
        match moment {
            Moment::Growing => self.grow(),
            Moment::Published => {}
            Moment::Staged => self.unpublish(),
            _ => self.leave_node(),
        }
        match moment {
            Moment::Snapshot => self.cut(),
            Moment::Copying => self.begin_copy(),
            _ => {}
        }
    }

    fn stage(&self) {
        let request = self.volume.stage(access(self.kind));
        self.scene.node().stage(request).expect("stage");
    }

    fn publish(&self) {
        let request = self.volume.publish(&self.target, access(self.kind));
        self.scene.node().publish(request).expect("publish");
    }

    fn unpublish(&self) {
        let request = self.volume.unpublish(&self.target);
        self.scene.node().unpublish(request).expect("unpublish");
    }

    /// Writes enough data that the copy can be interrupted.
    fn write_bulk(&self) {
        if self.kind == "block" {
            return;
        }
        let file = File::create(self.target.join("bulk")).expect("create");
        run(
            "dd",
            &[
                "if=/dev/urandom",
                &format!("of={}", self.target.join("bulk").display()),
                "bs=1M",
                "count=64",
                "status=none",
            ],
        );
        file.sync_all().expect("fsync");
    }

    fn grow(&self) {
        let bytes = i64::try_from(least_bytes(self.kind) * 2).expect("a size");
        let calls = self.scene.controller();
        calls
            .expand(orders::grow(&self.volume.id, bytes))
            .expect("expand");
    }

    fn cut(&mut self) {
        let name = format!("of-{}", self.volume.id);
        let cut = self
            .scene
            .controller()
            .cut(orders::cut(&name, &self.volume.id));
        let snapshot = cut.expect("cut").snapshot.expect("a snapshot");
        assert!(snapshot.ready_to_use, "blocks are shared");
        self.struck = self
            .scene
            .disk()
            .join("snapshots")
            .join(&snapshot.snapshot_id);
        self.snapshot = Some(snapshot.snapshot_id);
    }

    /// Starts a copy, and stops the controller in the middle of it, if possible.
    fn begin_copy(&mut self) {
        let (calls, id) = (self.scene.controller(), self.volume.id.clone());
        let cut = move || calls.cut(orders::cut(&format!("of-{id}"), &id));
        self.copying = Some(thread::spawn(cut));
        let directory = self.scene.disk().join("snapshots");
        until("the copy has begun", || {
            let mut files = fs::read_dir(&directory).expect("readdir").flatten();
            files.any(|file| file.metadata().is_ok_and(|stat| stat.len() > 0))
        });
        strikes::freeze_controller(self);
        self.expect_claim_kept();
    }

    /// Fails if the agent stages a volume that is being copied. The controller must not run now.
    pub(super) fn expect_claim_kept(&self) {
        let is_claimed = || self.volume.attribute(local::CLAIM).is_some();
        // The copy may have ended before.
        if self.moment != Moment::Copying || !is_claimed() {
            return;
        }
        let request = self.volume.stage(access(self.kind));
        refused(self.scene.node().stage(request), Code::Aborted);
        assert!(is_claimed(), "the claim of the copy is gone");
    }

    fn go_on_copying(&mut self, accident: &Accident) {
        let Some(copying) = self.copying.take() else {
            return;
        };
        // A controller that was killed is another process by now.
        if accident.name != "controller frozen" {
            strikes::thaw_controller(self);
        }
        match accident.reach {
            Reach::Volume => {
                drop(copying.join());
                self.snapshot = Some(self.known_snapshot());
            }
            // The controller works; on a busy machine its first response is "not ready yet".
            Reach::Agent | Reach::Nobody => {
                self.copying = Some(copying);
                self.finish_copy(accident);
            }
            // The call may get no response before the end of the accident.
            Reach::Disk | Reach::Controller => self.copying = Some(copying),
        }
    }

    /// Returns the ID of the snapshot of the victim that the controller lists.
    fn known_snapshot(&self) -> String {
        let request = csi::ListSnapshotsRequest {
            source_volume_id: self.volume.id.clone(),
            ..csi::ListSnapshotsRequest::default()
        };
        let listed = self.scene.controller().list_snapshots(request);
        let found = listed.expect("list snapshots").entries.pop();
        let snapshot = found.and_then(|entry| entry.snapshot);
        snapshot.expect("a snapshot").snapshot_id
    }

    /// Repeats the call like the snapshotter, until the snapshot is ready or its copy has failed.
    /// Returns the refusal.
    pub(super) fn await_copy(&mut self) -> Result<(), Status> {
        let (calls, id) = (self.scene.controller(), self.volume.id.clone());
        let request = orders::cut(&format!("of-{id}"), &id);
        let mut ended = Ok(());
        until("the copy has ended", || match calls.cut(request.clone()) {
            Ok(made) => made.snapshot.is_some_and(|made| made.ready_to_use),
            Err(status) if status.message().contains(LOST_COPY) => {
                ended = Err(status);
                true
            }
            Err(_) => false,
        });
        let lost = ended.as_ref().err().map(Status::code);
        self.lost_copy = self.lost_copy.or(lost);
        ended
    }

    /// Completes the snapshot of a delayed copy. A snapshot whose copy has failed permanently is
    /// deleted and made again.
    pub(super) fn finish_copy(&mut self, accident: &Accident) {
        if let Some(copying) = self.copying.take() {
            drop(copying.join());
        }
        if self.moment != Moment::Copying {
            return;
        }
        if let Err(status) = self.await_copy() {
            assert!(accident.loses_copy, "cut, afterwards: {status}");
            let (calls, lost) = (self.scene.controller(), self.known_snapshot());
            judge::patiently("deleting the lost snapshot", || {
                calls.discard(orders::discard(&lost)).map(drop)
            });
            self.await_copy().expect("cut again, afterwards");
        }
        self.snapshot = Some(self.known_snapshot());
    }

    /// Copies the file with its attributes and all synced data.
    fn back_up(&self) {
        // Data on a raw device was synced when it was written.
        if self.moment.is_bound() && self.kind != "block" {
            let staged = File::open(&self.volume.staging).expect("open");
            syncfs(&staged).expect("syncfs");
        }
        let (from, to) = (text(&self.struck), text(&self.backup));
        run("cp", &["--sparse=always", "--preserve=xattr", from, to]);
    }

    /// Unpublishes and unstages the victim, with retries like the kubelet's.
    pub(super) fn leave_node(&self) {
        let node = self.scene.node();
        for target in [&self.target, &self.volume.target("other")] {
            judge::patiently("unpublish", || {
                node.unpublish(self.volume.unpublish(target)).map(drop)
            });
        }
        judge::patiently("unstage", || node.unstage(self.volume.unstage()).map(drop));
        judge::expect_nothing_of(self, "after it was unstaged");
    }

    /// Takes down all volumes of the disk, since the controller cannot work without the disk.
    pub(super) fn take_all_down(&mut self) {
        self.leave_node();
        judge::leave_restored(self);
        self.scene.leave_disk();
    }

    /// Mounts the disk again, and restarts both programs.
    pub(super) fn remount_disk(&mut self) {
        self.scene.remount();
    }
}
