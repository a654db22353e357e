//! Tests in which the source of a snapshot or clone is truncated, or opened by another program.

use super::copied::left_to_copier;
use super::{
    Bed, MIB, cut, delete, intended_snapshot, of_snapshot, of_volume, order, snapshot_order,
};
use crate::backend::local::store::Store;
use crate::backend::{Order, Usage, Volume};
use belay_server::call::Kind;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;

fn made(bed: &Bed) -> (Store, Volume) {
    let store = bed.open();
    let volume = store.create(&order("pvc-1", MIB), None).unwrap();
    bed.write(volume.id.as_str());
    (store, volume)
}

fn shorten(bed: &Bed, volume: &Volume) {
    let path = bed.file(volume.id.as_str());
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(MIB - 1).unwrap();
}

#[test]
fn a_file_that_is_truncated_before_it_is_left_to_the_copier_is_not_cut() {
    let bed = Bed::new();
    let (store, volume) = made(&bed);
    let id = intended_snapshot(&store, &snapshot_order("snap", &volume));
    drop(store.snapshots.begin(&id).unwrap());
    let from = store.files.get_for_reading(volume.id.as_str()).unwrap();
    shorten(&bed, &volume);
    let refused = store.leave_to_copier(&id, volume.id.as_str(), &from);
    assert_eq!(refused.unwrap_err().kind, Kind::Precondition);
    assert!(store.copies.lock(&id).is_none());
}

#[test]
fn a_file_that_was_truncated_before_its_copy_resumes_makes_no_short_snapshot() {
    let bed = Bed::new();
    let (store, volume) = made(&bed);
    let id = left_to_copier(&bed, &store, &volume);
    drop(store);
    shorten(&bed, &volume);
    let store = bed.open();
    let copied = store.copy_snapshot(id.as_str());
    assert_eq!(copied.unwrap_err().kind, Kind::Precondition);
    assert!(!store.snapshot(&id).unwrap().unwrap().ready);
}

#[test]
fn a_file_that_another_program_writes_to_when_its_copy_resumes_is_not_copied() {
    let bed = Bed::new();
    let (store, volume) = made(&bed);
    let id = left_to_copier(&bed, &store, &volume);
    drop(store);
    let store = bed.open();
    let path = bed.file(volume.id.as_str());
    let writer = OpenOptions::new().write(true).open(path).unwrap();
    let refused = store.copy_snapshot(id.as_str()).unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(refused.message.contains("open for writing"), "{refused}");
    drop(writer);
    // The program may have written to the file.
    let refused = store.copy_snapshot(id.as_str()).unwrap_err();
    assert!(refused.message.contains("may have changed"), "{refused}");
    assert!(!store.snapshot(&id).unwrap().unwrap().ready);
}

/// The magic numbers, as mkfs writes them.
const SUPERBLOCKS: [(&str, u64, &[u8]); 3] = [
    ("ext4", 1080, b"\x53\xef"),
    ("xfs", 0, b"XFSB"),
    ("btrfs", 65_600, b"_BHRfS_M"),
];

fn write_at(bed: &Bed, volume: &Volume, at: u64, bytes: &[u8]) {
    let path = bed.file(volume.id.as_str());
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

fn as_filesystem(name: &str, fs_type: &str) -> Order {
    Order {
        usage: Usage::Filesystem(fs_type.to_owned()),
        ..order(name, MIB)
    }
}

#[test]
fn a_copy_that_is_requested_with_another_filesystem_than_its_source_has_is_not_created() {
    for (contained, at, magic) in SUPERBLOCKS {
        let bed = Bed::new();
        let (store, volume) = made(&bed);
        write_at(&bed, &volume, at, magic);
        let snapshot = cut(&store, &snapshot_order("snap", &volume));
        for source in [of_snapshot(&snapshot), of_volume(&volume)] {
            let create = |order: &Order| store.create(order, source.as_ref());
            for (asked, ..) in SUPERBLOCKS {
                let made = create(&as_filesystem("copy", asked));
                if asked == contained {
                    delete(&store, made.unwrap().id.as_str()).unwrap();
                    continue;
                }
                let failure = made.unwrap_err();
                assert_eq!(failure.kind, Kind::Invalid, "{failure}");
                let names = format!("contains {contained}, but {asked} is requested");
                assert!(failure.message.contains(&names), "{failure}");
                assert_eq!(bed.files().len(), 1, "{asked}");
            }
            // Without an fsType, the node agent chooses; a raw volume may contain any filesystem.
            for order in [as_filesystem("copy", ""), order("copy", MIB)] {
                delete(&store, create(&order).unwrap().id.as_str()).unwrap();
            }
        }
    }
}

#[test]
fn a_copy_of_a_source_that_may_have_the_requested_filesystem_is_left_to_the_node() {
    let bed = Bed::new();
    let (store, volume) = made(&bed);
    let create = |asked| store.create(&as_filesystem("copy", asked), of_volume(&volume).as_ref());
    // The source has no known magic number.
    delete(&store, create("xfs").unwrap().id.as_str()).unwrap();
    for (_, at, magic) in SUPERBLOCKS {
        write_at(&bed, &volume, at, magic);
    }
    for (asked, ..) in SUPERBLOCKS {
        delete(&store, create(asked).unwrap().id.as_str()).unwrap();
    }
}
