//! Tests that the agent automatically unmounts volumes whose disk was removed, but never while a
//! call for the volume is in progress.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_contract::drivers::OPENSTACK;
use belay_server::request::VolumeId;
use belay_server::work::Key;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::advance;
use tonic::Code;

use super::calls::send;
use crate::kernel::fake::{Fake, Plug};
use crate::operation::tests::bench::{Form, Verb, Volume, World, hear};
use crate::operation::tests::simulated::{DISK_DRIVER, Media, Simulated};
use crate::rpc::NodeService;
use crate::work::{Class, Pool};

/// A timeout after which a thread is considered stuck.
const WATCHDOG: Duration = Duration::from_secs(120);
const FORMS: [Form; 2] = [Form::Ext4, Form::Xfs];

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

    /// Starts the task that unmounts volumes on removed disks.
    fn watched(mut self) -> Self {
        let watched = Arc::clone(&self.service);
        let watch = async move { drop(watched.unmount_removed().await) };
        self.watch = Some(tokio::spawn(watch));
        self
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
        // Do not make a system call here, because the test counts system calls.
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

    /// Waits until the volume is unmounted after a pause. The paused clock must not advance while a
    /// job is running.
    async fn is_unmounted_later(&self, volume: &Volume) {
        let since = Instant::now();
        let change = Key::new(Class::Change, &volume.id);
        while self.is_staged(volume) {
            assert!(since.elapsed() < WATCHDOG, "it stays mounted");
            let jobs = &self.service.jobs;
            if jobs.view(&change).is_none() {
                advance(Duration::from_secs(1)).await;
            }
            yield_now().await;
        }
        self.is_unmounted(volume).await;
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
        // Release all hung calls. Otherwise, the runtime could not shut down.
        self.world.machine.kill_all();
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_unstaged_when_its_disk_was_removed_and_is_staged_again_with_the_disk() {
    for form in FORMS {
        let bench = Bench::new().watched();
        let life = [Verb::Stage, Verb::Publish(1), Verb::Unpublish(1)];
        let volume = bench.with("vol", form, &life).await;
        let other = bench.with("other", Form::Ext4, &[Verb::Stage]).await;
        bench.unplug(&volume);
        bench.is_unmounted(&volume).await;
        bench
            .until("it counts as staged", || bench.service.volumes.count() == 1)
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

#[tokio::test(start_paused = true)]
async fn a_volume_is_unstaged_when_its_last_pod_has_ended() {
    for form in FORMS {
        let bench = Bench::new().watched();
        let life = [Verb::Stage, Verb::Publish(1)];
        let volume = bench.with("vol", form, &life).await;
        bench.unplug(&volume);
        for _ in 0..200 {
            advance(Duration::from_secs(1)).await;
            yield_now().await;
        }
        assert!(bench.is_staged(&volume), "a pod has it");
        // Retry, because the background task may be trying to unmount the volume at the same time.
        while let Err(busy) = send(&bench.service, &volume, Verb::Unpublish(1)).await {
            assert_eq!(busy.code(), Code::Aborted, "{busy}");
            yield_now().await;
        }
        bench.is_unmounted_later(&volume).await;
        bench.send(&volume, Verb::Unstage).await;
        assert_eq!(bench.world.left(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_stage_that_waits_for_the_disk_is_not_cancelled() {
    let bench = Bench::new().watched();
    let volume = bench.with("vol", Form::Ext4, &[Verb::Stage]).await;
    let (service, staged) = (Arc::clone(&bench.service), volume.clone());
    bench.unplug(&volume);
    bench.is_unmounted(&volume).await;
    let stage = tokio::spawn(async move { send(&service, &staged, Verb::Stage).await });
    let change = Key::new(Class::Change, &volume.id);
    let waits = || {
        let job = bench.service.jobs.view(&change);
        job.is_some_and(|job| job.awaited == Some("the volume's disk"))
    };
    bench.until("it does not wait", waits).await;
    for _ in 0..70 {
        advance(Duration::from_secs(1)).await;
        yield_now().await;
    }
    assert!(!stage.is_finished());
    let plug = Plug::virtio(&volume.file(), &volume.id);
    bench.world.machine.plug(plug);
    bench.hear();
    stage.await.unwrap().unwrap();
    bench.send(&volume, Verb::Unstage).await;
    assert_eq!(bench.world.left(), Vec::<String>::new());
}

/// Unsynced data of the volume is lost when its disk is removed.
#[tokio::test(start_paused = true)]
async fn lost_data_is_reported_until_the_kubelet_unstages_the_volume() {
    let bench = Bench::new().watched();
    let volume = bench.with("vol", Form::Ext4, &[Verb::Stage]).await;
    let unsynced = &bench.service.unsynced;
    let id = VolumeId::new(volume.id.as_str()).unwrap();
    unsynced.unmounted(&id, &unsynced.begin(), "slow".to_owned());
    bench.unplug(&volume);
    bench.is_unmounted(&volume).await;
    assert_eq!(unsynced.count(), 1);
    bench.send(&volume, Verb::Unstage).await;
    assert_eq!(unsynced.count(), 0);
}
