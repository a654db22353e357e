//! Two controllers that work at the same time, and are killed at random instants, and leaders that
//! lose their lease: a returned volume is kept, no volume is attached twice, and each repeated call
//! succeeds.

use crate::site::{
    Client, Site, attached, created, cut, deleted, detached, discarded, nth_server, restored,
};
use crate::wire::{CHANGE, Cloud};
use belay_bed::chance::Chance;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
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
/// The maximum time for a call, far more than it needs after the last kill: a contest of two
/// volumes takes 30 s.
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
    fn new() -> Self {
        let cloud = Cloud::start(CHANGE, None);
        let sites = [(); 2].map(|()| Site::new(&cloud.url(), ""));
        Self {
            cloud,
            sites,
            over: AtomicBool::new(false),
        }
    }

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

    /// Runs the lifecycle of a snapshot: it is cut, cut again, restored and deleted.
    async fn copies(&self, chance: &mut Chance, name: &str, of: &str) {
        let snap = &format!("snap-of-{name}");
        let cut = async |mut client: Client| cut(&mut client, snap, of).await;
        let id = &self.call(chance, &format!("cut {snap}"), cut).await;
        self.cloud.twin().answered.insert(id.clone());
        let again = self.call(chance, &format!("cut {snap} again"), cut).await;
        assert_eq!(&again, id, "{snap} has two snapshots");
        let name = &format!("pvc-of-{snap}");
        let restore = async |mut client: Client| restored(&mut client, name, id).await;
        let copy = &self.call(chance, &format!("restore {snap}"), restore).await;
        self.cloud.twin().answered.insert(copy.clone());
        let again = self.call(chance, "restore again", restore).await;
        assert_eq!(&again, copy, "{name} has two volumes");
        self.cloud.twin().answered.remove(copy);
        let delete = async |mut client: Client| deleted(&mut client, copy).await;
        self.call(chance, &format!("delete {copy}"), delete).await;
        self.cloud.twin().answered.remove(id);
        let discard = async |mut client: Client| discarded(&mut client, id).await;
        self.call(chance, &format!("delete {id}"), discard).await;
        assert!(!self.cloud.twin().snapshots().contains(id), "{id} is left");
    }

    /// Runs the lifecycle of a volume: it is created, created again, attached, detached, and
    /// deleted, unless it is kept. Some volumes have a snapshot while they are attached.
    async fn life(&self, chance: &mut Chance, name: &str, node: &str) {
        let create = async |mut client: Client| created(&mut client, name).await;
        let id = &self.call(chance, &format!("create {name}"), create).await;
        self.cloud.twin().answered.insert(id.clone());
        let again = self
            .call(chance, &format!("create {name} again"), create)
            .await;
        assert_eq!(&again, id, "{name} has two volumes");
        let attach = async |mut client: Client| attached(&mut client, id, node).await;
        self.call(chance, &format!("attach {id}"), attach).await;
        let seen = |cloud: &Cloud| cloud.twin().all()[id].clone();
        assert_eq!(seen(&self.cloud).as_deref(), Some(node), "{id}");
        if chance.below(2) == 0 {
            self.copies(chance, name, id).await;
        }
        let detach = async |mut client: Client| detached(&mut client, id, node).await;
        self.call(chance, &format!("detach {id}"), detach).await;
        assert_eq!(seen(&self.cloud), None, "{id}");
        if chance.below(4) == 0 {
            return;
        }
        self.cloud.twin().answered.remove(id);
        let delete = async |mut client: Client| deleted(&mut client, id).await;
        self.call(chance, &format!("delete {id}"), delete).await;
        assert!(!self.cloud.twin().all().contains_key(id), "{id} is left");
    }
}

