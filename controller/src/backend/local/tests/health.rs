//! The health of volumes whose files cannot be inspected, or are removed during the inspection.

use super::{Bed, MIB, delete, order};
use crate::backend::Volume;
use crate::backend::local::store::Store;
use belay_server::health::{Conditions, Severity};
use belay_server::request::VolumeId;
use std::fs;

type Told = Vec<(Severity, &'static str)>;

fn told(conditions: &Conditions) -> Told {
    let all = conditions.iter();
    all.map(|condition| (condition.reason.severity(), condition.reason.name()))
        .collect()
}

/// Returns the ID of a volume whose path is under another volume's file, so that inspecting it
/// fails with ENOTDIR, even for root.
fn unreadable(store: &Store, beneath: &Volume) -> VolumeId {
    let id = VolumeId::new(format!("{}/beneath", beneath.id)).unwrap();
    let record = store.ledger.get(beneath.id.as_str()).unwrap().unwrap();
    let put = store
        .ledger
        .change(|changes| changes.put(id.as_str(), &record));
    put.unwrap();
    id
}

#[test]
fn a_file_that_cannot_be_looked_at_is_unhealthy_alone() {
    let bed = Bed::new();
    let store = bed.open();
    let well = store.create(&order("pvc-1", MIB), None).unwrap();
    let missing = store.create(&order("pvc-2", MIB), None).unwrap();
    fs::remove_file(bed.file(missing.id.as_str())).unwrap();
    let bad = unreadable(&store, &well);
    let is_bad = vec![(Severity::Inaccessible, "BackingFileUnreadable")];
    let is_missing = vec![(Severity::DataLoss, "BackingFileMissing")];

    let of = [&bad, &missing.id, &well.id].map(|id| (id.clone(), MIB));
    let conditions = store.conditions(&of).unwrap();
    let conditions: Vec<_> = conditions.iter().map(told).collect();
    assert_eq!(conditions, [is_bad.clone(), is_missing.clone(), vec![]]);

    let health = store.health(&bad).unwrap().unwrap();
    assert_eq!(told(&health), is_bad);
    let page = store.list_unhealthy(None, usize::MAX).unwrap();
    let unhealthy = page.volumes.into_iter();
    let mut unhealthy: Vec<_> = unhealthy.map(|it| (it.id, told(&it.conditions))).collect();
    let mut expected = [(bad, is_bad), (missing.id, is_missing)];
    unhealthy.sort_by(|one, other| one.0.cmp(&other.0));
    expected.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(unhealthy, expected);
}

#[test]
fn a_file_that_is_about_to_follow_its_volume_is_not_called_cut() {
    let bed = Bed::new();
    let store = bed.open();
    let volume = store.create(&order("pvc-1", 2 * MIB), None).unwrap();
    let id = volume.id.as_str();
    let health = || told(&store.health(&volume.id).unwrap().unwrap());
    let backing = store.files.get(id).unwrap();
    store.promise(id, 3 * MIB, &backing).unwrap();
    let listed = [(volume.id.clone(), 3 * MIB)];
    assert_eq!(health(), []);
    assert_eq!(told(&store.conditions(&listed).unwrap()[0]), []);
    let file = fs::File::options().write(true).open(bed.file(id)).unwrap();
    file.set_len(MIB).unwrap();
    assert_eq!(health(), [(Severity::DataLoss, "BackingFileShort")]);
    file.set_len(2 * MIB).unwrap();
    store.resize(id, 3 * MIB).unwrap();
    assert_eq!(health(), []);
}

#[test]
fn a_volume_that_is_deleted_since_it_was_listed_is_not_lost() {
    let bed = Bed::new();
    let store = bed.open();
    let deleting = store.create(&order("pvc-1", MIB), None).unwrap();
    let deleted = store.create(&order("pvc-2", MIB), None).unwrap();
    let lost = store.create(&order("pvc-3", MIB), None).unwrap();
    let listed = store.list(None, usize::MAX).unwrap().volumes;
    store.begin_delete(deleting.id.as_str()).unwrap();
    fs::remove_file(bed.file(deleting.id.as_str())).unwrap();
    delete(&store, deleted.id.as_str()).unwrap();
    fs::remove_file(bed.file(lost.id.as_str())).unwrap();

    let listed: Vec<_> = listed.into_iter().map(|it| (it.id, it.bytes)).collect();
    assert_eq!(listed.len(), 3);
    let conditions = store.conditions(&listed).unwrap();
    for ((id, _), conditions) in listed.iter().zip(&conditions) {
        let expected: &[_] = match *id == lost.id {
            true => &[(Severity::DataLoss, "BackingFileMissing")],
            false => &[],
        };
        assert_eq!(told(conditions), expected, "{id}");
    }
    assert_eq!(conditions.len(), 3);
}
