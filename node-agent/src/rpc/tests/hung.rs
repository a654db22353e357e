//! Tests of hung read-only calls for volumes and for the storage: the response to each caller, the
//! latency and the cost of each response.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_contract::drivers::LOCAL;
use belay_proto::csi::v1 as csi;
use belay_server::facts::{Facts as _, Space};
use belay_server::request::VolumeId;
use belay_server::work::CHANGE_DEADLINE;
use csi::node_get_storage_health_response::StorageBackendHealth;
use csi::node_server::Node as _;
use csi::volume_health::VolumeHealthEntry;
use csi::{StorageHealthErrorType, VolumeHealthErrorType};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::advance;
use tonic::{Code, Request, Response, Status};

use super::calls::send;
use crate::kernel::fake::{Call, Fake, Fault};
use crate::operation::tests::bench::{BYTES, Form, GROWN_BYTES, Verb, Volume, World};
use crate::operation::tests::simulated::Simulated;
use crate::rpc::NodeService;
use crate::work::Pool;
use crate::work::READ_DEADLINE as DEADLINE;

const MOMENT: Duration = Duration::from_millis(1);
/// A timeout after which a thread is considered stuck.
const WATCHDOG: Duration = Duration::from_secs(120);

const HANGS: (StorageHealthErrorType, &str) =
    (StorageHealthErrorType::StorageUnreachable, "StorageHangs");

type Stats = Result<csi::NodeGetVolumeStatsResponse, Status>;

/// An agent whose clock is paused, even while threads are running.
struct Bench {
    world: Simulated,
    service: Arc<NodeService<Fake>>,
}

impl Bench {
    fn new() -> Self {
        let world = Simulated::new();
        let node = world.start_swept();
        world.machine.never_wait_here(true);
        // Enable quotas, so that statistics run on the pool and may block on the disk.
        world.machine.keep_quotas();
        let service = Arc::new(NodeService::new("", Pool::new(), &LOCAL));
        service.come_up(node);
        Bench { service, world }
    }

    /// Creates a volume, and publishes it at one target.
    async fn published(&self, id: &str) -> Volume {
        let volume = self.world.volume(id, Form::Ext4);
        self.send(&volume, Verb::Stage).await.unwrap();
        self.send(&volume, Verb::Publish(1)).await.unwrap();
        volume
    }

    fn send(
        &self,
        volume: &Volume,
        verb: Verb,
    ) -> impl Future<Output = Result<(), Status>> + Send + use<> {
        let (service, volume) = (Arc::clone(&self.service), volume.clone());
        async move { send(&service, &volume, verb).await }
    }

    fn stats(&self, volume: &Volume) -> impl Future<Output = Stats> + Send + use<> {
        self.stats_of(volume, &volume.target(1))
    }

