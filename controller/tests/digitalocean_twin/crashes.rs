//! Two controllers that work at the same time, and are killed at random instants: nothing is left
//! over, no volume is created twice, and each repeated call succeeds.

use crate::site::{Client, Site, attached, created, deleted, detached};
use belay_bed::chance::Chance;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

/// Whether this is the nightly run, which has more kills and the real rate limit.
fn is_long() -> bool {
    std::env::var_os("BELAY_NIGHTLY").is_some()
}

const CALLERS: u64 = 6;
/// The maximum time for which a controller serves before it is killed, in milliseconds.
const UPTIME_MAX_MS: u64 = 2500;
/// The rate limit of the short run, in which controllers do not pause; otherwise most of the time
/// would be spent waiting.
const NO_LIMIT: (usize, Duration) = (100_000, Duration::from_secs(60));
/// The maximum time for a call, far more than it needs after the last kill.
const PATIENCE: Duration = Duration::from_secs(150);

/// A call and its object.
#[derive(Clone, Copy)]
enum Step<'a> {
    Create(&'a str),
    Attach(&'a str, &'a str),
    Detach(&'a str, &'a str),
    Delete(&'a str),
}

impl Step<'_> {
    /// Makes the call; returns the ID of the volume if the call creates it.
    async fn call(self, client: &mut Client) -> Result<String, Status> {
        match self {
            Step::Create(name) => return created(client, name).await,
            Step::Attach(id, node) => attached(client, id, node).await.map(drop)?,
            Step::Detach(id, node) => detached(client, id, node).await?,
            Step::Delete(id) => deleted(client, id).await?,
        }
        Ok(String::new())
    }

    /// Repeats the call, each time at a random controller, until there is a response.
    async fn take(self, sites: &[Site; 2], is_over: &AtomicBool, chance: &mut Chance) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let at = usize::try_from(chance.below(2)).unwrap();
            let answer = match sites[at].try_client().await {
                Ok(mut client) => self.call(&mut client).await,
                Err(down) => Err(down),
            };
            let status = match answer {
                Ok(answer) => return answer,
                Err(status) => status,
            };
            let repeats = [
                Code::Unavailable,
                Code::Aborted,
                Code::Unknown,
                Code::Cancelled,
                Code::DeadlineExceeded,
                Code::Internal,
            ];
            assert!(repeats.contains(&status.code()), "{status}");
            assert!(
                !is_over.load(Ordering::Relaxed) || Instant::now() < end,
                "{status}"
            );
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_that_are_killed_leave_nothing_and_lose_nothing() {
    kill_two(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_do_they_where_a_volume_shows_its_droplet_before_it_is_attached() {
    kill_two(true).await;
}

async fn kill_two(at_accept: bool) {
    let first = Site::new();
    first.twin().settings().shows_at_accept = at_accept;
    let kills = if is_long() { 100 } else { 8 };
    if !is_long() {
        first.twin().limit(NO_LIMIT, NO_LIMIT);
    }
    let second = Site::on(Arc::clone(&first.cloud));
    let cloud = Arc::clone(&first.cloud);
    let sites = Arc::new([first, second]);
    let is_over = Arc::new(AtomicBool::new(false));
    let mut running = [sites[0].start(), sites[1].start()];
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (sites, is_over) = (Arc::clone(&sites), Arc::clone(&is_over));
        let mut chance = Chance::seeded(caller + 1);
        callers.spawn(async move {
            let mut lives = 0_u64;
            while !is_over.load(Ordering::Relaxed) || lives == 0 {
                let name = format!("pvc-{caller}-{lives}");
                let node = (101 + chance.below(3)).to_string();
                let chance = &mut chance;
                let id = Step::Create(&name).take(&sites, &is_over, chance).await;
                for step in [
                    Step::Attach(&id, &node),
                    Step::Detach(&id, &node),
                    Step::Delete(&id),
                ] {
                    step.take(&sites, &is_over, chance).await;
                }
                lives += 1;
            }
            lives
        });
    }
    let mut chance = Chance::new("two controllers of DigitalOcean");
    for _ in 0..kills {
        sleep(Duration::from_millis(chance.below(UPTIME_MAX_MS))).await;
        let at = usize::try_from(chance.below(2)).unwrap();
        running[at].kill().unwrap();
        running[at].wait().unwrap();
        running[at] = sites[at].start();
    }
    is_over.store(true, Ordering::Relaxed);
    let lives: u64 = callers.join_all().await.into_iter().sum();
    assert!(lives >= CALLERS);
    assert!(cloud.service().attached().is_empty());
}
