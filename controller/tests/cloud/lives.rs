//! Thousands of random volume lifecycles, with two controllers that crash, and a cloud that loses,
//! delays, repeats and refuses requests, while other programs create and copy volumes. Each
//! lifecycle has a number: `BELAY_LIFE=NUMBER` repeats one, and `BELAY_LIVES=COUNT` runs more of
//! them.

use crate::cloud::Cloud;
use crate::fate::{Fates, Random};
use crate::line::Line;
use crate::{PROFILE, attached, controller, create, created, deleted, detached, grown, on};
use belay_controller::backend::Phase;
use belay_controller::rpc::Service;
use std::collections::HashMap;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

/// The time for which a caller repeats a call before the test reports that it does not converge.
const CONVERGES_WITHIN: Duration = Duration::from_secs(3600);

/// The position of a controller: when it crashes, another one is started there.
pub(crate) struct Seat {
    cloud: Arc<Cloud>,
    running: Mutex<(Arc<Line>, Arc<Service>)>,
}

impl Seat {
    pub(crate) fn new(cloud: &Arc<Cloud>) -> Arc<Self> {
        Arc::new(Self {
            cloud: Arc::clone(cloud),
            running: Mutex::new(Self::started(cloud)),
        })
    }

    fn started(cloud: &Arc<Cloud>) -> (Arc<Line>, Arc<Service>) {
        let line = Line::new(cloud);
        let service = on(Arc::clone(&line), PROFILE);
        (line, service)
    }

    /// Makes one call; a crash breaks its connection.
    pub(crate) async fn call<T>(
        &self,
        call: impl AsyncFnOnce(&Service) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let (line, service) = self.running.lock().unwrap().clone();
        tokio::select! {
            answer = call(&service) => answer,
            () = line.crashed() => {
                let mut running = self.running.lock().unwrap();
                if Arc::ptr_eq(&running.0, &line) {
                    *running = Self::started(&self.cloud);
                }
                Err(Status::unavailable("the controller has crashed"))
            }
        }
    }

