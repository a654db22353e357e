//! Deletions of volumes whose file is in use or missing.

use super::{Bed, MIB, delete, order};
use crate::backend::Backend as _;
use crate::backend::Progress::Done;
use crate::backend::local::delete::Deletion;
use crate::backend::local::files::journal::{Call, before};
use crate::backend::local::recover::Recovered;
use crate::backend::local::store::Store;
use crate::backend::local::{Local, UNSTAGE_PATIENCE};
use belay_contract::drivers::local::Claim;
use belay_server::call::Kind;
use belay_server::readiness::{Readiness, State};
use belay_server::request::Secrets;
use std::fs::{self, File};
use std::sync::Arc;

/// Locks a file as the node agent and the loop device do.
fn bound(bed: &Bed, id: &str) -> File {
    let bound = File::open(bed.file(id)).unwrap();
    bound.try_lock().unwrap();
    bound
}

#[test]
fn a_file_that_a_loop_device_has_is_not_deleted_and_asked_back() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    let device = bound(&bed, id);
    let state = || fs::read(bed.dir.path().join("state/state.redb")).unwrap();
    let before = state();
    for _ in 0..2 {
        assert_eq!(store.try_delete(id), Ok(Deletion::InUse));
    }
    let claimed = || store.files.get(id).unwrap().claimed().unwrap();
    assert!(state() == before);
    assert_eq!(claimed(), None);
    let failure = store.refuse_used(id);
    assert_eq!(failure.kind, Kind::Precondition);
    for word in [id, "loop device", "unstage the volume"] {
        assert!(failure.message.contains(word), "{failure}");
    }
    assert_eq!(claimed(), Some(Claim::Delete));
    // A claim that makes NodeStageVolume fail is not replaced.
    for claim in [Claim::Copy("snap-1".to_owned()), Claim::Deleting] {
        store.files.get(id).unwrap().claim(&claim).unwrap();
        store.refuse_used(id);
        assert_eq!(claimed(), Some(claim));
    }
    assert!(store.get(&volume.id).unwrap().is_some());
    drop(device);
    for _ in 0..2 {
        assert_eq!(store.try_delete(id), Ok(Deletion::Done));
    }
    assert!(bed.files().is_empty());
}

#[test]
fn a_file_that_is_missing_since_its_volume_is_deleted_is_not_called_lost() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    store.begin_delete(id).unwrap();
    store.files.remove(id).unwrap();
    assert_eq!(store.backing(id).unwrap_err().kind, Kind::Busy);
    store.finish_delete(id).unwrap();
    assert_eq!(store.backing(id).unwrap_err().kind, Kind::NotFound);
}

/// After a power failure, the claim may be on disk although the record is not.
#[test]
fn a_deletion_that_begins_claims_the_file_and_a_start_ends_a_claim_without_a_deletion() {
    let bed = Bed::new();
    let store = Arc::new(bed.open());
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    let claim = |store: &Store| store.files.get(id).unwrap().claimed().unwrap();
    let seen = Arc::clone(&store);
    let (seen_id, path) = (id.to_owned(), bed.file(id));
    before(Call::Sync(path), move || {
        let file = seen.files.get(&seen_id).unwrap();
        assert_eq!(file.claimed(), Ok(Some(Claim::Deleting)));
        // A different process begins to copy the volume.
        seen.copies.begin("vol-2", &seen_id, None);
    });
    let failure = delete(&store, id).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    assert_eq!(claim(&store), None);
    store
        .files
        .get(id)
        .unwrap()
        .claim(&Claim::Deleting)
        .unwrap();
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!(recovered, Recovered::default());
    assert_eq!(claim(&store), None);
    assert!(store.get(&volume.id).unwrap().is_some());
    delete(&store, id).unwrap();
}

/// The deletion has begun, and a NodeStageVolume call began before the deletion.
#[test]
fn a_volume_that_is_being_deleted_waits_for_the_node_too() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    let id = volume.id.as_str();
    store.begin_delete(id).unwrap();
    let device = bound(&bed, id);
    assert_eq!(store.try_delete(id), Ok(Deletion::InUse));
    drop(device);
    assert_eq!(store.try_delete(id), Ok(Deletion::Done));
    assert!(bed.files().is_empty());
}

/// NodeUnstageVolume ends a moment after the deletion has begun, or does not end at all.
#[tokio::test(start_paused = true)]
async fn a_deletion_waits_for_the_node_but_not_for_ever() {
    let bed = Bed::new();
    let local = Local::open(bed.config(), Readiness::new(State::Ready)).unwrap();
    for is_unstaged in [true, false] {
        let volume = local.create(order("pvc-1", MIB).into()).await.unwrap();
        let id = volume.id.as_str();
        let device = bound(&bed, id);
        let unstaged = async {
            tokio::time::sleep(UNSTAGE_PATIENCE / 2).await;
            (!is_unstaged).then_some(device)
        };
        let deletion = local.delete(volume.id.clone(), Secrets::default());
        let (deleted, _device) = tokio::join!(deletion, unstaged);
        if is_unstaged {
            assert_eq!(deleted, Ok(Done(())));
            continue;
        }
        assert_eq!(deleted.unwrap_err().kind, Kind::Precondition);
        let file = local.store.files.get(id).unwrap();
        assert_eq!(file.claimed(), Ok(Some(Claim::Delete)));
    }
}
