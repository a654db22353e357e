//! Two controllers that work at the same time, and are killed at random instants: a returned volume
//! is kept, no volume is attached twice, and each repeated call succeeds.

use crate::site::{
    CHANGE, Client, Cloud, Site, attached, cloud, created, deleted, detached, instance,
};
use belay_bed::chance::Chance;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

/// Returns the number of kills of both controllers in a run; 200 in the nightly run.
fn kills() -> usize {
    match std::env::var_os("BELAY_NIGHTLY") {
        Some(_) => 200,
        None => 20,
    }
}

/// The number of concurrent callers, each with one volume after another.
const CALLERS: usize = 8;
/// The maximum time for which a controller serves before it is killed, in milliseconds.
const UPTIME_MAX_MS: u64 = 1200;
/// The maximum time for a call, far more than it needs after the last kill.
const PATIENCE: Duration = Duration::from_secs(150);

/// Both controllers; a call may use either.
struct Pair {
    cloud: Cloud,
    sites: [Site; 2],
    over: AtomicBool,
}

/// Whether a caller repeats its call after this error: the call may still be running, or the
/// controller was killed.
fn repeats(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::Aborted
            | Code::Unknown
            | Code::Cancelled
            | Code::DeadlineExceeded
    )
}

impl Pair {
    /// Repeats a call, each time at a random controller, until there is a response.
    async fn call<T>(
        &self,
        chance: &mut Chance,
        what: &str,
        mut call: impl AsyncFnMut(Client) -> Result<T, Status>,
    ) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            let at = usize::try_from(chance.below(2)).unwrap();
            let answer = match self.sites[at].try_client().await {
                Ok(client) => call(client).await,
                Err(down) => Err(down),
            };
            match answer {
                Ok(answer) => return answer,
                Err(status) if repeats(&status) => {
                    let is_over = self.over.load(Ordering::Relaxed);
                    assert!(!is_over || Instant::now() < end, "{what}: {status}");
                    sleep(Duration::from_millis(100)).await;
                }
                Err(status) => panic!("{what}: {status}"),
            }
        }
    }

    fn instance_of(&self, id: &str) -> Option<String> {
        let twin = self.cloud.service().twin();
        twin.state().volumes[id].instance.clone()
    }

    /// Records that a pod uses the volume on a node, or that no pod uses it.
    fn uses(&self, id: &str, node: Option<&str>) {
        let in_use = &mut self.cloud.service().twin().in_use;
        match node {
            Some(node) => drop(in_use.insert(id.to_owned(), node.to_owned())),
            None => drop(in_use.remove(id)),
        }
    }

    /// Runs the lifecycle of one volume: creates it, creates it again, attaches it to one node and
    /// then to the next, and deletes it, unless it is kept.
    async fn life(&self, chance: &mut Chance, name: &str, nodes: [&str; 2]) {
        let create = async |mut client: Client| created(&mut client, name).await;
        let id = &self.call(chance, &format!("create {name}"), create).await;
        self.cloud.service().twin().kept.insert(id.clone());
        let again = &self.call(chance, &format!("{name} again"), create).await;
        assert_eq!(again, id, "{name} has two volumes");
        for node in nodes {
            let attach = async |mut client: Client| attached(&mut client, id, node).await;
            self.call(chance, &format!("attach {id}"), attach).await;
            self.uses(id, Some(node));
            assert_eq!(self.instance_of(id).as_deref(), Some(node), "{id}");
            self.uses(id, None);
            let detach = async |mut client: Client| detached(&mut client, id, node).await;
            self.call(chance, &format!("detach {id}"), detach).await;
            assert_eq!(self.instance_of(id), None, "{id}");
        }
        if chance.below(4) == 0 {
            return;
        }
        self.cloud.service().twin().kept.remove(id);
        let delete = async |mut client: Client| deleted(&mut client, id).await;
        self.call(chance, &format!("delete {id}"), delete).await;
        let twin = self.cloud.service().twin();
        assert!(!twin.state().volumes.contains_key(id), "{id} is left");
    }
}

#[tokio::test(flavor = "local")]
#[ignore = "takes a minute: make matrices"]
async fn two_controllers_that_are_killed_lose_and_duplicate_no_volume() {
    let mut chance = Chance::new("two_controllers_that_are_killed_lose_and_duplicate_no_volume");
    let cloud = cloud(CHANGE);
    let sites = [(); 2].map(|()| Site::new(&cloud));
    let over = AtomicBool::new(false);
    let pair = Arc::new(Pair { cloud, sites, over });
    let mut running = [pair.sites[0].start(), pair.sites[1].start()];
    let mut callers = JoinSet::new();
    for n in 0..CALLERS {
        let (pair, mut chance) = (Arc::clone(&pair), chance.fork());
        callers.spawn_local(async move {
            let nodes = [instance(1 + n % 3), instance(1 + (n + 1) % 3)];
            let mut lives = 0;
            while !pair.over.load(Ordering::Relaxed) {
                let name = format!("pvc-{n}-{lives}");
                pair.life(&mut chance, &name, nodes.each_ref().map(String::as_str))
                    .await;
                lives += 1;
            }
            lives
        });
    }
    let mut killed = 0;
    // A failed caller reports the reason; the other callers would never end.
    while killed < kills() && callers.try_join_next().is_none() {
        sleep(Duration::from_millis(chance.below(UPTIME_MAX_MS))).await;
        let at = usize::try_from(chance.below(2)).unwrap();
        running[at].kill().unwrap();
        running[at].wait().unwrap();
        running[at] = pair.sites[at].start();
        killed += 1;
    }
    pair.over.store(true, Ordering::Relaxed);
    let lives: usize = callers.join_all().await.into_iter().sum();
    assert_eq!(killed, kills(), "a caller has failed");
    assert!(lives >= CALLERS, "{lives}");
    let twin = pair.cloud.service().twin();
    let left: BTreeSet<_> = twin.state().volumes.keys().cloned().collect();
    eprintln!("{killed} kills, {lives} volumes, {} kept", twin.kept.len());
    // Each name belongs to one volume, so none is left over.
    assert_eq!(left, twin.kept);
    assert_eq!(twin.broken, [] as [&str; 0]);
}
