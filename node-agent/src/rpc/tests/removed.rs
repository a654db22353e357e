//! Volumes whose disk was removed are unmounted while the agent serves, never during a call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_contract::drivers::OPENSTACK;
use belay_server::call::Kind;
use belay_server::work::Key;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::advance;

use super::calls::send;
use crate::kernel::fake::{Fake, Fault, Plug};
use crate::kernel::{Kernel as _, Open};
use crate::operation::Cleared;
use crate::operation::tests::bench::{Form, Verb, Volume, World, hear};
use crate::operation::tests::simulated::{DISK_DRIVER, Media, Simulated};
use crate::rpc::NodeService;
use crate::work::{Class, Pool};

/// Much longer than a thread needs to finish: exceeded only if it is stuck.
const WATCHDOG: Duration = Duration::from_secs(120);
const FORMS: [Form; 2] = [Form::Ext4, Form::Block];

struct Bench {
    world: Simulated,
    service: Arc<NodeService<Fake>>,
    watch: Option<JoinHandle<()>>,
}

impl Bench {
    fn new() -> Self {
        let world = Simulated::of(Media::Disks);
        let service = Arc::new(NodeService::new("", Pool::new(), &OPENSTACK));
        service.come_up(world.start_disks(DISK_DRIVER));
        let watch = None;
        Bench {
            world,
            service,
            watch,
        }
    }

    /// The agent begins to look after removed disks.
    fn watched(mut self) -> Self {
        self.watch();
        self
    }

    fn watch(&mut self) {
        let watched = Arc::clone(&self.service);
        let watch = async move { drop(watched.look_after_removed().await) };
        self.watch = Some(tokio::spawn(watch));
    }

    async fn with(&self, id: &str, form: Form, verbs: &[Verb]) -> Volume {
        let volume = self.world.volume_of_kubelet(id, form);
        self.hear();
        for verb in verbs {
            self.send(&volume, *verb).await;
        }
        volume
    }

    async fn send(&self, volume: &Volume, verb: Verb) {
        send(&self.service, volume, verb).await.unwrap();
    }

    fn hear(&self) {
        hear(&self.service.node().unwrap()).unwrap();
    }

    fn unplug(&self, volume: &Volume) {
        self.world.machine.unplug(&volume.file());
        self.hear();
    }

    fn is_staged(&self, volume: &Volume) -> bool {
        // No call of the kernel: those are counted.
        let line = format!("mount {}:", volume.staging_mount().display());
        let picture = self.world.machine.picture();
        !picture.beginning_with(&[&line]).is_empty()
    }

    async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < WATCHDOG, "{what}");
            yield_now().await;
        }
    }

    /// After a pause, of which no time passes while a job runs.
    async fn is_unmounted_later(&self, volume: &Volume) {
        let since = Instant::now();
        let checks = Key::new(Class::Storage, "removed");
        let change = Key::new(Class::Change, &volume.id);
        while self.is_staged(volume) {
            assert!(since.elapsed() < WATCHDOG, "it stays mounted");
            let jobs = &self.service.jobs;
            if jobs.view(&checks).is_none() && jobs.view(&change).is_none() {
                advance(Duration::from_secs(1)).await;
            }
            yield_now().await;
        }
        self.is_unmounted(volume).await;
    }

    async fn hung(&self, hangs: &tokio::sync::watch::Receiver<u64>) {
        self.until("no call hangs", || hangs.has_changed().unwrap())
            .await;
    }

    async fn is_unmounted(&self, volume: &Volume) {
        self.until("it stays mounted", || !self.is_staged(volume))
            .await;
        let change = Key::new(Class::Change, &volume.id);
        let has_ended = || self.service.jobs.view(&change).is_none();
        self.until("its job does not end", has_ended).await;
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
        // A call that still hangs would keep the runtime from ending.
        self.world.machine.kill_all();
    }
}