#[tokio::test(flavor = "local")]
#[ignore = "takes a minute: make matrices"]
async fn two_controllers_that_are_killed_lose_no_answered_volume() {
    let mut chance = Chance::new("two_controllers_that_are_killed_lose_no_answered_volume");
    let pair = Arc::new(Pair::new());
    let mut running = [pair.sites[0].start(), pair.sites[1].start()];
    let mut callers = JoinSet::new();
    for n in 0..CALLERS {
        let (pair, mut chance) = (Arc::clone(&pair), chance.fork());
        callers.spawn_local(async move {
            let node = &nth_server(n % 3);
            let mut lives = 0;
            while !pair.over.load(Ordering::Relaxed) {
                pair.life(&mut chance, &format!("pvc-{n}-{lives}"), node)
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
    let left = pair.cloud.twin().all();
    let answered = pair.cloud.twin().answered.clone();
    let ids: BTreeSet<_> = left.keys().cloned().collect();
    let surplus: Vec<_> = ids.difference(&answered).cloned().collect();
    let snapshots = pair.cloud.twin().snapshots();
    eprintln!("{killed} kills, {lives} volumes, surplus: {surplus:?} {snapshots:?}");
    assert!(answered.is_subset(&ids), "{answered:?} in {ids:?}");
    assert!(left.values().all(Option::is_none), "{left:?}");
    assert_eq!(pair.cloud.twin().broken, [] as [&str; 0]);
    // Each kill interrupts at most one creation of each caller.
    assert!(surplus.len() + snapshots.len() <= killed * CALLERS);
    for id in &snapshots {
        let discard = async |mut client: Client| discarded(&mut client, id).await;
        pair.call(&mut chance, "delete", discard).await;
    }
    assert!(pair.cloud.twin().snapshots().is_empty());
    // A surplus volume is listed, and can be deleted.
    for id in &surplus {
        let delete = async |mut client: Client| deleted(&mut client, id).await;
        pair.call(&mut chance, "delete", delete).await;
    }
    let left: BTreeSet<_> = pair.cloud.twin().all().into_keys().collect();
    assert_eq!(left, answered);
}

/// The sidecar that has lost its lease exits during a call, and another one calls the other
/// controller with the same name.
async fn takeover(pair: Arc<Pair>, n: u64) {
    let name = &format!("pvc-{n}");
    let mut before = pair.sites[0].client().await;
    let call = created(&mut before, name);
    let lost = timeout(Duration::from_millis(n * 40), call).await;
    // Its last response may have arrived.
    let old = lost.ok().transpose().unwrap();
    let mut now = pair.sites[1].client().await;
    let new = loop {
        match created(&mut now, name).await {
            Err(status) if repeats(&status) => {}
            answer => break answer.unwrap(),
        }
    };
    pair.cloud.twin().answered.insert(new.clone());
    assert!(old.is_none_or(|old| old == new), "{name} has two answers");
    let mut chance = Chance::seeded(n);
    for _ in 0..4 {
        let create = async |mut client: Client| created(&mut client, name).await;
        let again = pair.call(&mut chance, name, create).await;
        assert_eq!(again, new, "{name} has two volumes");
    }
    let node = &nth_server(1);
    attached(&mut now, &new, node).await.unwrap();
    detached(&mut now, &new, node).await.unwrap();
    pair.cloud.twin().answered.remove(&new);
    deleted(&mut now, &new).await.unwrap();
}

#[tokio::test(flavor = "local")]
#[ignore = "takes a minute: make matrices"]
async fn a_lease_that_is_lost_in_mid_create_leaves_one_volume_and_one_answer() {
    let pair = Arc::new(Pair::new());
    let _running = [pair.sites[0].start(), pair.sites[1].start()];
    let mut takeovers = JoinSet::new();
    // The exits range from before the first request to after the response.
    for n in 0..40 {
        takeovers.spawn_local(takeover(Arc::clone(&pair), n));
    }
    takeovers.join_all().await;
    assert_eq!(pair.cloud.twin().broken, [] as [&str; 0]);
    let left = pair.cloud.twin().all();
    assert_eq!(left.len(), 0, "surplus: {left:?}");
}
