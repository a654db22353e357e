//! Snapshots of a volume while a program writes to it and syncs every step: each cut is a state of
//! that program. Uses a real xfs and real loop devices; needs root, and a private mount namespace.

use crate::bed::{Bed, Client, create, created, cut, restore, snapshot};
use crate::mounts::{Mount, Xfs};
use belay_bed::patience::until;
use belay_bed::tools::{run, text};
use belay_bed::{devices, requests};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ROUNDS: usize = 100;
/// The size of the volume, in bytes.
const VOLUME_BYTES: i64 = 256 << 20;
/// The size of each file in bytes, so that the compared data is far apart: while a plain copy
/// proceeds from one to the other, the program makes many steps.
const FILE_BYTES: usize = 64 << 20;

/// Two files that are written in turn, with a sync after each step.
struct Pair([File; 2]);

impl Pair {
    fn open(dir: &Path) -> Self {
        Self(["first", "second"].map(|name| {
            let mut options = File::options();
            let options = options.read(true).write(true).create(true);
            options.open(dir.join(name)).unwrap()
        }))
    }

    /// Uses all free space.
    fn fill(&self) {
        for file in &self.0 {
            file.write_all_at(&vec![1; FILE_BYTES], 0).unwrap();
            file.sync_all().unwrap();
        }
    }

    /// Writes the next number to both files, one after the other.
    fn step(&self, number: u64) {
        for file in &self.0 {
            file.write_all_at(&number.to_le_bytes(), 0).unwrap();
            file.sync_all().unwrap();
        }
    }

    fn read(&self) -> [u64; 2] {
        [0, 1].map(|n| {
            let mut number = [0; 8];
            let file: &File = &self.0[n];
            file.read_exact_at(&mut number, 0).unwrap();
            u64::from_le_bytes(number)
        })
    }
}

/// Restores the snapshot of one round, reads both numbers, and removes everything again.
async fn look(bed: &Bed, client: &mut Client, scratch: &Path, snapshot_id: &str) -> [u64; 2] {
    let request = restore("restored", VOLUME_BYTES, snapshot_id);
    let volume_id = created(client, request).await.volume_id;
    let image = bed.volumes_dir().join(&volume_id);
    let pair = {
        let mounted = Mount::new(&image, scratch.join("restored"));
        Pair::open(mounted.path()).read()
    };
    fs::remove_dir(scratch.join("restored")).unwrap();
    // Another process, such as udev, may have the device open for a moment longer.
    until("the device of the restored volume is free", || {
        let all = devices::list().unwrap();
        devices::bound_to(&all, &image).unwrap().is_empty()
    });
    let request = requests::delete(&volume_id);
    client.delete_volume(request).await.unwrap();
    let request = requests::discard(snapshot_id);
    client.delete_snapshot(request).await.unwrap();
    pair
}

#[tokio::test]
#[ignore = "mounts: needs root and a private mount namespace"]
async fn no_snapshot_of_a_volume_under_a_writer_is_torn() {
    let scratch = tempfile::tempdir().unwrap();
    let xfs = Xfs::new();
    let bed = Bed::beneath(xfs.path(), &[]);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let id = created(&mut client, create("pvc-1", VOLUME_BYTES))
        .await
        .volume_id;
    let file = bed.volumes_dir().join(&id);
    run("mkfs.ext4", &["-q", text(&file)]);
    bed.begin_use(&id);
    // The loop device of a staged volume holds this lock.
    let lock = File::open(&file).unwrap();
    lock.try_lock().unwrap();
    let volume = Mount::new(&file, scratch.path().join("volume"));
    let pair = Pair::open(volume.path());
    pair.fill();
    pair.step(0);

    let (done, ended) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let writer = {
        let (done, ended) = (Arc::clone(&done), Arc::clone(&ended));
        std::thread::spawn(move || {
            while !ended.load(Ordering::SeqCst) {
                let number = done.load(Ordering::SeqCst) + 1;
                pair.step(number);
                done.store(number, Ordering::SeqCst);
            }
        })
    };
    let mut seen = Vec::new();
    for round in 0..ROUNDS {
        let before = done.load(Ordering::SeqCst);
        let cut = cut(&mut client, snapshot(&format!("snap-{round}"), &id)).await;
        let after = done.load(Ordering::SeqCst) + 1;
        assert!(cut.ready_to_use, "round {round}");
        let pair = look(&bed, &mut client, scratch.path(), &cut.snapshot_id).await;
        seen.push((before, pair, after));
    }
    ended.store(true, Ordering::SeqCst);
    writer.join().unwrap();
    for (before, [first, second], after) in &seen {
        // The numbers are equal, or the first is one step ahead. Everything that was synced before
        // is there, and nothing from after.
        assert!(first == second || *first == second + 1, "{seen:?}");
        assert!(before <= second && first <= after, "{seen:?}");
    }
    let steps = done.load(Ordering::SeqCst);
    assert!(steps > ROUNDS as u64, "the writer was at work: {steps}");
}
