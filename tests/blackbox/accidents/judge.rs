//! The rules, which are the same for every cell.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Instant;

use belay_proto::csi::v1 as csi;
use tonic::Status;

use super::cell::Cell;
use super::data;
use super::moment::Moment;
use super::scene;
use super::table::{Accident, Reach};
use crate::rig::{LoopDevice, PATIENCE, Volume, access, has_left, mounts_of, orders, pause, until};

/// The observations: reasons of alarms and codes of refusals.
type Seen = BTreeSet<String>;

/// Judges a cell in the middle of its accident.
pub(super) fn during(cell: &mut Cell, accident: &Accident, when: &str) -> Seen {
    if accident.reach != Reach::Agent {
        let shares_nothing = accident.reach != Reach::Disk;
        cell.scene.expect_neighbours_served(shares_nothing, when);
    }
    let mut seen = Seen::new();
    match () {
        () if cell.moment.has_snapshot() => restored(cell, &mut seen, when),
        () if cell.moment.is_bound() => in_use(cell, &mut seen, when),
        () => used_again(cell, &mut seen, when),
    }
    seen.extend(alarms(cell, &cell.volume, &cell.target));
    if accident.reach != Reach::Agent {
        let shares_nothing = accident.reach != Reach::Disk;
        cell.scene.expect_neighbours_served(shares_nothing, when);
    }
    seen
}

/// Returns the reasons that both programs report for the volume.
fn alarms(cell: &Cell, volume: &Volume, target: &Path) -> Seen {
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let request = csi::NodeGetVolumeHealthRequest {
        volume_id: volume.id.clone(),
        volume_publish_path: text(target),
        staging_target_path: text(&volume.staging),
    };
    let mut seen = Seen::new();
    if let Ok(answer) = cell.scene.hasty_node().volume_health(request) {
        let health = answer.volume_health.into_iter();
        let statuses = health.flat_map(|health| health.health_statuses);
        seen.extend(statuses.map(|status| status.reason));
    }
    let look = cell.scene.hasty_controller().get(orders::get(&volume.id));
    let status = look.ok().and_then(|answer| answer.status);
    if let Some(condition) = status.and_then(|status| status.volume_condition)
        && condition.abnormal
    {
        let reason = condition.message.split([':', ' ']).next();
        seen.extend(reason.map(str::to_owned));
    }
    seen
}

/// Records a refusal. Returns whether the call succeeded.
fn succeeded<T>(answer: Result<T, Status>, rpc: &str, seen: &mut Seen) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(status) => {
            let code = match has_left(&status) {
                true => "no answer".to_owned(),
                false => format!("{:?}", status.code()),
            };
            seen.insert(format!("{rpc}: {code}"));
            None
        }
    }
}

/// Fails if a pod's data is wrong and there is no alarm.
fn judge_data(cell: &Cell, volume: &Volume, of: &str, target: &Path, seen: &mut Seen, when: &str) {
    // A reader would hang with the disk.
    if cell.frozen.is_some() {
        return;
    }
    let Some(wrong) = data::wrong(of, target) else {
        return;
    };
    let alarms = alarms(cell, volume, target);
    assert!(
        !alarms.is_empty(),
        "{when}: the pod has other data than was written, and nothing is reported: {wrong}"
    );
    seen.extend(alarms);
}

/// For a volume on the node: publishes it to a second pod and unpublishes it, while the first pod
/// reads.
fn in_use(cell: &Cell, seen: &mut Seen, when: &str) {
    let (node, volume) = (cell.scene.hasty_node(), &cell.volume);
    succeeded(node.stage(volume.stage(access(cell.kind))), "stage", seen);
    let other = volume.target("other");
    let publish = volume.publish(&other, access(cell.kind));
    if succeeded(node.publish(publish), "publish", seen).is_some() {
        expect_shown(cell, volume, &other, when);
        judge_data(cell, volume, &volume.id, &other, seen, when);
        let unpublish = node.unpublish(volume.unpublish(&other));
        if succeeded(unpublish, "unpublish", seen).is_some() {
            expect_not_mounted(&other, when);
        }
    }
    if cell.moment.is_published() && cell.mounted.is_empty() {
        judge_data(cell, volume, &volume.id, &cell.target, seen, when);
    }
}