    /// Repeats a call until it succeeds, or `is_enough` accepts its failure.
    pub(crate) async fn insist<T>(
        &self,
        what: &str,
        is_enough: impl Fn(&Status) -> bool,
        call: impl AsyncFn(&Service) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let begun = Instant::now();
        loop {
            match self.call(&call).await {
                Err(status) if !is_enough(&status) => {
                    let age = begun.elapsed();
                    let there = self.cloud.describe();
                    assert!(
                        age < CONVERGES_WITHIN,
                        "{what} does not converge: {status}\n{there}"
                    );
                }
                enough => return enough,
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Whether the failed call is certainly not running any longer.
pub(crate) fn is_final(status: &Status) -> bool {
    let code = status.code();
    !matches!(
        code,
        Code::Aborted | Code::Unavailable | Code::DeadlineExceeded
    )
}

pub(crate) fn never(_: &Status) -> bool {
    false
}

/// The IDs that callers have received, by name.
#[derive(Default)]
pub(crate) struct Answers(Mutex<HashMap<String, String>>);

impl Answers {
    pub(crate) fn given(&self, cloud: &Cloud, name: &str, id: &str) {
        cloud.answered(id);
        let mut answers = self.0.lock().unwrap();
        let first = answers
            .entry(name.to_owned())
            .or_insert_with(|| id.to_owned());
        assert_eq!(first, id, "two IDs for {name}");
    }

    pub(crate) fn of(&self, name: &str) -> String {
        self.0.lock().unwrap()[name].clone()
    }
}

struct Life {
    cloud: Arc<Cloud>,
    seats: [Arc<Seat>; 2],
    answers: Answers,
}

impl Life {
    async fn create(&self, seat: usize, name: &str) {
        let request = create(name, "fast");
        let call = async |service: &Service| created(service, request.clone()).await;
        let volume = self.seats[seat].insist(name, never, call).await.unwrap();
        self.answers.given(&self.cloud, name, &volume.volume_id);
    }

    /// Starts callers at both controllers, and a program that knows no marks.
    async fn begin(self: &Arc<Self>, random: &mut Random) {
        let mut callers = JoinSet::new();
        for name in ["pvc-1", "pvc-2", "pvc-3"] {
            for _ in 0..=random.below(3) {
                let life = Arc::clone(self);
                let (seat, at) = (random.index(2), random.below(6000));
                callers.spawn_local(async move {
                    sleep(Duration::from_millis(at)).await;
                    life.create(seat, name).await;
                });
            }
            let (what, at) = (random.below(8), random.below(12_000));
            let (life, low) = (Arc::clone(self), random.below(2) == 0);
            callers.spawn_local(async move {
                sleep(Duration::from_millis(at)).await;
                let id = |kind: &str| match low {
                    true => format!("id-0-{kind}-{name}"),
                    false => format!("id-a-{kind}-{name}"),
                };
                match what {
                    0 => life.cloud.leave(&id("other"), name, Phase::Ready),
                    1 | 2 => life.cloud.copy(name, &id("copy")),
                    _ => {}
                }
            });
        }
        callers.join_all().await;
    }

    /// Runs the lifecycle of a volume: it is used, requested again, and deleted.
    async fn lead(self: Arc<Self>, name: &'static str, mut random: Random) {
        let id = &self.answers.of(name);
        for round in 0..random.index(3) {
            let seat = || &self.seats[(round + name.len()) % 2];
            let node = ["node-1", "node-2"][random.index(2)];
            let attach = async |service: &Service| attached(service, id, node).await;
            seat().insist("attach", never, attach).await.unwrap();
            let bytes = i64::try_from(5 + round).unwrap() << 30;
            let grow = async |service: &Service| grown(service, id, bytes).await;
            assert!(seat().insist("expand", never, grow).await.unwrap() >= bytes);
            self.create(random.index(2), name).await;
            let detach = async |service: &Service| detached(service, id).await;
            seat().insist("detach", never, detach).await.unwrap();
        }
        let both = [0, 1].map(|seat| self.create(seat, name));
        let [one, other] = both;
        tokio::join!(one, other);
        self.cloud.condemn(id);
        let delete = async |service: &Service| deleted(service, id).await;
        let seat = &self.seats[random.index(2)];
        seat.insist("delete", never, delete).await.unwrap();
        assert!(!self.cloud.ids().contains(id), "deleted, but exists");
    }
}

/// Returns a cloud with random faults.
pub(crate) fn unreliable(random: &mut Random) -> Arc<Cloud> {
    let bad = [0, 30, 100, 250][random.index(4)];
    let delay = Duration::from_millis(random.below(8000));
    // Two requests of a controller fit into the time that a claim may take.
    let slow = Duration::from_millis([5, 300, 2400][random.index(3)]);
    let fates = Fates::random(random.below(u64::MAX), bad, slow);
    Cloud::with(delay, fates)
}

/// Waits until late requests have taken effect. Checks that there was no violation, and that
/// requests without a response, and crashes, explain all surplus objects.
pub(crate) async fn judge(cloud: &Cloud) {
    sleep(Duration::from_secs(600)).await;
    assert_eq!(cloud.broken(), Vec::<String>::new());
    let ours = |id: &String| !id.contains("other") && !id.contains("copy");
    let surplus: Vec<_> = cloud.ids().into_iter().filter(ours).collect();
    let most = cloud.fates().surplus_max(3);
    assert!(surplus.len() <= most, "more than {most}: {surplus:?}");
}

async fn live(number: u64) {
    let mut random = Random(number);
    let cloud = unreliable(&mut random);
    let life = Arc::new(Life {
        seats: [Seat::new(&cloud), Seat::new(&cloud)],
        cloud,
        answers: Answers::default(),
    });
    life.begin(&mut random).await;
    let mut lives = JoinSet::new();
    for name in ["pvc-1", "pvc-2", "pvc-3"] {
        let random = Random(random.below(u64::MAX));
        lives.spawn_local(Arc::clone(&life).lead(name, random));
    }
    lives.join_all().await;
    judge(&life.cloud).await;
}

/// Returns the numbers of the lifecycles to run.
pub(crate) fn numbers() -> Range<u64> {
    let number = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
    match number("BELAY_LIFE") {
        Some(life) => life..life + 1,
        None => 0..number("BELAY_LIVES").unwrap_or(2000),
    }
}

/// Runs each of these numbers in a runtime with a separate clock.
pub(crate) fn each(numbers: Range<u64>, run: impl AsyncFn(u64)) {
    for number in numbers {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        let runtime = runtime.unwrap();
        let life = AssertUnwindSafe(|| LocalSet::new().block_on(&runtime, run(number)));
        let lived = std::panic::catch_unwind(life);
        assert!(lived.is_ok(), "number {number}");
    }
}

#[test]
fn random_lives_lose_no_answered_volume_and_give_one_answer_for_a_name() {
    each(numbers(), live);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_the_cloud_always_refuses_ends_the_call_with_the_reason() {
    let cloud = Cloud::with(Duration::from_secs(1), Fates::refused_claims());
    let service = controller(&cloud);
    for _ in 0..2 {
        let refused = created(&service, create("pvc-1", "fast")).await;
        let refused = refused.unwrap_err();
        assert!(refused.message().contains("503"), "{refused}");
        assert_eq!(refused.code(), Code::Unavailable);
    }
    assert_eq!(cloud.ids().len(), 1);
}

/// Two controllers create one volume at about the same time, and claim different objects.
#[test]
fn two_late_claims_of_one_name_have_one_answer() {
    each(0..1000, async |number| {
        let mut random = Random(number);
        let slow = Duration::from_millis(2400);
        let delay = Duration::from_millis(random.below(6000));
        let cloud = Cloud::with(delay, Fates::late_claims(number, slow));
        let life = Life {
            seats: [Seat::new(&cloud), Seat::new(&cloud)],
            cloud,
            answers: Answers::default(),
        };
        let later = Duration::from_millis(random.below(2000));
        tokio::join!(life.create(0, "pvc-1"), async {
            sleep(later).await;
            life.create(1, "pvc-1").await;
        });
        life.create(0, "pvc-1").await;
        sleep(Duration::from_secs(600)).await;
        assert_eq!(life.cloud.broken(), Vec::<String>::new());
        assert_eq!(life.cloud.ids(), [life.answers.of("pvc-1")], "surplus");
    });
}