    fn stats_of(&self, volume: &Volume, path: &Path) -> impl Future<Output = Stats> + Send + use<> {
        let service = Arc::clone(&self.service);
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: volume.id.clone(),
            volume_path: text(path),
            ..Default::default()
        };
        async move {
            let stats = service.node_get_volume_stats(Request::new(request));
            stats.await.map(Response::into_inner)
        }
    }

    fn health(
        &self,
        volume: &Volume,
    ) -> impl Future<Output = Vec<VolumeHealthEntry>> + Send + use<> {
        let service = Arc::clone(&self.service);
        let request = csi::NodeGetVolumeHealthRequest {
            volume_id: volume.id.clone(),
            volume_publish_path: text(&volume.target(1)),
            staging_target_path: text(&volume.staging()),
        };
        async move {
            let health = service.node_get_volume_health(Request::new(request));
            let health = health.await.unwrap().into_inner().volume_health.unwrap();
            health.health_statuses
        }
    }

    fn storage_health(&self) -> impl Future<Output = Vec<StorageBackendHealth>> + Send + use<> {
        let service = Arc::clone(&self.service);
        async move {
            let request = Request::new(csi::NodeGetStorageHealthRequest::default());
            let health = service.node_get_storage_health(request).await.unwrap();
            health.into_inner().backend_health
        }
    }

    /// Makes a second call while the health check of the storage hangs, and returns the response at
    /// the deadline.
    async fn storage_health_again(&self) -> Vec<StorageBackendHealth> {
        self.world.machine.begin(None);
        let caller = tokio::spawn(self.storage_health());
        settle().await;
        assert_eq!(self.world.machine.end(), []);
        told_within(DEADLINE + MOMENT, caller).await
    }

    /// Makes a call without a hang, and returns the position of the system call `name` in this
    /// call.
    async fn position<T>(&self, name: &str, call: impl Future<Output = T>) -> usize {
        self.world.machine.begin(None);
        call.await;
        let calls = self.world.machine.end();
        let found = calls.iter().position(|call| call.name == name);
        found.unwrap_or_else(|| panic!("no {name} in {calls:?}")) + 1
    }

    /// Makes a call that hangs in the system call with this position and name, and returns when the
    /// call hangs.
    async fn hang<T: Send + 'static>(
        &self,
        (at, name): (usize, &str),
        call: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let mut hangs = self.world.machine.hangs();
        hangs.mark_unchanged();
        self.world.machine.begin(Some(Fault::Hang(at)));
        let mut caller = tokio::spawn(call);
        tokio::select! {
            _ = &mut caller => panic!("{name} was not made"),
            changed = hangs.changed() => changed.unwrap(),
        }
        let last = self.world.machine.end().pop().unwrap();
        assert_eq!(last.name, name);
        caller
    }

    async fn hang_stats(&self, volume: &Volume, at: usize) -> JoinHandle<Stats> {
        self.hang((at, "fstatfs"), self.stats(volume)).await
    }

    /// Creates a volume for which NodeUnstageVolume hangs in umount2(2), and waits until its
    /// callers have received a timeout.
    async fn hung_unstage(&self, id: &str) -> Volume {
        let volume = self.published(id).await;
        self.send(&volume, Verb::Unpublish(1)).await.unwrap();
        let rehearsal = self.send(&volume, Verb::Unstage);
        let at = self.position("umount2", rehearsal).await;
        self.send(&volume, Verb::Stage).await.unwrap();
        let unstage = self.hang((at, "umount2"), self.send(&volume, Verb::Unstage));
        let told = told_at(CHANGE_DEADLINE, unstage.await).await;
        assert_eq!(told.unwrap_err().code(), Code::DeadlineExceeded);
        volume
    }

    /// Returns the response of a call that must respond immediately and without a system call.
    async fn at_once<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.world.machine.begin(None);
        let caller = tokio::spawn(call);
        settle().await;
        let calls: Vec<Call> = self.world.machine.end();
        assert!(caller.is_finished(), "it waits, after {calls:?}");
        assert_eq!(calls, []);
        caller.await.unwrap()
    }

    /// Lets the hung call continue, and returns when it has finished.
    async fn let_go(&self, volume: &Volume) {
        self.world.machine.let_go();
        let id = VolumeId::new(volume.id.as_str()).unwrap();
        let since = Instant::now();
        while self.service.hung(&id).is_some() {
            assert!(since.elapsed() < WATCHDOG, "{id} hangs still");
            yield_now().await;
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Release all hung calls. Otherwise, the runtime could not shut down.
        self.world.machine.kill_all();
        if !std::thread::panicking() {
            assert_eq!(self.world.machine.violations(), [""; 0]);
        }
    }
}

/// Runs all tasks that do not wait for a thread or for time to pass.
async fn settle() {
    for _ in 0..8 {
        yield_now().await;
    }
}

/// Returns the response to a call that hangs from now on, and checks that the response is sent at
/// the deadline and not earlier.
async fn told_at<T>(deadline: Duration, caller: JoinHandle<T>) -> T {
    advance(deadline.checked_sub(MOMENT).unwrap()).await;
    settle().await;
    assert!(!caller.is_finished(), "answered too early");
    // Advance by one moment to the deadline, and by a second moment because timers round up.
    told_within(MOMENT * 2, caller).await
}

