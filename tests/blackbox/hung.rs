//! A disk that does not answer: the filesystem below the volumes' files is frozen, so that whoever
//! writes to one of them waits in the kernel, for real and for as long as the test likes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use belay_proto::csi::v1 as csi;
use tonic::Code;

use crate::rig::{Answer, Place, Rig, Volume, access, least_bytes, refused_with, run, until};

/// More volumes than the agent's pool has places for work that makes headway.
const HUNG: usize = 8;

/// The disk of the volumes' files.
struct Disk {
    point: PathBuf,
}

impl Disk {
    fn mount(place: &Place) -> Self {
        let disk = place.path().join("disk");
        File::create_new(&disk)
            .and_then(|file| file.set_len(8 << 30))
            .expect("a disk");
        let point = place.folder("storage");
        run("mkfs.ext4", &["-q", text(&disk)]);
        run("mount", &["-o", "loop", text(&disk), text(&point)]);
        Disk { point }
    }

    fn freeze(&self) -> Frozen<'_> {
        run("fsfreeze", &["--freeze", text(&self.point)]);
        Frozen(self)
    }
}

/// A disk that does not answer until this is dropped: before the agent is, in a test that fails.
struct Frozen<'a>(&'a Disk);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run("fsfreeze", &["--unfreeze", text(&self.0.point)]);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Staged, published, and with data that is not on the disk yet.
fn up(rig: &Rig) -> Volume {
    let (node, volume) = (rig.node(), rig.volume(least_bytes("ext4")));
    let target = volume.target("a");
    node.stage(volume.stage(access("ext4"))).expect("stage");
    node.publish(volume.publish(&target, access("ext4")))
        .expect("publish");
    node.stats(volume.stats(&target)).expect("stats");
    volume
}

/// Unstages in a thread of its own.
fn unstage(rig: &Rig, volume: &Volume) -> JoinHandle<Answer<csi::NodeUnstageVolumeResponse>> {
    let (node, request) = (rig.node(), volume.unstage());
    thread::spawn(move || node.unstage(request))
}

#[test]
#[ignore = "needs root: make test"]
fn a_disk_that_does_not_answer_holds_up_its_own_volumes_alone() {
    let place = Place::new();
    let disk = Disk::mount(&place);
    let mut rig = Rig::with_volumes_in(place, disk.point.clone());
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
    // Only what is on a thread tells what it is in, so all have one when all are told of.
    for volume in &volumes {
        until("the unmount is under way", || {
            // Before the unstage has begun, it is staged as asked for.
            node.stage(volume.stage(access("ext4"))).is_err_and(|told| {
                assert_eq!(told.code(), Code::Aborted, "{told}");
                told.message().contains("now in unmount")
            })
        });
    }

    // What needs no write goes on, on the same threads.
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
        told_at_the_deadline(&rig, &volumes[0], hung);
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
    rig.place().expect_nothing_left();
}

#[test]
#[ignore = "needs root: make test"]
fn an_unstage_calls_off_a_stage_that_waits_for_others() {
    let place = Place::new();
    let disk = Disk::mount(&place);
    let mut rig = Rig::with_volumes_in(place, disk.point.clone());
    let node = rig.node();
    let volumes: Vec<Volume> = (0..3).map(|_| rig.volume(least_bytes("ext4"))).collect();
    let stage = |volume: &Volume| {
        let (node, request) = (rig.node(), volume.stage(access("ext4")));
        thread::spawn(move || {
            loop {
                let answer = node.stage(request.clone());
                // A question of this test was being answered.
                let again = |told: &tonic::Status| told.message().contains("comes first");
                if !answer.as_ref().is_err_and(again) {
                    return answer;
                }
            }
        })
    };
    let frozen = disk.freeze();
    // Both places for mkfs are taken, and their holders cannot write.
    let formats: Vec<_> = volumes[..2].iter().map(&stage).collect();
    for volume in &volumes[..2] {
        until("the format is under way", || {
            // Changes nothing, and is told what comes first.
            node.unpublish(volume.unpublish(&volume.target("a")))
                .is_err_and(|told| told.message().contains("now in format"))
        });
    }
    let waiting = &volumes[2];
    let called_off = stage(waiting);
    until(
        "the third stage has found its device blank and waits",
        || node.unstage(waiting.unstage()).is_ok() && called_off.is_finished(),
    );
    let answer = called_off.join().expect("no panic");
    refused_with(answer, Code::Aborted, &["was given up for a NodeUnstage"]);
    drop(frozen);

    for format in formats {
        format.join().expect("no panic").expect("stage");
    }
    for volume in &volumes {
        node.unstage(volume.unstage()).expect("unstage");
    }
    rig.kill();
    run("umount", &[text(&disk.point)]);
    rig.place().expect_nothing_left();
}

/// After a hundred seconds the callers are told, and so is whoever asks how the volume is. The
/// first callers have gone away by then, and others have come in their place.
fn told_at_the_deadline(
    rig: &Rig,
    volume: &Volume,
    hung: Vec<JoinHandle<Answer<csi::NodeUnstageVolumeResponse>>>,
) {
    for unstage in hung {
        unstage
            .join()
            .expect("no panic")
            .expect_err("the disk is frozen");
    }
    let answer = rig.node().unstage(volume.unstage());
    refused_with(answer, Code::DeadlineExceeded, &["now in unmount"]);
    let request = csi::NodeGetVolumeHealthRequest {
        volume_id: volume.id.clone(),
        ..Default::default()
    };
    let health = rig.node().volume_health(request).expect("health");
    let told = &health.volume_health.expect("always set").health_statuses[0];
    assert_eq!(told.reason, "OperationHung");
    assert!(told.message.contains("now in unmount"), "{told:?}");
}