fn count(recorder: &PrometheusRecorder) -> String {
    let page = recorder.handle().render();
    let lines = page.lines();
    let ours = lines.filter(|line| line.starts_with("belay_removed_disk_unmounts_total"));
    ours.collect::<Vec<_>>().join(" ")
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_unmounted_when_its_disk_was_removed_and_is_staged_again_with_the_disk() {
    let recorder = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
    let _guard = metrics::set_default_local_recorder(&*recorder);
    for (form, times) in FORMS.into_iter().zip(1..) {
        let bench = Bench::new().watched();
        let life = [Verb::Stage, Verb::Publish(1), Verb::Unpublish(1)];
        let volume = bench.with("vol", form, &life).await;
        let other = bench.with("other", Form::Ext4, &[Verb::Stage]).await;
        bench.unplug(&volume);
        bench.is_unmounted(&volume).await;
        let counted = format!("belay_removed_disk_unmounts_total{{outcome=\"ok\"}} {times}");
        bench
            .until("not counted", || count(recorder) == counted)
            .await;
        assert!(bench.is_staged(&other));
        let plug = Plug::virtio(&volume.file(), &volume.id);
        bench.world.machine.plug(plug);
        bench.hear();
        for verb in life.iter().chain(&[Verb::Unstage]) {
            bench.send(&volume, *verb).await;
        }
        bench.send(&other, Verb::Unstage).await;
        assert_eq!(bench.world.left(), Vec::<String>::new());
    }
}

/// A call of the kubelet for the volume comes first, and is not disturbed.
#[tokio::test(start_paused = true)]
async fn a_volume_is_not_unmounted_during_a_call() {
    let mut bench = Bench::new();
    let volume = bench
        .with("vol", Form::Ext4, &[Verb::Stage, Verb::Publish(1)])
        .await;
    bench.world.machine.begin(None);
    bench.send(&volume, Verb::Unpublish(1)).await;
    let calls = bench.world.machine.end();
    let at = calls.iter().position(|call| call.name == "rmdir").unwrap() + 1;
    bench.send(&volume, Verb::Publish(1)).await;
    let mut hangs = bench.world.machine.hangs();
    hangs.mark_unchanged();
    bench.world.machine.begin(Some(Fault::Hang(at)));
    let (service, target) = (Arc::clone(&bench.service), volume.clone());
    let unpublish = tokio::spawn(async move { send(&service, &target, Verb::Unpublish(1)).await });
    bench.hung(&hangs).await;
    bench.world.machine.end();
    bench.unplug(&volume);
    bench.watch();
    let refused = bench
        .service
        .clear(&volume_id(&volume), &volume.staging_mount())
        .await
        .unwrap_err();
    assert_eq!(refused.kind, Kind::Busy, "{refused}");
    assert!(bench.is_staged(&volume));
    bench.world.machine.let_go();
    unpublish.await.unwrap().unwrap();
    // Its kubelet does not unstage it.
    bench.is_unmounted_later(&volume).await;
    bench.send(&volume, Verb::Unstage).await;
    assert_eq!(bench.world.left(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_stage_that_waits_for_the_disk_is_not_cancelled() {
    let bench = Bench::new().watched();
    let volume = bench.with("vol", Form::Ext4, &[]).await;
    bench.unplug(&volume);
    let (service, staged) = (Arc::clone(&bench.service), volume.clone());
    let stage = tokio::spawn(async move { send(&service, &staged, Verb::Stage).await });
    let change = Key::new(Class::Change, &volume.id);
    let waits = || {
        let job = bench.service.jobs.view(&change);
        job.is_some_and(|job| job.awaited == Some("the volume's disk"))
    };
    bench.until("it does not wait", waits).await;
    let refused = bench
        .service
        .clear(&volume_id(&volume), &volume.staging_mount())
        .await
        .unwrap_err();
    assert_eq!(refused.kind, Kind::Busy, "{refused}");
    let plug = Plug::virtio(&volume.file(), &volume.id);
    bench.world.machine.plug(plug);
    bench.hear();
    stage.await.unwrap().unwrap();
    bench.send(&volume, Verb::Unstage).await;
    assert_eq!(bench.world.left(), Vec::<String>::new());
}

/// The kernel may wait for a dead disk.
#[tokio::test(start_paused = true)]
async fn an_unmount_that_hangs_delays_no_other_volume() {
    let mut bench = Bench::new();
    let volume = bench.with("vol", Form::Ext4, &[Verb::Stage]).await;
    bench.world.machine.begin(None);
    bench.unplug(&volume);
    bench.watch();
    bench.is_unmounted(&volume).await;
    let calls = bench.world.machine.end();
    let unmount = calls.iter().position(|call| call.name == "umount2");
    drop(bench);

    let mut bench = Bench::new();
    let volume = bench.with("vol", Form::Ext4, &[Verb::Stage]).await;
    let mut hangs = bench.world.machine.hangs();
    hangs.mark_unchanged();
    bench
        .world
        .machine
        .begin(Some(Fault::Hang(unmount.unwrap() + 1)));
    bench.unplug(&volume);
    bench.watch();
    bench.hung(&hangs).await;
    bench.world.machine.end();
    let life = [
        Verb::Stage,
        Verb::Publish(1),
        Verb::Unpublish(1),
        Verb::Unstage,
    ];
    for number in 0..6 {
        bench
            .with(&format!("other-{number}"), Form::Ext4, &life)
            .await;
    }
    let busy = send(&bench.service, &volume, Verb::Unstage)
        .await
        .unwrap_err();
    assert!(busy.message().contains("now in unmount"), "{busy}");
    bench.world.machine.let_go();
    bench.is_unmounted(&volume).await;
    bench.send(&volume, Verb::Unstage).await;
    assert_eq!(bench.world.left(), Vec::<String>::new());
}

fn volume_id(volume: &Volume) -> belay_server::request::VolumeId {
    belay_server::request::VolumeId::new(volume.id.as_str()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_unmounted_when_its_last_pod_has_ended() {
    for form in FORMS {
        let recorder = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
        let _guard = metrics::set_default_local_recorder(&*recorder);
        let bench = Bench::new().watched();
        let life = [Verb::Stage, Verb::Publish(1)];
        let volume = bench.with("vol", form, &life).await;
        bench.unplug(&volume);
        let failed = "belay_removed_disk_unmounts_total{outcome=\"failed\"} 1";
        let has_failed = || count(recorder) == failed;
        bench.until("no attempt fails", has_failed).await;
        assert!(bench.is_staged(&volume));
        bench.send(&volume, Verb::Unpublish(1)).await;
        bench.is_unmounted_later(&volume).await;
        bench.send(&volume, Verb::Unstage).await;
        assert_eq!(bench.world.left(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_is_busy_is_unmounted_later() {
    let recorder = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
    let _guard = metrics::set_default_local_recorder(&*recorder);
    let bench = Bench::new();
    let volume = bench.with("vol", Form::Ext4, &[Verb::Stage]).await;
    bench.unplug(&volume);
    let (id, path) = (volume_id(&volume), volume.staging_mount());
    let process = bench.world.kernel();
    let opened = process.open(&path, Open::Directory).unwrap();
    let mut left = std::collections::HashMap::new();
    for _ in 0..2 {
        assert!(!bench.service.clear_all(&mut left).await);
        assert!(bench.is_staged(&volume));
        let failed = "belay_removed_disk_unmounts_total{outcome=\"failed\"} 1";
        assert_eq!(count(recorder), failed);
    }
    drop(opened);
    assert!(bench.service.clear_all(&mut left).await);
    assert!(!bench.is_staged(&volume));
    let again = bench.service.clear(&id, &path).await;
    assert_eq!(again.unwrap(), Cleared::Nothing);
    bench.send(&volume, Verb::Unstage).await;
    assert_eq!(bench.world.left(), Vec::<String>::new());
}

/// A cloud that removes all disks of a node at once must not occupy all threads.
#[tokio::test(start_paused = true)]
async fn volumes_are_unmounted_one_at_a_time() {
    let mut bench = Bench::new();
    let one = bench.with("one", Form::Ext4, &[Verb::Stage]).await;
    let two = bench.with("two", Form::Ext4, &[Verb::Stage]).await;
    for volume in [&one, &two] {
        bench.world.machine.unplug(&volume.file());
    }
    bench.hear();
    let mut hangs = bench.world.machine.hangs();
    hangs.mark_unchanged();
    bench.world.machine.begin(Some(Fault::HangWaiting(1)));
    bench.watch();
    bench.hung(&hangs).await;
    bench.world.machine.end();
    // Beyond the deadline of the job, and some pauses.
    for _ in 0..400 {
        advance(Duration::from_secs(1)).await;
        yield_now().await;
    }
    assert!(bench.is_staged(&one) && bench.is_staged(&two));
    let jobs = &bench.service.jobs;
    let running = [&one, &two].map(|it| jobs.view(&Key::new(Class::Change, &it.id)));
    assert_eq!(running.iter().flatten().count(), 1);
    bench.world.machine.let_go();
    for volume in [&one, &two] {
        bench.is_unmounted_later(volume).await;
        bench.send(volume, Verb::Unstage).await;
    }
    assert_eq!(bench.world.left(), Vec::<String>::new());
}

/// Its data was not on the disk, and cannot be written to it any longer.
#[tokio::test(start_paused = true)]
async fn an_unmount_without_a_call_does_not_end_the_report_of_lost_data() {
    let recorder = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
    let _guard = metrics::set_default_local_recorder(&*recorder);
    let bench = Bench::new();
    let volume = bench.with("vol", Form::Ext4, &[Verb::Stage]).await;
    let unsynced = &bench.service.unsynced;
    let flush = unsynced.begin();
    unsynced.unmounted(&volume_id(&volume), &flush, "slow".to_owned());
    bench.unplug(&volume);
    let (id, path) = (volume_id(&volume), volume.staging_mount());
    bench.service.clear(&id, &path).await.unwrap();
    let lost = "belay_removed_disk_unmounts_total{outcome=\"lost\"} 1";
    assert_eq!(count(recorder), lost);
    assert_eq!(unsynced.count(), 1);
    unsynced.flushed(&id, &flush);
    assert_eq!(unsynced.count(), 1);
    bench.send(&volume, Verb::Unstage).await;
    assert_eq!(unsynced.count(), 0);
}
