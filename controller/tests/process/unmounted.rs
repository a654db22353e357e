//! A state directory whose disk is not mounted.

use crate::bed::{Bed, MIB, ROOMY, create, created};
use std::fs;

#[tokio::test]
async fn where_a_state_is_required_none_is_begun_on_the_disk_below() {
    let mut bed = Bed::new(&ROOMY);
    let mut controller = bed.start();
    let mut client = bed.client().await;
    let made = created(&mut client, create("pvc-1", MIB)).await;
    controller.kill();
    bed.add_flag("--require-state");
    let disk = bed.state_dir().with_extension("disk");
    fs::rename(bed.state_dir(), &disk).unwrap();
    // These are files below the mount point, or created by the kubelet.
    fs::create_dir(bed.state_dir()).unwrap();
    let log = bed.refused();
    for words in ["state.redb", "--require-state", "mount"] {
        assert!(log.contains(words), "{log}");
    }
    let left = fs::read_dir(bed.state_dir()).unwrap().count();
    assert_eq!(left, 0, "it left files on the disk below");
    fs::remove_dir(bed.state_dir()).unwrap();
    fs::rename(&disk, bed.state_dir()).unwrap();
    let _controller = bed.start();
    let mut client = bed.client().await;
    assert_eq!(created(&mut client, create("pvc-1", MIB)).await, made);
}
