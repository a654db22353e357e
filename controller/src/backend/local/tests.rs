//! `local` on real directories: every verb, and a death after every step of those that change.

use super::create::Intent;
use super::record::State;
use super::recover::Recovered;
use super::store::Store;
use super::{Config, Overcommit};
use crate::backend::{AttachOrder, Content, Order, Terms, Usage, Volume};
use belay_server::failure::{Certainty, Kind};
use belay_server::request::{AccessMode, Name, NodeId, VolumeId};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

/// A state directory that is removed at the end.
struct Bed {
    dir: tempfile::TempDir,
    overcommit: Overcommit,
}

impl Bed {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            overcommit: "1000000".parse().unwrap(),
        }
    }

    fn config(&self) -> Config {
        Config {
            state_dir: self.dir.path().join("state"),
            node: node("node-1"),
            overcommit: self.overcommit,
        }
    }

    fn open(&self) -> Store {
        self.recover().0
    }

    fn recover(&self) -> (Store, Recovered) {
        let store = Store::open(self.config()).unwrap();
        let recovered = store.recover().unwrap();
        (store, recovered)
    }

    fn file(&self, id: &str) -> PathBuf {
        self.dir.path().join("state/volumes").join(id)
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("state/volumes")).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// Writes to a volume as its node would.
    fn write(&self, id: &str) {
        let file = OpenOptions::new().write(true).open(self.file(id)).unwrap();
        file.write_all_at(b"data", 4096).unwrap();
        file.sync_all().unwrap();
    }
}

fn node(id: &str) -> NodeId {
    NodeId::new(id).unwrap()
}

fn order(name: &str, bytes: u64) -> Order {
    Order {
        name: Name::new(name).unwrap(),
        bytes,
        usage: Usage::Block,
    }
}

fn attach_order(volume: &Volume, node_id: &str) -> AttachOrder {
    AttachOrder {
        id: volume.id.clone(),
        node: node(node_id),
        terms: Terms {
            read_only: false,
            block: true,
            mode: AccessMode::SingleNodeWriter,
        },
        node_limit: None,
    }
}

fn ids(store: &Store) -> Vec<String> {
    let page = store.list(None, usize::MAX).unwrap();
    page.volumes
        .iter()
        .map(|volume| volume.id.as_str().to_owned())
        .collect()
}

fn intended(store: &Store, order: &Order) -> String {
    match store.intend(order).unwrap() {
        Intent::Made(id) => id,
        Intent::Exists(_) | Intent::Remains(_) => panic!("{order:?} should be new"),
    }
}

#[test]
fn a_volume_is_a_private_sparse_file_of_its_size() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", 5 * MIB)).unwrap();
    let file = fs::metadata(bed.file(volume.id.as_str())).unwrap();
    assert_eq!((file.len(), file.blocks()), (5 * MIB, 0));
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    for private in ["state.redb", "lock"] {
        let file = fs::metadata(bed.dir.path().join("state").join(private)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "{private}");
    }
    assert_eq!(
        store.find(&Name::new("pvc-1").unwrap()).unwrap(),
        Some(volume.clone())
    );
    assert_eq!(store.get(&volume.id).unwrap(), Some(volume));
}

#[test]
fn a_taken_name_gives_the_volume_that_has_it() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB)).unwrap();
    assert_eq!(store.create(&order("pvc-1", 7 * MIB)).unwrap(), volume);
    assert_eq!(bed.files().len(), 1);
}

#[test]
fn a_second_process_cannot_have_the_same_state_directory() {
    let bed = Bed::new();
    let _store = bed.open();
    let failure = Store::open(bed.config()).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    assert!(failure.message.contains("state/lock"), "{failure}");
}

#[test]
fn a_half_made_ledger_is_begun_again() {
    let bed = Bed::new();
    let draft = bed.dir.path().join("state/state.redb.new");
    fs::create_dir_all(draft.parent().unwrap()).unwrap();
    fs::write(&draft, b"cut short").unwrap();
    let store = bed.open();
    store.create(&order("pvc-1", MIB)).unwrap();
    assert!(!draft.exists());
}

