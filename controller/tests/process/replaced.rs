//! Volumes whose file was replaced by another one: the file in use is neither detached nor mistaken
//! for the file that now has its name.

use crate::bed::{
    Bed, Client, MIB, ROOMY, assert_refused, clone, create, created, cut, one_volume, publish,
    snapshot, unpublish,
};
use crate::mounts::{Mount, Xfs};
use crate::openers::Loop;
use belay_bed::requests;
use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use tonic::{Code, Status};

/// A file that is open and locked, as by the agent and its loop device.
struct Bound(File);

impl Drop for Bound {
    fn drop(&mut self) {
        // A child process that another test starts has copies of all descriptors until its exec.
        self.0.unlock().unwrap();
    }
}

fn bound(file: &Path) -> Bound {
    let device = File::options().read(true).write(true).open(file).unwrap();
    device.try_lock().unwrap();
    Bound(device)
}

/// Replaces the file by a copy; the old file is moved to `aside`, or removed.
fn replace(file: &Path, aside: Option<&Path>) {
    let copy = file.with_file_name("copy");
    fs::copy(file, &copy).unwrap();
    if let Some(aside) = aside {
        fs::rename(file, aside).unwrap();
    }
    fs::rename(copy, file).unwrap();
}

async fn attach(client: &mut Client, id: &str) {
    client.controller_publish_volume(publish(id)).await.unwrap();
}

async fn detach(client: &mut Client, id: &str) -> Result<(), Status> {
    let answer = client.controller_unpublish_volume(unpublish(id, "")).await;
    answer.map(drop)
}

async fn delete(client: &mut Client, id: &str) -> Result<(), Status> {
    let request = requests::delete(id);
    client.delete_volume(request).await.map(drop)
}

async fn expand(client: &mut Client, id: &str, bytes: i64) -> Result<(), Status> {
    let request = requests::grow(id, bytes);
    client.controller_expand_volume(request).await.map(drop)
}

/// Returns paths for the old file in which its name does not contain that of the volume.
fn asides(bed: &Bed) -> [Option<PathBuf>; 3] {
    let (here, elsewhere) = (bed.volumes_dir(), bed.state_dir());
    [
        Some(here.join("old.img")),
        Some(elsewhere.join("old.img")),
        None,
    ]
}

#[tokio::test]
async fn a_volume_is_not_detached_while_its_old_file_is_bound_wherever_that_is() {
    let bed = Bed::new(&ROOMY);
    let mut controller = bed.start();
    let mut client = bed.client().await;
    for (name, aside) in ["pvc-1", "pvc-2", "pvc-3"].iter().zip(asides(&bed)) {
        let id = created(&mut client, create(name, MIB)).await.volume_id;
        let file = bed.volumes_dir().join(&id);
        attach(&mut client, &id).await;
        let device = bound(&file);
        replace(&file, aside.as_deref());
        // After another attach, as after a restart of the attacher, the new file is not mistaken
        // for the old one.
        attach(&mut client, &id).await;
        for _ in 0..2 {
            let refused = detach(&mut client, &id).await.unwrap_err();
            assert_refused(&refused, Code::Aborted, &[&id, "replaced"]);
            controller.kill();
            controller = bed.start();
            client = bed.client().await;
        }
        drop(device);
        detach(&mut client, &id).await.unwrap();
        delete(&mut client, &id).await.unwrap();
    }
    drop(controller);
}

#[tokio::test]
async fn a_file_that_was_restored_while_nothing_used_it_is_the_volumes_from_then_on() {
    let (bed, _controller, mut client, id) = one_volume(MIB).await;
    let file = bed.volumes_dir().join(&id);
    // The volume was never attached, is attached but not staged, or was detached.
    replace(&file, None);
    attach(&mut client, &id).await;
    replace(&file, None);
    expand(&mut client, &id, 2 * MIB).await.unwrap();
    let device = bound(&file);
    expand(&mut client, &id, 3 * MIB).await.unwrap();
    assert_refused(
        &detach(&mut client, &id).await.unwrap_err(),
        Code::Aborted,
        &[&id],
    );
    drop(device);
    detach(&mut client, &id).await.unwrap();
    replace(&file, None);
    attach(&mut client, &id).await;
    let device = bound(&file);
    expand(&mut client, &id, 4 * MIB).await.unwrap();
    replace(&file, None);
    let refused = detach(&mut client, &id).await.unwrap_err();
    assert_refused(&refused, Code::Aborted, &[&id]);
    drop(device);
    detach(&mut client, &id).await.unwrap();
    delete(&mut client, &id).await.unwrap();
}

