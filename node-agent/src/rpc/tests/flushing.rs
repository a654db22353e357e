//! Tests of NodeUnpublishVolume for volumes that are disks: the volume's data is written to the
//! disk first, but a disk that fails or hangs does not prevent the unmount.

use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_contract::drivers::OPENSTACK;
use belay_contract::reason::volume::DATA_UNSYNCED;
use belay_proto::csi::v1 as csi;
use belay_server::facts::Facts as _;
use belay_server::work::Key;
use csi::node_server::Node as _;
use metrics::LocalRecorderGuard;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::advance;
use tonic::{Code, Request, Status};

use super::calls::send;
use crate::kernel::Kernel as _;
use crate::kernel::fake::{Fake, Fault};
use crate::operation::tests::bench::{Form, Verb, Volume, World};
use crate::operation::tests::simulated::{DISK_DRIVER, Media, Simulated};
use crate::rpc::NodeService;
use crate::work::{Class, Pool};

/// A timeout after which a thread is considered stuck.
const WATCHDOG: Duration = Duration::from_secs(120);
const FLUSHES: [(Form, &str); 2] = [(Form::Ext4, "syncfs"), (Form::Block, "fsync")];

struct Bench {
    world: Simulated,
    service: Arc<NodeService<Fake>>,
    volume: Volume,
    /// The position of the system call that writes the data to the disk, among the system calls of
    /// NodeUnpublishVolume.
    at: usize,
}

/// Publishes a volume on a disk.
async fn published((form, flush): (Form, &str)) -> Bench {
    let world = Simulated::of(Media::Disks);
    let volume = world.volume("vol", form);
    let service = Arc::new(NodeService::new("", Pool::new(), &OPENSTACK));
    service.come_up(world.start_disks(DISK_DRIVER));
    for verb in [Verb::Stage, Verb::Publish(1)] {
        send(&service, &volume, verb).await.unwrap();
    }
    world.machine.begin(None);
    send(&service, &volume, Verb::Unpublish(1)).await.unwrap();
    let calls = world.machine.end();
    let place = |name| calls.iter().position(|call| call.name == name);
    let flushed = place(flush).unwrap();
    assert!(flushed < place("umount2").unwrap(), "{calls:?}");
    send(&service, &volume, Verb::Publish(1)).await.unwrap();
    Bench {
        world,
        service,
        volume,
        at: flushed + 1,
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Release all hung calls. Otherwise, the runtime could not shut down.
        self.world.machine.kill_all();
    }
}

impl Bench {
    fn unpublish(&self) -> JoinHandle<Result<(), Status>> {
        let (service, volume) = (Arc::clone(&self.service), self.volume.clone());
        tokio::spawn(async move { send(&service, &volume, Verb::Unpublish(1)).await })
    }

    /// Unpublishes the volume while the fault delays the flush, until NodeUnpublishVolume no longer
    /// waits for the flush.
    async fn unpublish_without_flush(&self, fault: Fault) {
        let machine = &self.world.machine;
        let mut hangs = machine.hangs();
        hangs.mark_unchanged();
        machine.begin(Some(fault));
        let unpublish = self.unpublish();
        hung(&mut hangs).await;
        advance(Duration::from_secs(31)).await;
        until(|| unpublish.is_finished()).await;
        machine.end();
        unpublish.await.unwrap().unwrap();
    }

    async fn nothing_left(&self) {
        assert!(
            self.world
                .kernel()
                .look(&self.volume.target(1))
                .unwrap()
                .is_none()
        );
        send(&self.service, &self.volume, Verb::Unstage)
            .await
            .unwrap();
        assert_eq!(self.world.left(), Vec::<String>::new());
    }
}

/// Whether the volume's health, the status page and, if the volume is published, its statistics
/// report unsynced data.
async fn is_unsynced(bench: &Bench) -> bool {
    let name = DATA_UNSYNCED.name();
    let health =
        bench
            .service
            .node_get_volume_health(Request::new(csi::NodeGetVolumeHealthRequest {
                volume_id: bench.volume.id.clone(),
                staging_target_path: bench.volume.staging().display().to_string(),
                ..Default::default()
            }));
    let health = health.await.unwrap().into_inner().volume_health.unwrap();
    let mut reasons = health.health_statuses.iter();
    let is_unsynced = reasons.any(|entry| entry.reason == name);
    let counted = bench.service.known().unhealthy.get(name).copied();
    assert_eq!(counted, is_unsynced.then_some(1));
    let stats = bench
        .service
        .node_get_volume_stats(Request::new(csi::NodeGetVolumeStatsRequest {
            volume_id: bench.volume.id.clone(),
            volume_path: bench.volume.target(2).display().to_string(),
            ..Default::default()
        }));
    if let Ok(stats) = stats.await {
        let condition = stats.into_inner().volume_condition.unwrap();
        assert_eq!(
            condition.message.contains(name),
            is_unsynced,
            "{condition:?}"
        );
        assert!(condition.abnormal || !is_unsynced);
    }
    is_unsynced
}