#[test]
fn a_creation_that_died_after_any_step_leaves_nothing_and_frees_the_name() {
    type Step = fn(&Store, &str);
    let steps: [Step; 4] = [
        |_, _| {},
        |store, id| drop(store.files.begin(id).unwrap()),
        |store, id| store.files.get(id).unwrap().grow(MIB).unwrap(),
        |store, _| store.files.sync().unwrap(),
    ];
    for died_after in 0..steps.len() {
        let bed = Bed::new();
        let store = bed.open();
        let id = intended(&store, &order("pvc-1", MIB));
        steps[..=died_after]
            .iter()
            .for_each(|step| step(&store, &id));
        drop(store);
        let (store, recovered) = bed.recover();
        assert_eq!(
            recovered,
            Recovered {
                undone: 1,
                ..Recovered::default()
            },
            "{died_after}"
        );
        assert_eq!(store.ledger.totals().unwrap().bytes, 0);
        assert!(bed.files().is_empty() && ids(&store).is_empty());
        let volume = store.create(&order("pvc-1", 2 * MIB)).unwrap();
        assert_eq!(ids(&store), [volume.id.as_str()]);
    }
}

#[test]
fn a_creation_whose_file_holds_data_is_kept_and_told() {
    let bed = Bed::new();
    let store = bed.open();
    let id = intended(&store, &order("pvc-1", MIB));
    store.files.begin(&id).unwrap().grow(MIB).unwrap();
    bed.write(&id);
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!(
        recovered,
        Recovered {
            troubles: 1,
            ..Recovered::default()
        }
    );
    assert_eq!(bed.files(), [id]);
    assert_eq!(
        store.create(&order("pvc-1", MIB)).unwrap_err().kind,
        Kind::Busy
    );
}

#[test]
fn a_deletion_that_died_after_any_step_is_finished() {
    type Step = fn(&Store, &str);
    let steps: [Step; 2] = [
        |store, id| store.begin_delete(id).unwrap(),
        |store, id| store.files.remove(id).unwrap(),
    ];
    for died_after in 0..steps.len() {
        let bed = Bed::new();
        let store = bed.open();
        let volume = store.create(&order("pvc-1", MIB)).unwrap();
        let id = volume.id.as_str();
        bed.write(id);
        steps[..=died_after]
            .iter()
            .for_each(|step| step(&store, id));
        assert_eq!(store.get(&volume.id).unwrap(), None);
        drop(store);
        let (store, recovered) = bed.recover();
        assert_eq!(
            recovered,
            Recovered {
                deleted: 1,
                ..Recovered::default()
            },
            "{died_after}"
        );
        assert!(bed.files().is_empty());
        assert_eq!(store.ledger.get(id).unwrap(), None);
        assert_eq!(store.ledger.totals().unwrap().bytes, 0);
    }
}

#[test]
fn a_name_whose_deletion_was_interrupted_is_made_anew_without_a_restart() {
    let bed = Bed::new();
    let store = bed.open();
    let old = store.create(&order("pvc-1", MIB)).unwrap();
    store.begin_delete(old.id.as_str()).unwrap();
    let new = store.create(&order("pvc-1", MIB)).unwrap();
    assert_ne!(old.id, new.id);
    assert_eq!(bed.files(), [new.id.as_str()]);
}

#[test]
fn a_promised_growth_follows_at_the_next_start() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB)).unwrap();
    store.promise(volume.id.as_str(), 3 * MIB).unwrap();
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!(
        recovered,
        Recovered {
            grown: 1,
            ..Recovered::default()
        }
    );
    assert_eq!(
        fs::metadata(bed.file(volume.id.as_str())).unwrap().len(),
        3 * MIB
    );
    assert_eq!(store.get(&volume.id).unwrap().unwrap().bytes, 3 * MIB);
}

#[test]
fn a_volume_without_its_file_is_kept_and_every_verb_names_the_path() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB)).unwrap();
    let id = volume.id.as_str();
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    fs::remove_file(bed.file(id)).unwrap();
    drop(store);
    let (store, recovered) = bed.recover();
    assert_eq!(
        recovered,
        Recovered {
            troubles: 1,
            ..Recovered::default()
        }
    );
    let failures = [
        store.attach(&attach_order(&volume, "node-1")).unwrap_err(),
        store.detach(id, &node("node-1")).unwrap_err(),
        store.resize(id, 2 * MIB).unwrap_err(),
    ];
    for failure in failures {
        assert_eq!(failure.kind, Kind::Precondition);
        assert!(
            failure.message.contains(&format!("state/volumes/{id}")),
            "{failure}"
        );
    }
    // The way out that the message names.
    File::create(bed.file(id)).unwrap();
    store.detach(id, &node("node-1")).unwrap();
    store.delete(id).unwrap();
    assert!(ids(&store).is_empty());
}

#[test]
fn a_stray_file_is_never_touched() {
    let bed = Bed::new();
    drop(bed.open());
    fs::write(
        bed.file("vol-00000000000000000000000000000000"),
        b"precious",
    )
    .unwrap();
    let (_store, recovered) = bed.recover();
    assert_eq!(
        recovered,
        Recovered {
            troubles: 1,
            ..Recovered::default()
        }
    );
    let kept = fs::read(bed.file("vol-00000000000000000000000000000000")).unwrap();
    assert_eq!(kept, b"precious");
}