#[tokio::test]
async fn a_file_that_nobody_uses_is_not_enlarged_in_place_of_the_one_in_use() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    for (name, aside) in ["pvc-1", "pvc-2", "pvc-3"].iter().zip(asides(&bed)) {
        let id = created(&mut client, create(name, MIB)).await.volume_id;
        let file = bed.volumes_dir().join(&id);
        attach(&mut client, &id).await;
        let device = bound(&file);
        replace(&file, aside.as_deref());
        let refused = expand(&mut client, &id, 2 * MIB).await.unwrap_err();
        assert_refused(&refused, Code::FailedPrecondition, &[&id, "replaced"]);
        assert_eq!(fs::metadata(&file).unwrap().len(), 1 << 20);
        drop(device);
        expand(&mut client, &id, 2 * MIB).await.unwrap();
    }
}

#[tokio::test]
#[ignore = "mounts: needs root and a private mount namespace"]
async fn nothing_is_cut_from_a_file_that_is_not_the_one_in_use() {
    let xfs = Xfs::new();
    let bed = Bed::beneath(xfs.path(), &ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    for (number, aside) in asides(&bed).into_iter().enumerate() {
        let name = |what| format!("{what}-{number}");
        let id = created(&mut client, create(&name("pvc"), MIB)).await;
        let id = id.volume_id;
        let file = bed.volumes_dir().join(&id);
        attach(&mut client, &id).await;
        let device = bound(&file);
        replace(&file, aside.as_deref());
        let snapshot = snapshot(&name("snap"), &id);
        let clone = clone(&name("clone"), MIB, &id);
        let refusals = [
            client.create_snapshot(snapshot.clone()).await.map(drop),
            client.create_volume(clone.clone()).await.map(drop),
        ];
        for refusal in refusals {
            let refused = refusal.unwrap_err();
            assert_refused(&refused, Code::FailedPrecondition, &[&id, "replaced"]);
        }
        drop(device);
        assert!(cut(&mut client, snapshot).await.ready_to_use);
        created(&mut client, clone).await;
    }
}

#[tokio::test]
#[ignore = "binds a loop device; needs root: make test"]
async fn a_device_of_a_foreign_file_with_a_name_like_the_volumes_is_in_nobodys_way() {
    let (bed, _controller, mut client, id) = one_volume(MIB).await;
    let foreign = tempfile::tempdir().unwrap();
    for name in [format!("{id}.bak"), id.clone()] {
        let file = foreign.path().join(name);
        fs::copy(bed.volumes_dir().join(&id), &file).unwrap();
        let _device = Loop::bind(&file);
        attach(&mut client, &id).await;
        expand(&mut client, &id, 2 * MIB).await.unwrap();
        detach(&mut client, &id).await.unwrap();
    }
    let file = foreign.path().join(format!("{id}.bak"));
    let _device = Loop::bind(&file);
    delete(&mut client, &id).await.unwrap();
}

#[tokio::test]
#[ignore = "binds a loop device; needs root: make test"]
async fn a_volume_without_a_second_name_is_known_by_the_name_of_its_file() {
    let (bed, _controller, mut client, id) = one_volume(MIB).await;
    let file = bed.volumes_dir().join(&id);
    attach(&mut client, &id).await;
    // The state is that on a filesystem without hard links.
    fs::remove_file(bed.state_dir().join("attached").join(&id)).unwrap();
    let device = Loop::bind(&file);
    replace(&file, Some(&file.with_extension("bad")));
    attach(&mut client, &id).await;
    let refused = detach(&mut client, &id).await.unwrap_err();
    assert_refused(&refused, Code::Aborted, &[&id]);
    let refused = expand(&mut client, &id, 2 * MIB).await.unwrap_err();
    assert_refused(&refused, Code::FailedPrecondition, &[&id, "replaced"]);
    drop(device);
    detach(&mut client, &id).await.unwrap();
}

#[tokio::test]
#[ignore = "binds a loop device; needs root: make test"]
async fn a_device_that_somebody_bound_by_hand_keeps_its_volume_from_being_deleted() {
    let (bed, _controller, mut client, id) = one_volume(MIB).await;
    let file = bed.volumes_dir().join(&id);
    for flags in [&["--read-only"][..], &[]] {
        let device = Loop::bind_with(flags, &file);
        let refused = delete(&mut client, &id).await.unwrap_err();
        assert_refused(&refused, Code::FailedPrecondition, &[&id, "/dev/loop"]);
        attach(&mut client, &id).await;
        let refused = detach(&mut client, &id).await.unwrap_err();
        assert_refused(&refused, Code::Aborted, &[&id, "/dev/loop"]);
        drop(device);
        detach(&mut client, &id).await.unwrap();
    }
    delete(&mut client, &id).await.unwrap();
}

#[tokio::test]
async fn a_start_remembers_the_file_that_the_node_uses_by_then() {
    let (bed, mut controller, mut client, id) = one_volume(MIB).await;
    let file = bed.volumes_dir().join(&id);
    let kept = bed.state_dir().join("attached").join(&id);
    attach(&mut client, &id).await;
    // The second name may be missing, or another file was restored while the node was down.
    for forget in [true, false] {
        if forget {
            fs::remove_file(&kept).unwrap();
        }
        replace(&file, None);
        let device = bound(&file);
        controller.kill();
        controller = bed.start();
        client = bed.client().await;
        replace(&file, Some(&bed.state_dir().join("old.img")));
        let refused = detach(&mut client, &id).await.unwrap_err();
        assert_refused(&refused, Code::Aborted, &[&id, "replaced"]);
        drop(device);
    }
    detach(&mut client, &id).await.unwrap();
    drop(controller);
}

#[tokio::test]
async fn without_a_descriptor_nothing_is_attached_that_would_not_be_known_again() {
    let (bed, controller, mut client, id) = one_volume(MIB).await;
    let kept = bed.state_dir().join("attached").join(&id);
    let mut refused = 0;
    for spare in 0..12 {
        controller.limit_descriptors(Some(spare));
        let answer = client.controller_publish_volume(publish(&id)).await;
        controller.limit_descriptors(None);
        match answer {
            Ok(_) => assert!(kept.exists(), "{spare} descriptors"),
            Err(status) => {
                assert_refused(&status, Code::Unavailable, &["EMFILE"]);
                refused += 1;
            }
        }
        detach(&mut client, &id).await.unwrap();
    }
    assert!((1..12).contains(&refused), "{refused}");
}

#[tokio::test]
#[ignore = "binds a loop device; needs root: make test"]
async fn without_a_descriptor_nothing_is_detached_whose_device_cannot_be_looked_for() {
    let (bed, controller, mut client, id) = one_volume(MIB).await;
    let file = bed.volumes_dir().join(&id);
    attach(&mut client, &id).await;
    let old = bed.volumes_dir().join(format!("{id}.bad"));
    replace(&file, Some(&old));
    let _device = Loop::bind(&old);
    fs::remove_file(bed.state_dir().join("attached").join(&id)).unwrap();
    for spare in 0..12 {
        controller.limit_descriptors(Some(spare));
        let answer = detach(&mut client, &id).await;
        controller.limit_descriptors(None);
        let refused = answer.unwrap_err();
        let code = [Code::Unavailable, Code::Aborted].contains(&refused.code());
        assert!(code, "{spare} descriptors: {refused}");
    }
}

#[tokio::test]
async fn an_attachment_that_is_repeated_gives_the_file_in_use_its_second_name() {
    let (bed, controller, mut client, id) = one_volume(MIB).await;
    let file = bed.volumes_dir().join(&id);
    let kept = bed.state_dir().join("attached").join(&id);
    attach(&mut client, &id).await;
    fs::remove_file(&kept).unwrap();
    attach(&mut client, &id).await;
    assert!(
        !kept.exists(),
        "the file is not in use, so it may be another"
    );
    let _device = bound(&file);
    attach(&mut client, &id).await;
    assert!(kept.exists());
    drop(controller);
}

#[tokio::test]
async fn the_last_name_of_an_earlier_file_is_never_taken_away() {
    let (bed, mut controller, _, id) = one_volume(MIB).await;
    let file = bed.volumes_dir().join(&id);
    let backup = bed.state_dir().join("backup.redb");
    controller.kill();
    fs::copy(bed.state_dir().join("state.redb"), &backup).unwrap();
    controller = bed.start();
    attach(&mut bed.client().await, &id).await;
    controller.kill();
    // Everything is restored: the volume is not attached, and has an older file.
    let tuesday = fs::metadata(&file).unwrap().ino();
    replace(&file, None);
    fs::copy(&backup, bed.state_dir().join("state.redb")).unwrap();
    controller = bed.start();
    attach(&mut bed.client().await, &id).await;
    let kept = fs::read_dir(bed.state_dir().join("attached")).unwrap();
    let mut inodes = kept.map(|entry| entry.unwrap().ino());
    assert!(inodes.any(|inode| inode == tuesday));
    drop(controller);
}

#[tokio::test]
#[ignore = "mounts: needs root and a private mount namespace"]
async fn where_there_are_no_second_names_volumes_live_all_the_same() {
    let bed = Bed::new(&ROOMY);
    let _elsewhere = Mount::tmpfs(bed.state_dir().join("attached"));
    let _controller = bed.start();
    let mut client = bed.client().await;
    let id = created(&mut client, create("pvc-1", MIB)).await.volume_id;
    attach(&mut client, &id).await;
    expand(&mut client, &id, 2 * MIB).await.unwrap();
    detach(&mut client, &id).await.unwrap();
    delete(&mut client, &id).await.unwrap();
}