/// Waits until a system call hangs.
async fn hung(hangs: &mut tokio::sync::watch::Receiver<u64>) {
    until(|| hangs.has_changed().unwrap()).await;
}

/// Waits in real time until the condition is true, because the clock of the calls is paused.
#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < WATCHDOG, "not in time: {caller}");
            yield_now().await;
        }
    }
}

/// A recorder that counts the values of the metric.
struct Counts(PrometheusRecorder);

impl Counts {
    /// Starts to count. Leaks the recorder, because the returned guard borrows the recorder.
    fn begin() -> (&'static Self, LocalRecorderGuard<'static>) {
        let counts = Box::leak(Box::new(Counts(PrometheusBuilder::new().build_recorder())));
        (counts, metrics::set_default_local_recorder(&counts.0))
    }

    fn expect(&self, reason: &str, times: usize) {
        let page = self.0.handle().render();
        let line = format!("belay_unflushed_unpublishes_total{{reason=\"{reason}\"}} {times}\n");
        assert!(page.contains(&line), "{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_disk_keeps_no_pod() {
    let (counts, _guard) = Counts::begin();
    for (flush, times) in FLUSHES.into_iter().zip(1..) {
        let bench = published(flush).await;
        bench
            .world
            .machine
            .begin(Some(Fault::Fail(bench.at, "EIO")));
        let unpublished = bench.unpublish().await.unwrap();
        bench.world.machine.end();
        unpublished.unwrap();
        counts.expect("failed", times);
        assert!(is_unsynced(&bench).await);
        send(&bench.service, &bench.volume, Verb::Publish(2))
            .await
            .unwrap();
        assert!(is_unsynced(&bench).await);
        // A flush of a different volume must not clear the condition.
        let mut other = bench.volume.clone();
        other.id = "other".to_owned();
        send(&bench.service, &other, Verb::Unpublish(1))
            .await
            .unwrap();
        assert!(is_unsynced(&bench).await);
        // Nothing is mounted at this target any longer, so nothing is flushed, and the condition
        // remains.
        send(&bench.service, &bench.volume, Verb::Unpublish(1))
            .await
            .unwrap();
        assert!(is_unsynced(&bench).await);
        // The kernel reports a write error only once and drops the data, so this flush succeeds
        // without that data.
        send(&bench.service, &bench.volume, Verb::Unpublish(2))
            .await
            .unwrap();
        assert!(is_unsynced(&bench).await);
        bench.nothing_left().await;
        assert!(!is_unsynced(&bench).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_does_not_answer_keeps_a_pod_for_half_a_minute() {
    let (counts, _guard) = Counts::begin();
    for (flush, times) in FLUSHES.into_iter().zip(1..) {
        let bench = published(flush).await;
        let machine = &bench.world.machine;
        let mut hangs = machine.hangs();
        hangs.mark_unchanged();
        machine.begin(Some(Fault::Hang(bench.at)));
        let unpublish = bench.unpublish();
        hung(&mut hangs).await;
        machine.end();
        for _ in 0..29 {
            advance(Duration::from_secs(1)).await;
            yield_now().await;
        }
        assert!(!unpublish.is_finished());
        advance(Duration::from_secs(2)).await;
        // The unmount runs on a thread of the pool, and the clock must not advance meanwhile.
        until(|| unpublish.is_finished()).await;
        unpublish.await.unwrap().unwrap();
        counts.expect("slow", 2 * times - 1);

        // The first flush is still in progress, so NodeUnpublishVolume for the next target does not
        // start a second flush.
        let busy = send(&bench.service, &bench.volume, Verb::Unstage).await;
        let busy = busy.unwrap_err();
        assert_eq!(busy.code(), Code::Aborted, "{busy}");
        assert!(busy.message().contains("now in flush"), "{busy}");
        for verb in [Verb::Publish(2), Verb::Unpublish(2)] {
            send(&bench.service, &bench.volume, verb).await.unwrap();
        }
        counts.expect("slow", 2 * times);
        assert_eq!(bench.service.unsynced.count(), 1);
        let flush = Key::new(Class::Flush, &bench.volume.id);
        assert!(bench.service.jobs.view(&flush).unwrap().is_hung);
        machine.let_go();
        until(|| bench.service.jobs.view(&flush).is_none()).await;
        // The flush began before the second NodeUnpublishVolume call, so it may not include the
        // data of the second pod.
        assert!(is_unsynced(&bench).await);
        for verb in [Verb::Publish(2), Verb::Unpublish(2)] {
            send(&bench.service, &bench.volume, verb).await.unwrap();
        }
        assert!(!is_unsynced(&bench).await);
        bench.nothing_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_succeeds_late_ends_the_condition() {
    for flush in FLUSHES {
        let bench = published(flush).await;
        bench.unpublish_without_flush(Fault::Hang(bench.at)).await;
        assert_eq!(bench.service.unsynced.count(), 1);
        bench.world.machine.let_go();
        until(|| bench.service.unsynced.count() == 0).await;
        bench.nothing_left().await;
    }
}

/// The flush fails after NodeUnpublishVolume has stopped waiting for it.
#[tokio::test(start_paused = true)]
async fn a_flush_that_fails_late_is_reported() {
    for flush in FLUSHES {
        let bench = published(flush).await;
        let fault = Fault::HangAndFail(bench.at, "EIO");
        bench.unpublish_without_flush(fault).await;
        bench.world.machine.let_go();
        let flush = Key::new(Class::Flush, &bench.volume.id);
        until(|| bench.service.jobs.view(&flush).is_none()).await;
        for verb in [Verb::Publish(2), Verb::Unpublish(2)] {
            send(&bench.service, &bench.volume, verb).await.unwrap();
        }
        assert!(is_unsynced(&bench).await);
        bench.nothing_left().await;
        assert!(!is_unsynced(&bench).await);
    }
}

/// The target directory contains a file that the mount has hidden, so the directory cannot be
/// removed.
#[tokio::test(start_paused = true)]
async fn an_unpublish_that_fails_after_its_unmount_is_reported() {
    let (counts, _guard) = Counts::begin();
    let bench = published(FLUSHES[0]).await;
    let (world, machine) = (&bench.world, &bench.world.machine);
    let call = |verb| send(&bench.service, &bench.volume, verb);
    let below = bench.volume.target(3).join("below");
    world.make_dir(&bench.volume.target(3));
    world.make_file(&below, 1);
    call(Verb::Publish(3)).await.unwrap();
    machine.begin(None);
    call(Verb::Unpublish(3)).await.unwrap_err();
    let calls = machine.end();
    assert!(!is_unsynced(&bench).await);
    let at = calls.iter().position(|call| call.name == "syncfs").unwrap();

    call(Verb::Publish(3)).await.unwrap();
    machine.begin(Some(Fault::Fail(at + 1, "EIO")));
    call(Verb::Unpublish(3)).await.unwrap_err();
    machine.end();
    assert!(is_unsynced(&bench).await);
    counts.expect("failed", 1);
    world.remove_file(&below);
    // Nothing is mounted at the target, so nothing is flushed.
    call(Verb::Unpublish(3)).await.unwrap();
    call(Verb::Unpublish(1)).await.unwrap();
    assert!(is_unsynced(&bench).await);
    bench.nothing_left().await;
}

#[tokio::test(start_paused = true)]
async fn an_unpublish_that_is_refused_warns_of_no_loss() {
    let (counts, _guard) = Counts::begin();
    for flush in FLUSHES {
        let bench = published(flush).await;
        let mut other = bench.volume.clone();
        other.id = "other".to_owned();
        let refused = send(&bench.service, &other, Verb::Unpublish(1)).await;
        assert!(refused.is_err());
        bench.unpublish().await.unwrap().unwrap();
        bench.nothing_left().await;
    }
    assert!(!counts.0.handle().render().contains("unflushed"));
}

/// Also tested with a flush that a killed agent has started.
#[tokio::test]
async fn an_unstage_of_a_raw_disk_ends_after_its_data_is_on_the_disk() {
    let bench = published(FLUSHES[1]).await;
    bench.unpublish().await.unwrap().unwrap();
    let machine = &bench.world.machine;
    let unstage = || send(&bench.service, &bench.volume, Verb::Unstage);
    machine.begin(None);
    unstage().await.unwrap();
    let calls = machine.end();
    let at = calls.iter().position(|call| call.name == "fsync").unwrap() + 1;
    // A failing disk must not prevent NodeUnstageVolume.
    send(&bench.service, &bench.volume, Verb::Stage)
        .await
        .unwrap();
    machine.begin(Some(Fault::Fail(at, "EIO")));
    let unstaged = unstage().await;
    machine.end();
    unstaged.unwrap();
    bench.nothing_left().await;
}
