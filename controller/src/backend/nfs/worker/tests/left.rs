//! Tests that neither the files of a deleted volume nor the files of another program become a new
//! volume.

use super::*;

/// A volume of csi-driver-nfs can be found until it is retained.
#[test]
fn the_files_of_a_retained_volume_are_not_those_of_a_new_one() {
    for is_claimed in [true, false] {
        let share = Share::new();
        let order = NewVolume {
            on_delete: OnDelete::Retain,
            ..plain("pvc-1")
        };
        if is_claimed {
            share.create(&order).unwrap();
        }
        share.write("pvc-1/file");
        let deletion = OldVolume {
            on_delete: Some(OnDelete::Retain),
            ..old(&adopting(order.clone()), OnDelete::Delete)
        };
        share.delete(&deletion).unwrap();
        share.delete(&deletion).unwrap();
        assert_eq!(share.lookup(&order.at), None);
        for again in [
            order.clone(),
            volume("pvc-1", "pvc-2"),
            volume("pvc-1/x", "pvc-2"),
        ] {
            let result = share.create(&again);
            refused(result, Kind::Incompatible, "was retained when its volume");
        }
        // A volume of csi-driver-nfs inside the directory must not be deleted.
        let inside = adopting(volume("pvc-1/y", "pvc-3"));
        share.write("pvc-1/y/file");
        let result = share.delete(&old(&inside, OnDelete::Delete));
        refused(result, Kind::Precondition, "remove it by hand");
        share.delete(&old(&inside, OnDelete::Retain)).unwrap();
        assert_eq!(names(&share.path("pvc-1")), ["file", "y"]);
        // After the operator has moved the directory away, as the message requests, its name is
        // free.
        fs::rename(share.path("pvc-1"), share.path("kept")).unwrap();
        share.create(&plain("pvc-1")).unwrap();
        assert_eq!(names(&share.path("pvc-1")), [""; 0]);
        share
            .delete(&old(&plain("pvc-1"), OnDelete::Delete))
            .unwrap();
        share.assert_clean();
    }
}

#[test]
fn no_volume_is_created_in_an_archive() {
    let share = Share::new();
    let order = NewVolume {
        on_delete: OnDelete::Archive,
        ..volume("ns/data", "pvc-1")
    };
    share.create(&order).unwrap();
    share.write("ns/data/file");
    share.delete(&old(&order, OnDelete::Delete)).unwrap();
    for (dir, words) in [
        ("archived-ns/data", "is the archive of volume \"pvc-1\""),
        ("archived-ns/data/x", "is the archive of volume \"pvc-1\""),
        ("archived-ns", "has the directories of other volumes"),
    ] {
        refused(
            share.create(&volume(dir, "pvc-2")),
            Kind::Incompatible,
            words,
        );
    }
    assert_eq!(names(&share.path("archived-ns/data")), ["file"]);
    // Another program has created this directory, for which no claim file exists.
    share.write("archived-pvc-9/file");
    let inside = share.create(&volume("archived-pvc-9/x", "pvc-2"));
    refused(inside, Kind::Incompatible, "is called as an archive");
    // After the operator has moved the archive away, its name is free.
    fs::rename(share.path("archived-ns"), share.path("kept")).unwrap();
    share.create(&volume("archived-ns/data", "pvc-2")).unwrap();
}

#[test]
fn no_volume_is_created_in_a_directory_with_files() {
    let share = Share::new();
    share.write("foreign/file");
    share.write("ns/pvc-1/file");
    for dir in ["foreign/x", "foreign/x/y"] {
        let result = share.create(&volume(dir, "pvc-2"));
        refused(
            result,
            Kind::Incompatible,
            "is inside foreign, which has files",
        );
    }
    assert_eq!(names(&share.path("foreign")), ["file"]);
    assert_eq!(names(&share.path(".belay/claims")), [""; 0]);
    // The directory `ns` is the directory of a namespace, which csi-driver-nfs has created.
    share.create(&volume("ns/pvc-2", "pvc-2")).unwrap();
    // According to a claim, the directory contains a volume, so files of another program in the
    // directory are allowed.
    share.write("ns/file");
    share.create(&volume("ns/pvc-3", "pvc-3")).unwrap();
}

#[test]
fn a_directory_can_be_used_when_what_was_retained_below_it_is_moved_away() {
    let share = Share::new();
    let retained = NewVolume {
        on_delete: OnDelete::Retain,
        ..volume("ns/data", "pvc-1")
    };
    share.create(&retained).unwrap();
    share.delete(&old(&retained, OnDelete::Delete)).unwrap();
    // Give the second volume the claim of an abandoned creation.
    share.create(&volume("ns/x", "pvc-2")).unwrap();
    let ready = claim_of(&share, "ns/x");
    let creating = ready.with_extension("creating");
    fs::rename(&ready, &creating).unwrap();
    let file = fs::File::options().write(true).open(&creating).unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    file.set_modified(long_ago).unwrap();
    let whole = volume("ns", "pvc-3");
    for kept in ["data", "x"] {
        let result = share.create(&whole);
        refused(result, Kind::Incompatible, "has the directories of other");
        fs::remove_dir(share.path("ns").join(kept)).unwrap();
    }
    fs::remove_dir(share.path("ns")).unwrap();
    share.create(&whole).unwrap();
    assert_eq!(names(&share.path(".belay/claims")).len(), 1);
}