#[test]
fn an_unknown_volume_is_deleted_and_detached_already() {
    let bed = Bed::new();
    let store = &bed.open();
    store.delete("vol-0").unwrap();
    store.delete("../state.redb").unwrap();
    store.detach("vol-0", &node("node-1")).unwrap();
    assert_eq!(store.resize("vol-0", MIB).unwrap_err().kind, Kind::NotFound);
}

#[test]
fn an_attached_volume_is_not_deleted_and_its_node_is_named() {
    let bed = Bed::new();
    let store = &bed.open();
    let volume = store.create(&order("pvc-1", MIB)).unwrap();
    let id = volume.id.as_str();
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    let failure = store.delete(id).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    assert!(failure.message.contains("node-1"), "{failure}");
    store.detach(id, &node("node-1")).unwrap();
    store.delete(id).unwrap();
    store.delete(id).unwrap();
}

#[test]
fn a_file_that_a_loop_device_has_is_neither_deleted_nor_detached() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB)).unwrap();
    let id = volume.id.as_str();
    // What the node's agent does, and the loop device goes on doing.
    let bound = File::open(bed.file(id)).unwrap();
    bound.try_lock().unwrap();
    assert_eq!(store.delete(id).unwrap_err().kind, Kind::Precondition);
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    let failure = store.detach(id, &node("node-1")).unwrap_err();
    assert_eq!(failure.kind, Kind::Busy);
    assert!(failure.message.contains("unstage"), "{failure}");
    assert_eq!(
        store.get(&volume.id).unwrap().unwrap().nodes,
        [node("node-1")]
    );
    drop(bound);
    store.detach(id, &node("node-1")).unwrap();
    store.delete(id).unwrap();
}

#[test]
fn content_is_used_from_the_first_write_and_stays_so() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB)).unwrap();
    let id = volume.id.as_str();
    let attach = || {
        store
            .attach(&attach_order(&volume, "node-1"))
            .unwrap()
            .content
    };
    assert_eq!(attach(), Content::New);
    store.detach(id, &node("node-1")).unwrap();
    assert_eq!(attach(), Content::New, "attached and never written");
    bed.write(id);
    assert_eq!(
        attach(),
        Content::Used,
        "a repeated call tells the truth of its moment"
    );
    store.detach(id, &node("node-1")).unwrap();
    // A discard makes it all holes again, and the volume is still not new.
    let file = OpenOptions::new().write(true).open(bed.file(id)).unwrap();
    file.set_len(0).unwrap();
    file.set_len(MIB).unwrap();
    assert_eq!(attach(), Content::Used);
}

#[test]
fn a_node_takes_only_as_many_volumes_as_it_may() {
    let bed = Bed::new();
    let store = &bed.open();
    let volumes: Vec<_> = (0..3)
        .map(|n| store.create(&order(&format!("pvc-{n}"), MIB)).unwrap())
        .collect();
    let attach = |volume| {
        store.attach(&AttachOrder {
            node_limit: Some(2),
            ..attach_order(volume, "node-1")
        })
    };
    attach(&volumes[0]).unwrap();
    attach(&volumes[1]).unwrap();
    attach(&volumes[1]).unwrap();
    let failure = attach(&volumes[2]).unwrap_err();
    assert_eq!(failure.kind, Kind::Quota);
    store
        .detach(volumes[0].id.as_str(), &node("node-1"))
        .unwrap();
    attach(&volumes[2]).unwrap();
}

#[test]
fn a_volume_goes_to_this_node_only_and_not_to_two() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB)).unwrap();
    let failure = store.attach(&attach_order(&volume, "node-2")).unwrap_err();
    assert_eq!(failure.kind, Kind::NotFound);
    store.attach(&attach_order(&volume, "node-1")).unwrap();
    drop(store);
    // The node was renamed while a volume was attached.
    let store = Store::open(Config {
        node: node("node-2"),
        ..bed.config()
    })
    .unwrap();
    let failure = store.attach(&attach_order(&volume, "node-2")).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    assert!(failure.message.contains("node-1"), "{failure}");
}

