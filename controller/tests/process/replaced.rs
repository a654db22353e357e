//! Volumes whose file was replaced while a loop device uses the old one: no call takes the new file
//! for the volume's. Needs root, for the devices.

use crate::bed::{
    Bed, Client, Controller, MIB, assert_refused, clone, one_volume, ready, snapshot,
};
use crate::openers::Loop;
use belay_bed::requests;
use belay_contract::drivers::local::CLAIM;
use std::fs;
use std::path::Path;
use tonic::{Code, Status};

/// The ways to replace a file: the old one is moved to another name or directory, or removed.
const WAYS: [fn(&Path); 3] = [
    |file| fs::rename(file, file.with_extension("bad")).unwrap(),
    |file| {
        let elsewhere = file.ancestors().nth(2).unwrap().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::rename(file, elsewhere.join(file.file_name().unwrap())).unwrap();
    },
    |file| fs::remove_file(file).unwrap(),
];

/// Starts a controller with a volume whose file was replaced under a loop device.
async fn replaced(way: fn(&Path)) -> (Bed, Controller, Client, String, Loop) {
    let (bed, controller, client, id) = one_volume(MIB).await;
    let file = bed.volumes_dir().join(&id);
    let device = Loop::bind(&file);
    let backup = bed.state_dir().join("backup");
    fs::copy(&file, &backup).unwrap();
    way(&file);
    fs::rename(&backup, &file).unwrap();
    (bed, controller, client, id, device)
}

/// Makes all calls that would use the file, with a deletion at the end.
async fn called(client: &mut Client, id: &str) -> [Result<(), Status>; 4] {
    let grown = client.controller_expand_volume(requests::grow(id, 2 * MIB));
    let grown = grown.await.map(drop);
    let cut = client.create_snapshot(snapshot("snap", id)).await.map(drop);
    if cut.is_ok() {
        ready(client, snapshot("snap", id)).await;
    }
    let cloned = client.create_volume(clone("pvc-2", 2 * MIB, id));
    let cloned = cloned.await.map(drop);
    let deleted = client.delete_volume(requests::delete(id)).await.map(drop);
    [grown, cut, cloned, deleted]
}

#[tokio::test]
#[ignore = "binds a loop device; needs root: make test"]
async fn a_file_that_replaced_the_one_in_use_is_refused_by_every_call_until_it_is_unbound() {
    for way in WAYS {
        let (bed, _controller, mut client, id, device) = replaced(way).await;
        let file = bed.volumes_dir().join(&id);
        let path = device.path().to_str().unwrap().to_owned();
        for answer in called(&mut client, &id).await {
            let names = [&*id, &path, "has replaced", "losetup --detach"];
            assert_refused(&answer.unwrap_err(), Code::FailedPrecondition, &names);
        }
        assert_eq!(fs::metadata(&file).unwrap().len(), MIB.unsigned_abs());
        let mut claim = [0; 16];
        let read = rustix::fs::getxattr(&file, CLAIM, &mut claim).unwrap();
        assert_eq!(&claim[..read], b"delete");
        drop(device);
        for answer in called(&mut client, &id).await {
            answer.unwrap();
        }
        assert!(!file.exists());
    }
}

#[tokio::test]
#[ignore = "binds a loop device; needs root: make test"]
async fn a_device_that_an_operator_has_bound_keeps_its_volume_from_being_deleted() {
    let (bed, _controller, mut client, id) = one_volume(MIB).await;
    let file = bed.volumes_dir().join(&id);
    for flags in [&["--read-only"][..], &[]] {
        let device = Loop::bind_with(flags, &file);
        let refused = client.delete_volume(requests::delete(&id)).await;
        let names = [&*id, device.path().to_str().unwrap()];
        assert_refused(&refused.unwrap_err(), Code::FailedPrecondition, &names);
    }
    let deleted = client.delete_volume(requests::delete(&id)).await;
    deleted.unwrap();
}

#[tokio::test]
#[ignore = "binds a loop device; needs root: make test"]
async fn without_a_descriptor_nothing_is_deleted_whose_device_cannot_be_looked_for() {
    let (bed, controller, mut client, id, _device) = replaced(WAYS[0]).await;
    for spare in 0..12 {
        controller.limit_descriptors(Some(spare));
        let answer = client.delete_volume(requests::delete(&id)).await;
        controller.limit_descriptors(None);
        let refused = answer.unwrap_err();
        let code = [Code::Unavailable, Code::FailedPrecondition].contains(&refused.code());
        assert!(code, "{spare} descriptors: {refused}");
        assert!(bed.volumes_dir().join(&id).exists());
    }
}

/// The loop device holds the lock of the file that the agent has taken before it bound it.
#[tokio::test]
async fn a_file_whose_lock_is_held_is_not_deleted_and_the_node_is_asked_to_unstage_it() {
    let (bed, _controller, mut client, id) = one_volume(MIB).await;
    let file = bed.volumes_dir().join(&id);
    let device = fs::File::open(&file).unwrap();
    device.try_lock().unwrap();
    let refused = client.delete_volume(requests::delete(&id)).await;
    let names = [&*id, "loop device"];
    assert_refused(&refused.unwrap_err(), Code::FailedPrecondition, &names);
    let mut claim = [0; 16];
    let read = rustix::fs::getxattr(&file, CLAIM, &mut claim).unwrap();
    assert_eq!(&claim[..read], b"delete");
    // A child process that another test starts has copies of all descriptors until its exec.
    device.unlock().unwrap();
    client.delete_volume(requests::delete(&id)).await.unwrap();
}
