//! Two controllers at work at the same time, each killed at random instants: an answered volume
//! stays, none is attached twice, and each repeated call ends well.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use belay_bed::chance::Chance;
use belay_bed::requests;
use belay_openstack::Cloud;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use crate::site::{Client, Site, block, by_password, create, opened, unique};

/// Kills of each run, in sum of both controllers; 200 in the nightly run.
fn kills() -> usize {
    if std::env::var_os("BELAY_NIGHTLY").is_some() {
        200
    } else {
        20
    }
}

/// Callers at one time, each with one volume after another.
const CALLERS: usize = 6;
/// A controller serves at most so long before it is killed.
const UPTIME_MAX: Duration = Duration::from_millis(2500);
/// Far more than a call needs after the last kill: a contest of two volumes takes 30 s.
const PATIENCE: Duration = Duration::from_secs(150);

/// Both controllers; a call goes to either.
struct Pair {
    sites: [Site; 2],
    over: AtomicBool,
    /// All that were answered, for a look at the end.
    answered: Mutex<BTreeSet<String>>,
}

/// Codes after which a caller repeats its call: those of a call that may still be running, and of
/// a controller that was killed.
fn repeats(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Internal
            | Code::Unavailable
            | Code::Aborted
            | Code::Unknown
            | Code::Cancelled
            | Code::DeadlineExceeded
    )
}

impl Pair {
    /// Repeats a call, each time at a controller of chance, until it is answered.
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

    /// One volume: created, created again, attached, detached, and deleted, unless it is kept.
    async fn life(&self, chance: &mut Chance, cloud: &Cloud, node: &str) {
        let name = unique("crash");
        let made = async |mut client: Client| client.create_volume(create(&name, 1)).await;
        let id = |answer: tonic::Response<belay_proto::csi::v1::CreateVolumeResponse>| {
            answer.into_inner().volume.unwrap().volume_id
        };
        let volume = id(self.call(chance, &format!("create {name}"), made).await);
        self.answered.lock().unwrap().insert(volume.clone());
        let again = id(self
            .call(chance, &format!("create {name} again"), made)
            .await);
        assert_eq!(again, volume, "{name} has two volumes");
        let attach = async |mut client: Client| {
            let request = requests::attach(&volume, node, block());
            client.controller_publish_volume(request).await
        };
        let _context = self.call(chance, &format!("attach {volume}"), attach).await;
        let shown = cloud.volume(&volume).expect("an answered volume");
        assert_eq!(shown.servers, [node], "{volume}");
        let detach = async |mut client: Client| {
            let request = requests::detach(&volume, node);
            client.controller_unpublish_volume(request).await
        };
        let _answer = self.call(chance, &format!("detach {volume}"), detach).await;
        let shown = cloud.volume(&volume).expect("an answered volume");
        assert_eq!(shown.servers, [] as [&str; 0], "{volume}");
        if chance.below(4) == 0 {
            return;
        }
        self.answered.lock().unwrap().remove(&volume);
        let delete =
            async |mut client: Client| client.delete_volume(requests::delete(&volume)).await;
        let _answer = self.call(chance, &format!("delete {volume}"), delete).await;
    }
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn two_controllers_that_are_killed_lose_no_answered_volume() {
    let mut chance = Chance::new("two_controllers_that_are_killed_lose_no_answered_volume");
    let (bed, cloud) = opened();
    let nodes = [cloud.server("az-a"), cloud.server("az-a")];
    let before: BTreeSet<_> = cloud.volumes(None).into_iter().map(|it| it.id).collect();
    let conf = by_password(&bed);
    let pair = Arc::new(Pair {
        sites: [Site::new(&conf), Site::new(&conf)],
        over: AtomicBool::new(false),
        answered: Mutex::default(),
    });
    let mut running = [pair.sites[0].start(), pair.sites[1].start()];
    let callers = (0..CALLERS).map(|n| {
        let (pair, mut chance) = (Arc::clone(&pair), chance.fork());
        let (cloud, node) = (cloud.clone(), nodes[n % nodes.len()].id.clone());
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            let mut lives = 0;
            while !pair.over.load(Ordering::Relaxed) {
                runtime.block_on(pair.life(&mut chance, &cloud, &node));
                lives += 1;
            }
            lives
        })
    });
    let callers: Vec<_> = callers.collect();
    let longest = u64::try_from(UPTIME_MAX.as_millis()).unwrap();
    for _ in 0..kills() {
        sleep(Duration::from_millis(chance.below(longest))).await;
        let at = usize::try_from(chance.below(2)).unwrap();
        running[at].kill().unwrap();
        running[at].wait().unwrap();
        running[at] = pair.sites[at].start();
        // A caller that has failed says why; the others would never end.
        if callers.iter().any(JoinHandle::is_finished) {
            break;
        }
    }
    pair.over.store(true, Ordering::Relaxed);
    let mut lives = 0;
    for caller in callers {
        lives += caller.join().unwrap();
    }
    let answered = pair.answered.lock().unwrap().clone();
    let left = cloud.volumes(None);
    let left: Vec<_> = left.iter().filter(|it| !before.contains(&it.id)).collect();
    let ids: BTreeSet<_> = left.iter().map(|volume| volume.id.clone()).collect();
    assert!(
        answered.is_subset(&ids),
        "lost: {:?}",
        answered.difference(&ids)
    );
    assert!(
        left.iter().all(|volume| volume.servers.is_empty()),
        "{left:?}"
    );
    let surplus: Vec<_> = ids.difference(&answered).collect();
    eprintln!("{} kills, {lives} volumes, surplus: {surplus:?}", kills());
    // Each kill interrupts at most one creation of each caller.
    assert!(surplus.len() <= kills() * CALLERS, "{surplus:?}");
    for id in &ids {
        let delete = async |mut client: Client| client.delete_volume(requests::delete(id)).await;
        let _answer = pair
            .call(&mut chance, &format!("delete {id}"), delete)
            .await;
    }
}