#[test]
fn more_than_the_filesystem_holds_is_not_promised() {
    let bed = Bed {
        overcommit: Overcommit::default(),
        ..Bed::new()
    };
    let store = bed.open();
    let available = store.available_bytes().unwrap();
    // Far more than can change while the test runs.
    let most = available / 2;
    let failure = store
        .create(&order("pvc-1", available.saturating_mul(2)))
        .unwrap_err();
    assert_eq!(
        (failure.kind, failure.certainty),
        (Kind::Quota, Certainty::NothingHappened)
    );
    let volume = store.create(&order("pvc-2", most)).unwrap();
    assert!(store.available_bytes().unwrap() < available - most / 2);
    let failure = store
        .resize(volume.id.as_str(), available.saturating_mul(2))
        .unwrap_err();
    assert_eq!(failure.kind, Kind::Quota);
    assert_eq!(store.get(&volume.id).unwrap().unwrap().bytes, most);
    assert!(bed.files().len() == 1);
}

#[test]
fn a_size_that_the_filesystem_has_not_is_undone_and_frees_the_name() {
    let bed = Bed::new();
    let store = bed.open();
    let too_large = store.largest_file_bytes + 1;
    if too_large > i64::MAX.unsigned_abs() {
        // A filesystem without a limit of its own.
        return;
    }
    let failure = store.create(&order("pvc-1", too_large)).unwrap_err();
    assert_eq!(
        (failure.kind, failure.certainty),
        (Kind::Range, Certainty::RolledBack)
    );
    assert!(bed.files().is_empty());
    let volume = store.create(&order("pvc-1", MIB)).unwrap();
    let failure = store.resize(volume.id.as_str(), too_large).unwrap_err();
    assert_eq!(
        (failure.kind, failure.certainty),
        (Kind::Range, Certainty::RolledBack)
    );
    assert_eq!(store.get(&volume.id).unwrap().unwrap().bytes, MIB);
}

#[test]
fn pages_hold_what_is_ready_and_follow_a_token_whose_volume_is_gone() {
    let bed = Bed::new();
    let store = &bed.open();
    for n in 0..5 {
        store.create(&order(&format!("pvc-{n}"), MIB)).unwrap();
    }
    intended(store, &order("pvc-half", MIB));
    let all = ids(store);
    assert_eq!(all.len(), 5);
    let first = store.list(None, 2).unwrap();
    assert_eq!(first.next.as_deref(), Some(all[1].as_str()));
    store.delete(&all[1]).unwrap();
    let second = store.list(first.next.as_deref(), 3).unwrap();
    let seen: Vec<_> = second
        .volumes
        .iter()
        .map(|volume| volume.id.as_str())
        .collect();
    assert_eq!(seen, all[2..]);
    assert_eq!(second.next, None);
    assert_eq!(store.list(Some("7"), 2).unwrap_err().kind, Kind::BadToken);
}

#[test]
fn the_sums_and_indexes_follow_every_change() {
    let bed = Bed::new();
    let store = bed.open();
    let totals = |store: &Store| {
        let totals = store.ledger.totals().unwrap();
        (totals.volumes, totals.bytes)
    };
    let one = store.create(&order("pvc-1", MIB)).unwrap();
    let two = store.create(&order("pvc-2", 2 * MIB)).unwrap();
    assert_eq!(totals(&store), (2, 3 * MIB));
    assert_eq!(store.resize(one.id.as_str(), 4 * MIB).unwrap(), 4 * MIB);
    assert_eq!(store.resize(one.id.as_str(), MIB).unwrap(), 4 * MIB);
    store.attach(&attach_order(&two, "node-1")).unwrap();
    drop(store);
    let store = bed.open();
    assert_eq!(totals(&store), (2, 6 * MIB));
    let attached = store
        .ledger
        .change(|changes| changes.attached_to("node-1"))
        .unwrap();
    assert_eq!(attached, 1);
    store.detach(two.id.as_str(), &node("node-1")).unwrap();
    store.delete(two.id.as_str()).unwrap();
    assert_eq!(totals(&store), (1, 4 * MIB));
    let attached = store
        .ledger
        .change(|changes| changes.attached_to("node-1"))
        .unwrap();
    assert_eq!(attached, 0);
    assert_eq!(store.find(&Name::new("pvc-2").unwrap()).unwrap(), None);
}

#[test]
fn a_failed_transaction_changes_nothing() {
    let bed = Bed::new();
    let store = &bed.open();
    let volume = store.create(&order("pvc-1", MIB)).unwrap();
    let id = VolumeId::as_str(&volume.id);
    let failed: Result<(), _> = store.ledger.change(|changes| {
        let mut record = changes.get(id)?.unwrap();
        record.state = State::Deleting;
        changes.put(id, &record)?;
        Err(belay_server::failure::Failure::busy("no"))
    });
    assert_eq!(failed.unwrap_err().kind, Kind::Busy);
    assert_eq!(store.get(&volume.id).unwrap(), Some(volume));
}