async fn told_within<T>(time: Duration, caller: JoinHandle<T>) -> T {
    advance(time).await;
    settle().await;
    assert!(caller.is_finished(), "not answered");
    caller.await.unwrap()
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn total(stats: &Stats) -> i64 {
    stats.as_ref().unwrap().usage[0].total
}

fn is_well(stats: &Stats) -> bool {
    let condition = &stats.as_ref().unwrap().volume_condition;
    !condition.as_ref().unwrap().abnormal
}

fn assert_old(stats: &Stats, before: &Stats) {
    let (stats, before) = (stats.as_ref().unwrap(), before.as_ref().unwrap());
    assert_eq!(stats.usage, before.usage);
    let condition = stats.volume_condition.as_ref().unwrap();
    assert!(condition.abnormal);
    let told = |words: &str| assert!(condition.message.contains(words), "{}", condition.message);
    told("OperationHung: ");
    told("NodeGetVolumeStats has been running for ");
    told("now in usage");
    told("StatisticsOld: ");
}

fn assert_unknown(stats: Stats) {
    let status = stats.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(status.message().contains("now in usage"), "{status}");
}

fn assert_hung(health: &[VolumeHealthEntry], rpc: &str, phase: &str) {
    let [entry] = health else {
        panic!("{health:?}")
    };
    assert_eq!(entry.status(), VolumeHealthErrorType::Inaccessible);
    assert_eq!(entry.reason, "OperationHung");
    for words in [&format!("{rpc} has been "), &format!("now in {phase}")] {
        assert!(entry.message.contains(words), "{}", entry.message);
    }
}

fn reasons(health: &[StorageBackendHealth]) -> Vec<(StorageHealthErrorType, &str)> {
    let told = health.iter();
    told.map(|entry| (entry.status(), &*entry.reason)).collect()
}

#[tokio::test(start_paused = true)]
async fn stats_of_a_volume_that_hangs_are_the_ones_from_before_and_say_so() {
    let bench = Bench::new();
    let volume = bench.published("vol-1").await;
    let before = bench.stats(&volume).await;
    let at = bench.position("fstatfs", bench.stats(&volume)).await;
    assert!(is_well(&before));
    assert_eq!(total(&before), i64::try_from(BYTES).unwrap());

    let caller = bench.hang_stats(&volume, at).await;
    assert_old(&told_at(DEADLINE, caller).await, &before);

    // Grow the volume, so that its current usage differs from the earlier usage.
    bench.world.make_file(&volume.file(), GROWN_BYTES);
    bench.send(&volume, Verb::Expand).await.unwrap();
    assert_old(&bench.at_once(bench.stats(&volume)).await, &before);
    assert_old(&bench.at_once(bench.stats(&volume)).await, &before);

    bench.let_go(&volume).await;
    let after = bench.stats(&volume).await;
    assert!(is_well(&after));
    assert_eq!(total(&after), i64::try_from(GROWN_BYTES).unwrap());
}

#[tokio::test(start_paused = true)]
async fn stats_of_a_volume_that_hangs_and_was_never_read_are_unknown() {
    let bench = Bench::new();
    let other = bench.published("vol-1").await;
    let volume = bench.published("vol-10").await;
    let at = bench.position("fstatfs", bench.stats(&other)).await;
    let caller = bench.hang_stats(&volume, at).await;
    assert_unknown(told_at(DEADLINE, caller).await);
    assert_unknown(bench.at_once(bench.stats(&volume)).await);
    assert!(is_well(&bench.stats(&other).await), "others continue");

    bench.let_go(&volume).await;
    assert!(is_well(&bench.stats(&volume).await));
}

/// A health call for the volume hangs while the statistics of this volume are being read.
#[tokio::test(start_paused = true)]
async fn stats_of_a_volume_that_hangs_which_have_failed_say_why() {
    let bench = Bench::new();
    let volume = bench.published("vol-1").await;
    let elsewhere = volume.target(2);
    let read = || bench.stats_of(&volume, &elsewhere);
    let at = bench.position("statx", read()).await;
    let look = bench.hang((3, "statx"), bench.health(&volume)).await;
    advance(MOMENT * 4).await;
    let caller = bench.hang((at, "statx"), read()).await;
    let health = told_within(DEADLINE - MOMENT * 2, look).await;
    assert_hung(&health, "NodeGetVolumeHealth", "inspect");
    let machine = &bench.world.machine;
    machine.let_go_of(machine.hung_last());
    let status = caller.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    bench.let_go(&volume).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_volume_answered_is_forgotten_once_it_is_unpublished() {
    let bench = Bench::new();
    let volume = bench.published("vol-1").await;
    let other = bench.published("vol-10").await;
    let at = bench.position("fstatfs", bench.stats(&volume)).await;
    let before = bench.stats(&other).await;
    let again = bench.position("fstatfs", bench.stats(&other)).await;
    bench.send(&volume, Verb::Unpublish(1)).await.unwrap();
    bench.send(&volume, Verb::Publish(1)).await.unwrap();

    let caller = bench.hang_stats(&volume, at).await;
    assert_unknown(told_at(DEADLINE, caller).await);
    let caller = bench.hang_stats(&other, again).await;
    assert_old(&told_at(DEADLINE, caller).await, &before);
}

#[tokio::test(start_paused = true)]
async fn statistics_that_count_in_memory_need_no_thread() {
    let bench = Bench::new();
    bench.world.machine.count_in_memory();
    let other = bench.published("vol-4").await;
    assert!(is_well(&bench.stats(&other).await));
    let mut looks = Vec::new();
    for id in ["vol-1", "vol-2"] {
        let volume = bench.published(id).await;
        looks.push(bench.hang((3, "statx"), bench.health(&volume)).await);
    }
    let volume = bench.published("vol-3").await;
    // Both slots for reads are occupied, so the next call that needs a slot waits.
    bench.world.machine.keep_quotas();
    let waiting = tokio::spawn(bench.stats(&volume));
    settle().await;
    assert!(!waiting.is_finished());
    waiting.abort();

    bench.world.machine.count_in_memory();
    let first = bench.published("vol-5").await;
    for volume in [&other, &first] {
        let stats = tokio::spawn(bench.stats(volume));
        settle().await;
        assert!(stats.is_finished());
        assert!(is_well(&stats.await.unwrap()));
    }
}

#[tokio::test(start_paused = true)]
async fn the_health_of_a_volume_whose_unstage_hangs_names_what_it_hangs_in() {
    let bench = Bench::new();
    let other = bench.published("vol-1").await;
    let volume = bench.hung_unstage("vol-10").await;
    let health = bench.at_once(bench.health(&volume)).await;
    assert_hung(&health, "NodeUnstageVolume", "unmount");
    assert_eq!(bench.health(&other).await, [], "others are healthy");

    bench.let_go(&volume).await;
    assert_eq!(bench.health(&volume).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_look_at_the_health_of_a_volume_that_hangs_has_thereby_its_answer() {
    let bench = Bench::new();
    let volume = bench.published("vol-1").await;
    let look = bench.hang((3, "statx"), bench.health(&volume)).await;
    let health = told_at(DEADLINE, look).await;
    assert_hung(&health, "NodeGetVolumeHealth", "inspect");
    let health = bench.at_once(bench.health(&volume)).await;
    assert_hung(&health, "NodeGetVolumeHealth", "inspect");

    bench.let_go(&volume).await;
    assert_eq!(bench.health(&volume).await, []);
}

#[tokio::test(start_paused = true)]
async fn storage_at_which_the_look_hangs_is_unreachable() {
    let bench = Bench::new();
    let look = bench.hang((1, "statx"), bench.storage_health()).await;
    let health = told_at(DEADLINE, look).await;
    assert_eq!(reasons(&health), [HANGS]);
    let message = &health[0].message;
    for words in ["NodeGetStorageHealth has been ", "now in inspect"] {
        assert!(message.contains(words), "{message}");
    }
    // A second call shares the job of the check that is still running.
    assert_eq!(reasons(&bench.storage_health_again().await), [HANGS]);
}

#[tokio::test(start_paused = true)]
async fn two_volumes_that_hang_speak_against_their_storage_and_one_does_not() {
    let bench = Bench::new();
    bench.hung_unstage("vol-1").await;
    let look = bench.hang((1, "statx"), bench.storage_health()).await;
    assert_eq!(reasons(&told_at(DEADLINE, look).await), [HANGS]);
    bench.hung_unstage("vol-2").await;
    let hung = (StorageHealthErrorType::StorageDegraded, "OperationsHung");
    let health = bench.storage_health_again().await;
    assert_eq!(reasons(&health), [HANGS, hung]);
    assert!(health[1].message.contains("2 volumes"), "{health:?}");
}

#[tokio::test(start_paused = true)]
async fn the_space_of_storage_that_hangs_is_the_one_from_before() {
    let bench = Bench::new();
    let measure = || Arc::clone(&bench.service).measure();
    assert_eq!(bench.service.known().storage, [].into());
    bench.world.machine.fill_storage(5, 3);
    let at = bench.position("statfs", measure()).await;
    let space = Space {
        free_bytes: 2,
        size_bytes: 5,
    };
    let before = bench.service.known().storage;
    assert_eq!(before, [("default".to_owned(), space)].into());

    let caller = bench.hang((at, "statfs"), measure()).await;
    told_at(DEADLINE, caller).await;
    assert_eq!(bench.service.known().storage, before);
    // A second caller shares the job of the first caller.
    bench.world.machine.begin(None);
    let caller = tokio::spawn(measure());
    settle().await;
    assert_eq!(bench.world.machine.end(), []);
    told_within(DEADLINE + MOMENT, caller).await;
    assert_eq!(bench.service.known().storage, before);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_known_until_its_unstage_and_unhealthy_as_it_was_last_reported() {
    let bench = Bench::new();
    assert_eq!(bench.service.known().volumes, Some(0));
    let volume = bench.published("vol-1").await;
    let _other = bench.published("vol-2").await;
    bench.stats(&volume).await.unwrap();
    let known = bench.service.known();
    assert_eq!((known.volumes, known.unhealthy.len()), (Some(2), 0));
    bench.world.remove_file(&volume.file());
    bench.stats(&volume).await.unwrap();
    let gone = [("BackingFileGone", 1)].into();
    assert_eq!(bench.service.known().unhealthy, gone);
    bench.send(&volume, Verb::Unpublish(1)).await.unwrap();
    assert_eq!(bench.service.known().unhealthy, gone);
    bench.send(&volume, Verb::Unstage).await.unwrap();
    let known = bench.service.known();
    assert_eq!((known.volumes, known.unhealthy.len()), (Some(1), 0));
    assert!(bench.service.reasons().contains(&"BackingFileGone"));
}
