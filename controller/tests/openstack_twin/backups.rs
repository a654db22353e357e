//! A controller that is killed at each of its requests while it creates, restores or deletes a
//! backup, before the request takes effect or after. The repeated call succeeds, with one backup
//! and one volume, and without any snapshot that was created for a backup.

use crate::site::{Client, Site, created, discarded, restored};
use crate::wire::{Cloud, Fate};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

/// The duration of a change in the cloud, longer than the time until the first read.
const CHANGE: Duration = Duration::from_millis(300);
/// The maximum time for a call, far more than it needs after a kill: a contest of two takes 30 s.
const PATIENCE: Duration = Duration::from_secs(120);
/// The number of concurrent controllers.
const AT_ONCE: usize = 6;

/// The call that is interrupted.
#[derive(Clone, Copy, Debug)]
enum Step {
    BackUp,
    Restore,
    Discard,
}

/// The objects that exist before the call: a volume, and for all calls except the first one its
/// backup.
struct Bed {
    cloud: Cloud,
    site: Site,
    volume: String,
    backup: String,
}

/// Returns the ID of the backup of `snap-1` once it is complete; repeats the call as
/// csi-snapshotter does.
pub(crate) async fn backed_up(client: &mut Client, of: &str) -> Result<String, Status> {
    loop {
        let mut request = requests::cut("snap-1", of);
        let kind = ("type".to_owned(), "backup".to_owned());
        request.parameters.extend([kind]);
        let answer = client.create_snapshot(request).await?.into_inner();
        let csi::Snapshot {
            snapshot_id,
            ready_to_use,
            ..
        } = answer.snapshot.unwrap();
        if ready_to_use {
            return Ok(snapshot_id);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

impl Bed {
    /// Creates the objects, with a controller that has logged in and exited.
    async fn new(step: Step) -> Self {
        let cloud = Cloud::start(CHANGE, None);
        let site = Site::new(&cloud.url(), "");
        let _running = site.start();
        let client = &mut site.client().await;
        let volume = created(client, "pvc-1").await.unwrap();
        let backup = match step {
            Step::BackUp => String::new(),
            Step::Restore | Step::Discard => backed_up(client, &volume).await.unwrap(),
        };
        cloud.twin().answered.insert(volume.clone());
        Self {
            cloud,
            site,
            volume,
            backup,
        }
    }

    /// Makes the call; returns the ID of the created object, or of the deleted backup.
    async fn call(&self, step: Step) -> Result<String, Status> {
        let client = &mut self.site.try_client().await?;
        match step {
            Step::BackUp => backed_up(client, &self.volume).await,
            Step::Restore => restored(client, "pvc-2", &self.backup).await,
            Step::Discard => discarded(client, &self.backup)
                .await
                .map(|()| self.backup.clone()),
        }
    }

    /// Repeats the call until it succeeds.
    async fn repeated(&self, step: Step, case: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.call(step).await {
                Ok(id) => return id,
                Err(status) => {
                    let code = status.code();
                    let repeats = matches!(code, Code::Aborted | Code::Unavailable);
                    assert!(repeats && Instant::now() < end, "{case}: {status}");
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Checks the state after the call. Cinder may still be deleting a snapshot.
    async fn judge(&self, step: Step, made: &str, case: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.cloud.twin().snapshots().is_empty() && Instant::now() < end {
            sleep(Duration::from_millis(50)).await;
        }
        let mut twin = self.cloud.twin();
        let (volumes, backups) = (twin.all(), twin.backups());
        let ids: Vec<_> = volumes.keys().map(String::as_str).collect();
        match step {
            Step::BackUp => {
                assert_eq!(backups.into_iter().collect::<Vec<_>>(), [made], "{case}");
                assert_eq!(ids, [&*self.volume], "{case}");
            }
            Step::Restore => {
                let mut both = [&*self.volume, made];
                both.sort_unstable();
                assert_eq!(ids, both, "{case}");
                assert_eq!(backups.len(), 1, "{case}");
            }
            Step::Discard => assert!(backups.is_empty(), "{case}: {backups:?}"),
        }
        let snapshots = twin.snapshots();
        assert!(snapshots.is_empty(), "{case}: {snapshots:?} is left");
        assert_eq!(twin.broken, [] as [&str; 0], "{case}");
    }
}

/// Kills the controller at the request after `answered` others; returns whether there was one.
async fn killed_at(step: Step, answered: usize, fate: Fate) -> bool {
    let case = format!("{step:?}, killed after {answered} requests, the next one {fate:?}");
    let bed = Bed::new(step).await;
    let mut running = bed.site.start();
    bed.cloud.set_trap(answered, fate);
    let interrupted = tokio::select! {
        biased;
        () = bed.cloud.trapped() => true,
        answer = bed.call(step) => {
            let answer = answer.unwrap_or_else(|status| panic!("{case}: {status}"));
            bed.judge(step, &answer, &case).await;
            false
        }
    };
    if interrupted {
        running.kill().unwrap();
        running.wait().unwrap();
        let _again = bed.site.start();
        let made = bed.repeated(step, &case).await;
        bed.judge(step, &made, &case).await;
        let same = bed.repeated(step, &case).await;
        assert_eq!(same, made, "{case}");
        bed.judge(step, &made, &case).await;
    }
    interrupted
}

/// Returns the number of requests of an undisturbed call.
async fn requests_of(step: Step) -> usize {
    let bed = Bed::new(step).await;
    let _running = bed.site.start();
    let before = bed.cloud.twin().count();
    bed.call(step).await.unwrap();
    let after = bed.cloud.twin().count();
    after - before
}

/// Kills the controller at each request of the call, and checks that there are at least `least`
/// requests.
async fn killed_at_each(step: Step, least: usize) {
    let count = requests_of(step).await;
    assert!(count >= least, "{step:?}: {count} requests");
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut cases = JoinSet::new();
    for fate in [Fate::Lost, Fate::Done] {
        for answered in 0..count {
            let turns = Arc::clone(&turns);
            cases.spawn_local(async move {
                let _turn = turns.acquire().await.unwrap();
                killed_at(step, answered, fate).await
            });
        }
    }
    let interrupted = cases.join_all().await;
    let killed = interrupted.iter().filter(|it| **it).count();
    eprintln!("{step:?}: {count} requests, {killed} kills");
    // The number of reads of the cloud varies.
    assert!(killed >= 2 * least, "{step:?}: {killed}");
}

#[tokio::test(flavor = "local")]
#[ignore = "takes a minute: make matrices"]
async fn a_controller_that_is_killed_while_it_makes_a_backup_makes_one_and_leaves_no_snapshot() {
    killed_at_each(Step::BackUp, 10).await;
}

#[tokio::test(flavor = "local")]
#[ignore = "takes a minute: make matrices"]
async fn a_controller_that_is_killed_while_it_restores_a_backup_makes_one_volume() {
    killed_at_each(Step::Restore, 8).await;
}

#[tokio::test(flavor = "local")]
#[ignore = "takes a minute: make matrices"]
async fn a_controller_that_is_killed_while_it_deletes_a_backup_deletes_it() {
    killed_at_each(Step::Discard, 3).await;
}
