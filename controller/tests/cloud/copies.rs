//! Snapshots, and volumes from snapshots and volumes, on the simulated cloud; and thousands of
//! their random lifecycles, as in `lives`.

use crate::cloud::Cloud;
use crate::fate::{Fate, Fates, Random};
use crate::lives::{Answers, Seat, each, judge, never, numbers, unreliable};
use crate::{
    attached, code, controller, create, created, cut, deleted, detached, discarded, map, requests,
    restore,
};
use belay_controller::rpc::Service;
use belay_proto::csi::v1 as csi;
use csi::controller_server::Controller as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::{Code, Request};

async fn volume(service: &Service, name: &str) -> String {
    created(service, create(name, "fast"))
        .await
        .unwrap()
        .volume_id
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_cut_once_restored_listed_and_deleted_when_the_cloud_has_done_it() {
    let cloud = Cloud::new(20);
    let service = controller(&cloud);
    let (of, other) = (
        volume(&service, "pvc-1").await,
        volume(&service, "pvc-2").await,
    );
    let begun = Instant::now();
    let snapshot = cut(&service, requests::cut("snap-1", &of)).await.unwrap();
    assert!((20..=23).contains(&begun.elapsed().as_secs()));
    assert!(snapshot.ready_to_use);
    assert_eq!(snapshot.source_volume_id, of);
    let again = cut(&service, requests::cut("snap-1", &of)).await.unwrap();
    assert_eq!(again, snapshot);
    let another = cut(&service, requests::cut("snap-1", &other)).await;
    assert_eq!(code(another), Code::AlreadyExists);
    let unknown = cut(&service, requests::cut("snap-2", "id-9")).await;
    assert_eq!(code(unknown), Code::NotFound);

    let source = requests::of_snapshot(&snapshot.snapshot_id);
    let copy = created(&service, restore("pvc-3", source)).await.unwrap();
    let mut smaller = restore("pvc-4", requests::of_snapshot(&snapshot.snapshot_id));
    smaller.capacity_range = requests::range(1 << 30, 1 << 30);
    smaller.parameters.clear();
    assert_eq!(code(created(&service, smaller).await), Code::OutOfRange);
    let list = |source: &str| csi::ListSnapshotsRequest {
        source_volume_id: source.to_owned(),
        ..Default::default()
    };
    for (source, count) in [("", 1), (of.as_str(), 1), (other.as_str(), 0)] {
        let page = service.list_snapshots(Request::new(list(source))).await;
        assert_eq!(page.unwrap().into_inner().entries.len(), count, "{source}");
    }
    for _ in 0..2 {
        discarded(&service, &snapshot.snapshot_id).await.unwrap();
    }
    assert_eq!(cloud.ids(), [of, other, copy.volume_id]);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_takes_long_does_not_keep_its_volume_from_being_detached() {
    let cloud = Cloud::new(60);
    let service = controller(&cloud);
    let id = volume(&service, "pvc-1").await;
    attached(&service, &id, "node-1").await.unwrap();
    let (snapshot, detach) = tokio::join!(cut(&service, requests::cut("snap-1", &id)), async {
        sleep(Duration::from_secs(1)).await;
        detached(&service, &id).await
    });
    detach.unwrap();
    assert_eq!(snapshot.unwrap().source_volume_id, id);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_the_cloud_keeps_although_it_accepts_the_deletion_is_reported() {
    let cloud = Cloud::new(5);
    let service = controller(&cloud);
    let mut request = requests::cut("snap-1", &volume(&service, "pvc-1").await);
    request.parameters = map("class", "needed");
    let id = cut(&service, request).await.unwrap().snapshot_id;
    let refused = discarded(&service, &id).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert!(refused.message().starts_with(&format!("snapshot {id}: ")));
    assert!(cloud.ids().contains(&id));
}

#[tokio::test(start_paused = true)]
async fn two_controllers_make_one_snapshot_of_a_name() {
    let cloud = Cloud::new(5);
    let (one, other) = (controller(&cloud), controller(&cloud));
    let of = volume(&one, "pvc-1").await;
    let (first, second) = tokio::join!(
        cut(&one, requests::cut("snap-1", &of)),
        cut(&other, requests::cut("snap-1", &of)),
    );
    let id = first.unwrap().snapshot_id;
    assert_eq!(second.unwrap().snapshot_id, id);
    assert!(id.ends_with("-3"), "the lowest id: {id}");
    assert_eq!(cloud.ids(), [of, id]);
}

/// A read of the source changes nothing, so its failure is final at once, and the call does not
/// wait for a volume.
#[tokio::test(start_paused = true)]
async fn a_source_that_cannot_be_read_fails_the_create_at_once_and_finally() {
    for fate in [Fate::Refused, Fate::Lost] {
        // The search for the name is the first request.
        let cloud = Cloud::with(Duration::from_secs(5), Fates::chosen(1, fate));
        cloud.leave_snapshot("snap-other", "snap-1", "id-other");
        let begun = Instant::now();
        let source = requests::of_snapshot("snap-other");
        let refused = created(&controller(&cloud), restore("pvc-1", source)).await;
        assert_eq!(code(refused), Code::Internal, "{fate:?}");
        assert!(begun.elapsed() < Duration::from_secs(1), "{fate:?}");
    }
}

struct Life {
    cloud: Arc<Cloud>,
    seats: [Arc<Seat>; 2],
    answers: Answers,
    /// The volume of all snapshots.
    of: String,
}

impl Life {
    async fn cut(&self, seat: usize, name: &str) {
        let call = async |service: &Service| cut(service, requests::cut(name, &self.of)).await;
        let snapshot = self.seats[seat].insist(name, never, call).await.unwrap();
        assert_eq!(snapshot.source_volume_id, self.of);
        self.answers.given(&self.cloud, name, &snapshot.snapshot_id);
    }

    async fn restore(&self, seat: usize, name: &str, source: &csi::volume_content_source::Type) {
        let request = restore(name, source.clone());
        let call = async |service: &Service| created(service, request.clone()).await;
        let volume = self.seats[seat].insist(name, never, call).await.unwrap();
        let shown = volume.content_source.unwrap().r#type;
        assert_eq!(shown.as_ref(), Some(source));
        self.answers.given(&self.cloud, name, &volume.volume_id);
    }

    /// Starts callers at both controllers, and a program that knows no marks.
    async fn begin(self: &Arc<Self>, random: &mut Random) {
        let mut callers = JoinSet::new();
        for name in ["snap-1", "snap-2", "snap-3"] {
            for _ in 0..=random.below(3) {
                let life = Arc::clone(self);
                let (seat, at) = (random.index(2), random.below(6000));
                callers.spawn_local(async move {
                    sleep(Duration::from_millis(at)).await;
                    life.cut(seat, name).await;
                });
            }
            let (what, at) = (random.below(8), random.below(12_000));
            let (life, low) = (Arc::clone(self), random.below(2) == 0);
            callers.spawn_local(async move {
                sleep(Duration::from_millis(at)).await;
                let order = if low { "0" } else { "a" };
                let id = |kind: &str| format!("snap-{order}-{kind}-{name}");
                match what {
                    0 => life.cloud.leave_snapshot(&id("other"), name, &life.of),
                    1 | 2 => life.cloud.copy_snapshot(name, &id("copy")),
                    _ => {}
                }
            });
        }
        callers.join_all().await;
    }

    async fn delete(&self, seat: usize, id: &str) {
        self.cloud.condemn(id);
        let is_snapshot = id.starts_with("snap");
        let call = async |service: &Service| match is_snapshot {
            true => discarded(service, id).await,
            false => deleted(service, id).await,
        };
        self.seats[seat]
            .insist("delete", never, call)
            .await
            .unwrap();
        assert!(!self.cloud.ids().contains(&id.to_owned()), "{id} exists");
    }

    /// Runs the lifecycle of a snapshot: it is requested again, restored and deleted, with a clone
    /// of its volume meanwhile.
    async fn lead(self: Arc<Self>, name: &'static str, mut random: Random) {
        let id = self.answers.of(name);
        tokio::join!(self.cut(0, name), self.cut(1, name));
        let source = match random.below(3) {
            0 => requests::of_volume(&self.of),
            _ => requests::of_snapshot(&id),
        };
        let copy = &format!("pvc-of-{name}");
        let seat = random.index(2);
        self.restore(seat, copy, &source).await;
        tokio::join!(
            self.restore(0, copy, &source),
            self.restore(1, copy, &source)
        );
        self.delete(random.index(2), &self.answers.of(copy)).await;
        self.delete(random.index(2), &id).await;
    }
}

async fn live(number: u64) {
    let mut random = Random(number);
    let cloud = unreliable(&mut random);
    let seats = [Seat::new(&cloud), Seat::new(&cloud)];
    let request = create("pvc-1", "fast");
    let call = async |service: &Service| created(service, request.clone()).await;
    let of = seats[0].insist("create", never, call).await.unwrap();
    let life = Arc::new(Life {
        cloud,
        seats,
        answers: Answers::default(),
        of: of.volume_id,
    });
    life.answers.given(&life.cloud, "pvc-1", &life.of);
    life.begin(&mut random).await;
    let mut lives = JoinSet::new();
    for name in ["snap-1", "snap-2", "snap-3"] {
        let random = Random(random.below(u64::MAX));
        lives.spawn_local(Arc::clone(&life).lead(name, random));
    }
    lives.join_all().await;
    life.delete(0, &life.of).await;
    judge(&life.cloud).await;
}

#[test]
fn random_lives_lose_no_answered_snapshot_and_give_one_answer_for_a_name() {
    each(numbers(), live);
}