/// For a volume that is not on the node: brings it to a pod, which reads, and takes it down.
fn used_again(cell: &Cell, seen: &mut Seen, when: &str) {
    let has_data = cell.moment.has_data();
    let of = has_data.then_some(cell.volume.id.as_str());
    come_and_go(cell, &cell.volume, of, seen, when);
}

/// Restores the snapshot to a volume, which a pod then uses.
fn restored(cell: &mut Cell, seen: &mut Seen, when: &str) {
    let Some(snapshot) = cell.snapshot.clone() else {
        return;
    };
    if cell.moment == Moment::Copying {
        drop(cell.await_copy());
    }
    let calls = cell.scene.hasty_controller();
    let name = format!("restored-{snapshot}");
    let order = orders::restore(&name, cell.kind, &snapshot);
    let Some(made) = succeeded(calls.create(order), "create", seen) else {
        return;
    };
    let id = made.volume.expect("a volume").volume_id;
    let volumes = cell.scene.disk().join("volumes");
    let volume = Volume::made(cell.scene.test_dir().path(), &volumes, id);
    come_and_go(cell, &volume, Some(&cell.volume.id), seen, when);
    // Record the volume: whatever the accident blocks is taken down afterwards.
    cell.restored.push(volume);
}

/// Unpublishes and unstages the restored volume.
pub(super) fn leave_restored(cell: &Cell) {
    let node = cell.scene.node();
    for volume in &cell.restored {
        let target = volume.target("other");
        patiently("unpublish", || {
            node.unpublish(volume.unpublish(&target)).map(drop)
        });
        patiently("unstage", || node.unstage(volume.unstage()).map(drop));
    }
}

/// Unpublishes, unstages and deletes the restored volumes.
fn clear_restored(cell: &mut Cell) {
    leave_restored(cell);
    let calls = cell.scene.controller();
    for volume in cell.restored.drain(..) {
        patiently("delete", || {
            calls.delete(orders::delete(&volume.id)).map(drop)
        });
    }
}

/// Publishes the volume to a pod, which reads the data of volume `of`, if any, and unpublishes it.
fn come_and_go(cell: &Cell, volume: &Volume, of: Option<&str>, seen: &mut Seen, when: &str) {
    let node = cell.scene.hasty_node();
    let stage = volume.stage(access(cell.kind));
    if succeeded(node.stage(stage), "stage", seen).is_some() {
        assert!(
            cell.held.is_none() || cell.struck != volume.file,
            "{when}: staged while another process has the file open"
        );
        assert!(
            !cell.is_mounted_by_hand || cell.struck != volume.file,
            "{when}: staged while the file is mounted by hand"
        );
        let target = volume.target("other");
        let publish = volume.publish(&target, access(cell.kind));
        if succeeded(node.publish(publish), "publish", seen).is_some() {
            expect_shown(cell, volume, &target, when);
            if let Some(of) = of {
                judge_data(cell, volume, of, &target, seen, when);
            }
            let unpublish = node.unpublish(volume.unpublish(&target));
            if succeeded(unpublish, "unpublish", seen).is_some() {
                expect_not_mounted(&target, when);
            }
        }
    }
    if succeeded(node.unstage(volume.unstage()), "unstage", seen).is_some() {
        expect_not_mounted(&volume.staging, when);
        expect_not_mounted(&volume.device(), when);
        expect_unbound(cell, volume, when);
    }
}

/// Checks after a successful publish that the volume's own device is mounted at the target.
#[track_caller]
fn expect_shown(cell: &Cell, volume: &Volume, target: &Path, when: &str) {
    let device = shown_device(target);
    let behind = fs::read_to_string(format!("/sys/block/{device}/loop/backing_file"));
    let behind = behind.unwrap_or_default();
    let name = behind.trim().trim_end_matches(" (deleted)");
    let is_its = name.ends_with(&volume.id) || !cell.mounted.is_empty();
    assert!(
        is_its,
        "{when}: published, but {device} is mounted, of {behind:?}"
    );
}

