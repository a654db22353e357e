//! Tests of a NodeStageVolume call that reads a whole disk: the progress that it reports, and the
//! events that cancel it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_contract::drivers::OPENSTACK;
use belay_server::work::{Doing, Key};
use tokio::task::yield_now;
use tonic::Code;

use super::calls::send;
use crate::kernel::fake::{Fault, Holds};
use crate::operation::tests::bench::{BYTES, Form, MIB, Verb, Volume, World};
use crate::operation::tests::simulated::{DISK_DRIVER, Media, Simulated};
use crate::rpc::NodeService;
use crate::work::{Class, Pool};

/// A timeout after which a thread is considered stuck.
const WATCHDOG: Duration = Duration::from_secs(120);
/// An offset in the middle of the disk.
const READ: u64 = 300 * MIB;

/// Returns a volume on a blank disk that was in use before.
fn used(world: &Simulated) -> Volume {
    let mut volume = world.volume("vol", Form::Ext4);
    volume.content = "used";
    world.machine.discard(&volume.file());
    volume
}

/// Returns the position of the system call that reads the disk at the offset [`READ`], among the
/// system calls of NodeStageVolume.
fn call() -> usize {
    let world = Simulated::of(Media::Disks);
    let volume = used(&world);
    let node = world.start();
    world.machine.begin(None);
    volume.call(&node, Verb::Stage).unwrap();
    let calls = world.machine.end();
    let mkfs = calls.iter().position(|call| call.name == "mkfs write");
    let reads = (1..mkfs.unwrap()).rev();
    let mut reads = reads.filter(|at| calls[at - 1].name == "pread");
    let chunks = usize::try_from((BYTES - READ) / (128 << 10)).unwrap();
    reads.nth(chunks).unwrap()
}

#[tokio::test]
async fn a_stage_shows_how_much_it_has_read_and_an_unstage_ends_it() {
    let world = Simulated::of(Media::Disks);
    let volume = used(&world);
    let service = Arc::new(NodeService::new("", Pool::new(), &OPENSTACK));
    service.come_up(world.start_disks(DISK_DRIVER));
    let mut hangs = world.machine.hangs();
    hangs.mark_unchanged();
    world.machine.begin(Some(Fault::Hang(call())));
    let (own, staged) = (Arc::clone(&service), volume.clone());
    let stage = tokio::spawn(async move { send(&own, &staged, Verb::Stage).await });
    hangs.changed().await.unwrap();
    world.machine.end();

    let key = Key::new(Class::Change, &volume.id);
    let doing = service.jobs.view(&key).unwrap().doing;
    let Some(Doing {
        step: "probe",
        amount: Some(amount),
    }) = doing
    else {
        panic!("{doing:?}");
    };
    assert_eq!(amount.total, BYTES);
    assert!(amount.done.abs_diff(READ) <= MIB, "{amount:?}");
    let busy = send(&service, &volume, Verb::Unstage).await.unwrap_err();
    assert_eq!(busy.code(), Code::Aborted, "{busy}");
    world.machine.let_go();
    let ended = stage.await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Aborted, "{ended}");
    assert!(ended.message().contains("being unstaged"), "{ended}");
    assert_eq!(world.machine.holds(&volume.file()), Holds::Nothing);
    assert_eq!(world.left(), Vec::<String>::new());
    send(&service, &volume, Verb::Unstage).await.unwrap();

    // A later NodeStageVolume call succeeds, as if there had been no first call.
    send(&service, &volume, Verb::Stage).await.unwrap();
    send(&service, &volume, Verb::Unstage).await.unwrap();
    let since = Instant::now();
    while service.jobs.view(&key).is_some() {
        assert!(since.elapsed() < WATCHDOG);
        yield_now().await;
    }
}
