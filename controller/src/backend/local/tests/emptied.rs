//! The file of a volume with a filesystem is reported as damaged, and not copied, if it was
//! emptied.

use super::copied::left_to_copier;
use super::{Bed, MIB, delete, of_snapshot, of_volume, order, snapshot_order};
use crate::backend::local::store::Store;
use crate::backend::{Order, Usage, Volume};
use belay_contract::drivers::local::{IS_NEW, NEW};
use belay_server::call::{Failure, Kind};
use belay_server::health::Severity;
use rustix::fs::XattrFlags;
use std::fs::{self, File, OpenOptions};
use std::path::Path;

pub(super) fn filesystem(name: &str) -> Order {
    Order {
        usage: Usage::Filesystem("ext4".into()),
        ..order(name, MIB)
    }
}

/// Empties a file like `truncate -s 0` and `truncate -s SIZE`.
pub(super) fn empty(file: &Path) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.set_len(0).unwrap();
    file.set_len(MIB).unwrap();
}

/// Creates a volume that was written to.
pub(super) fn written(bed: &Bed, store: &Store, order: &Order) -> Volume {
    let volume = store.create(order, None).unwrap();
    bed.write(volume.id.as_str());
    volume
}

fn assert_lost(failure: &Failure, id: &str) {
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    for word in [id, "BackingFileEmpty"] {
        assert!(failure.message.contains(word), "{failure}");
    }
}

fn reasons(store: &Store, volume: &Volume) -> Vec<(Severity, &'static str)> {
    let conditions = store.health(&volume.id).unwrap().unwrap();
    let all = conditions.iter();
    all.map(|condition| (condition.reason.severity(), condition.reason.name()))
        .collect()
}

super::everywhere! {
    an_emptied_filesystem_gives_no_snapshot_and_no_clone_and_is_reported,
    a_volume_that_is_emptied_before_its_copy_begins_makes_no_snapshot_ready,
    an_emptied_snapshot_of_a_filesystem_is_not_restored,
    an_emptied_snapshot_of_a_filesystem_is_not_listed_as_ready,
    a_file_without_data_and_without_attributes_is_not_taken_for_new,
    a_raw_volume_may_have_been_discarded_and_a_new_one_is_empty,
}

fn an_emptied_filesystem_gives_no_snapshot_and_no_clone_and_is_reported(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = written(&bed, &store, &filesystem("pvc-1"));
    let id = volume.id.as_str();
    assert_eq!(reasons(&store, &volume), []);
    empty(&bed.file(id));
    assert_lost(&store.cut(&snapshot_order("s", &volume)).unwrap_err(), id);
    let cloned = store.create(&filesystem("pvc-2"), of_volume(&volume).as_ref());
    assert_lost(&cloned.unwrap_err(), id);
    assert_eq!((bed.snapshot_files(), bed.files().len()), (0, 1));
    let lost = (Severity::DataLoss, "BackingFileEmpty");
    assert_eq!(reasons(&store, &volume), [lost]);
    let unhealthy = store.list_unhealthy(None, usize::MAX).unwrap().volumes;
    assert_eq!(unhealthy.len(), 1);
    assert_eq!(
        unhealthy[0].conditions.iter().next().unwrap().reason.name(),
        lost.1
    );
    // The file was restored from a backup.
    bed.write(id);
    assert_eq!(reasons(&store, &volume), []);
    store.cut(&snapshot_order("s", &volume)).unwrap();
}

fn a_volume_that_is_emptied_before_its_copy_begins_makes_no_snapshot_ready(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = written(&bed, &store, &filesystem("pvc-1"));
    let snapshot = left_to_copier(&bed, &store, &volume);
    empty(&bed.file(volume.id.as_str()));
    let copied = store.copy_snapshot(&store.copies.next().unwrap());
    assert_lost(&copied.unwrap_err(), volume.id.as_str());
    assert!(!store.snapshot(&snapshot).unwrap().unwrap().ready);
    let again = store.cut(&snapshot_order("snap", &volume));
    assert_lost(&again.unwrap_err(), volume.id.as_str());
}

fn an_emptied_snapshot_of_a_filesystem_is_not_restored(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = written(&bed, &store, &filesystem("pvc-1"));
    let snapshot = super::cut(&store, &snapshot_order("s", &volume));
    empty(&bed.snapshot_file(snapshot.id.as_str()));
    let restored = store.create(&filesystem("pvc-2"), of_snapshot(&snapshot).as_ref());
    let failure = restored.unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    assert!(failure.message.contains(snapshot.id.as_str()), "{failure}");
    assert_eq!(bed.files().len(), 1);
}

fn an_emptied_snapshot_of_a_filesystem_is_not_listed_as_ready(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let (filesystem, raw) = (filesystem("pvc-1"), order("pvc-2", MIB));
    let [of_filesystem, of_raw] = [(filesystem, "s-1"), (raw, "s-2")].map(|(order, name)| {
        let volume = written(&bed, &store, &order);
        let snapshot = super::cut(&store, &snapshot_order(name, &volume));
        // The volume may have been deleted by the time of the check.
        delete(&store, volume.id.as_str()).unwrap();
        snapshot.id
    });
    let ready = || {
        let listed = store.list_snapshots(None, None, usize::MAX).unwrap();
        let all = listed.snapshots.into_iter().filter(|found| found.ready);
        all.map(|found| found.id).collect::<Vec<_>>()
    };
    assert_eq!(ready().len(), 2);
    for id in [&of_filesystem, &of_raw] {
        empty(&bed.snapshot_file(id.as_str()));
    }
    // The user of a raw volume may have discarded all blocks before the snapshot was taken.
    assert_eq!(ready(), [of_raw]);
    let lost = store.snapshot(&of_filesystem).unwrap().unwrap();
    let damage = lost.damage.unwrap();
    assert!(damage.contains(of_filesystem.as_str()), "{damage}");
}

fn a_file_without_data_and_without_attributes_is_not_taken_for_new(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let volume = store.create(&filesystem("pvc-1"), None).unwrap();
    let file = bed.file(volume.id.as_str());
    // A tool that keeps no attributes has copied the file.
    fs::remove_file(&file).unwrap();
    File::create(&file).unwrap().set_len(MIB).unwrap();
    let lost = (Severity::DataLoss, "BackingFileEmpty");
    assert_eq!(reasons(&store, &volume), [lost]);
    let cut = store.cut(&snapshot_order("s", &volume));
    assert_lost(&cut.unwrap_err(), volume.id.as_str());
    // For a volume that was never used, docs/health.md advises to set this attribute.
    rustix::fs::setxattr(&file, NEW, IS_NEW, XattrFlags::empty()).unwrap();
    assert_eq!(reasons(&store, &volume), []);
    super::cut(&store, &snapshot_order("s", &volume));
}

fn a_raw_volume_may_have_been_discarded_and_a_new_one_is_empty(folder: &Path) {
    let bed = Bed::beneath(folder);
    let store = bed.open();
    let raw = written(&bed, &store, &order("pvc-1", MIB));
    empty(&bed.file(raw.id.as_str()));
    let new = store.create(&filesystem("pvc-2"), None).unwrap();
    for (name, volume) in [("s-1", &raw), ("s-2", &new)] {
        assert_eq!(reasons(&store, volume), []);
        super::cut(&store, &snapshot_order(name, volume));
    }
}