/// Returns the loop device at this path, raw or with a filesystem.
fn shown_device(target: &Path) -> String {
    let found = fs::metadata(target).expect("stat");
    if found.file_type().is_block_device() {
        return format!("loop{}", rustix::fs::minor(found.rdev()));
    }
    let point = target.to_str().expect("UTF-8");
    let asked = ["--noheadings", "--first-only", "--output", "SOURCE"];
    let source = crate::rig::run("findmnt", &[&asked[..], &["--mountpoint", point]].concat());
    let source = source.trim().trim_start_matches("/dev/");
    source.split('[').next().unwrap_or_default().to_owned()
}

#[track_caller]
fn expect_not_mounted(point: &Path, when: &str) {
    let mounts = mounts_of("self");
    let is_there = mounts.iter().any(|mount| mount.point == point);
    assert!(
        !is_there,
        "{when}: OK, but {} is still mounted",
        point.display()
    );
}

/// Checks after a successful unstage that no device of this machine is bound to the volume's file.
#[track_caller]
fn expect_unbound(cell: &Cell, volume: &Volume, when: &str) {
    let is_left = |device: &LoopDevice| {
        let name = device.file.to_string_lossy();
        name.trim_end_matches(" (deleted)").ends_with(&volume.id)
    };
    // A device that an operator bound by hand does not count.
    if !cell.is_mounted_by_hand {
        until(&format!("{when}: unstaged, but bound"), || {
            !cell.scene.test_dir().loops().iter().any(is_left)
        });
    }
}

/// Checks that nothing of the victim is left on the node.
#[track_caller]
pub(super) fn expect_nothing_of(cell: &Cell, when: &str) {
    expect_not_mounted(&cell.target, when);
    expect_not_mounted(&cell.volume.staging, when);
    expect_not_mounted(&cell.volume.device(), when);
    expect_unbound(cell, &cell.volume, when);
}

/// Repeats the call for a minute, as its caller would.
#[track_caller]
pub(super) fn patiently(rpc: &str, mut call: impl FnMut() -> Result<(), Status>) {
    let end = Instant::now() + PATIENCE;
    loop {
        match call() {
            Ok(()) => return,
            Err(status) if Instant::now() > end => panic!("{rpc} never succeeds: {status}"),
            // Kubernetes retries after any code.
            Err(_) => pause(),
        }
    }
}

/// Judges a cell after its accident has ended: everything works, and the data is there.
pub(super) fn after(cell: &mut Cell, accident: &Accident) {
    cell.scene.await_neighbours();
    cell.finish_copy(accident);
    let (node, volume) = (cell.scene.node(), cell.volume.clone());
    if cell.moment.is_published() && !accident.destroys && accident.reach != Reach::Disk {
        let wrong = data::wrong(&cell.volume.id, &cell.target);
        assert!(wrong.is_none(), "afterwards, in the pod: {wrong:?}");
        let touched = data::touch(&cell.volume.id, &cell.target);
        touched.expect("the pod writes on");
    }
    patiently("stage, afterwards,", || {
        node.stage(volume.stage(access(cell.kind))).map(drop)
    });
    patiently("publish, afterwards,", || {
        node.publish(volume.publish(&cell.target, access(cell.kind)))
            .map(drop)
    });
    if cell.moment.has_data() {
        let wrong = data::wrong(&volume.id, &cell.target);
        assert!(wrong.is_none(), "afterwards: {wrong:?}");
    }
    let touched = data::touch(&volume.id, &cell.target);
    touched.expect("a pod writes afterwards");
    cell.leave_node();
    if cell.moment.has_snapshot() {
        clear_restored(cell);
        let mut seen = Seen::new();
        cell.scene.patience = PATIENCE;
        restored(cell, &mut seen, "afterwards");
        cell.scene.patience = scene::PATIENCE;
        clear_restored(cell);
        assert!(seen.is_empty(), "the snapshot, afterwards: {seen:?}");
    }
    clear(cell);
}

/// Deletes the objects that the cell created.
fn clear(cell: &Cell) {
    let calls = cell.scene.controller();
    if let Some(snapshot) = &cell.snapshot {
        patiently("deleting the snapshot", || {
            calls.discard(orders::discard(snapshot)).map(drop)
        });
    }
    patiently("delete", || {
        calls.delete(orders::delete(&cell.volume.id)).map(drop)
    });
    let is_left = cell.volume.file.exists();
    assert!(!is_left, "deleted, but its file is there");
}
