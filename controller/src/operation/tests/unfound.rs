//! Tests with storage that cannot search for a name: objects that an earlier call has created must
//! not be forgotten.

use super::*;
use crate::backend::{Clones, StartedCreations};
use belay_bed::patience::PATIENCE;
use belay_server::call::Certainty;
use std::collections::VecDeque;
use std::pin::pin;
use std::task::{self, Waker};
use tokio::time::timeout;

/// A backend that creates volumes as scripted; the source of its clones does not exist.
#[derive(Default)]
struct Unfound(Mutex<VecDeque<Result<Volume, Failure>>>, StartedCreations);

impl Unfound {
    fn of(answers: impl IntoIterator<Item = Result<Volume, Failure>>) -> Self {
        Self(
            Mutex::new(answers.into_iter().collect()),
            StartedCreations::default(),
        )
    }

    fn next(&self) -> Answer<'_, Volume> {
        let answer = self.0.lock().unwrap().pop_front().expect("an answer");
        Box::pin(async { answer })
    }
}

impl Backend for Unfound {
    fn sizes(&self, _: &Context) -> Result<Sizes, Failure> {
        Ok(ANY)
    }

    fn parameters(&self) -> &'static [&'static str] {
        &[]
    }

    fn create(&self, _: Arc<Order>) -> Answer<'_, Volume> {
        self.next()
    }

    fn delete(&self, _: VolumeId, _: Secrets) -> Answer<'_, Progress<()>> {
        unreachable!()
    }

    fn started_creations(&self) -> Option<&StartedCreations> {
        Some(&self.1)
    }

    fn find(&self, _: Name, _: Secrets) -> Answer<'_, Vec<Volume>> {
        unreachable!()
    }

    fn get(&self, _: VolumeId, _: Secrets) -> Answer<'_, Option<Volume>> {
        Box::pin(async { Ok(None) })
    }

    fn list(&self, _: Option<String>, _: usize, _: Secrets) -> Answer<'_, Page> {
        unreachable!()
    }

    fn clones(&self) -> Option<&dyn Clones> {
        Some(self)
    }
}

impl Clones for Unfound {
    fn clone_volume(&self, _: Arc<Order>, _: VolumeId) -> Answer<'_, Volume> {
        self.next()
    }
}

fn running() -> Failure {
    Failure::busy("why").may_be_running()
}

fn unreachable() -> Failure {
    Failure::new(Kind::Unreachable, "why")
}

/// Makes calls for which the storage gives these responses, and returns the certainty of each
/// call's failure.
async fn certainties(
    request: &CreateVolume,
    answers: impl IntoIterator<Item = Result<Volume, Failure>>,
    calls: usize,
) -> Vec<Option<(Kind, Certainty)>> {
    let backend = Arc::new(Unfound::of(answers));
    let operations = Operations::new(Arc::clone(&backend) as Arc<dyn Backend>, rules());
    let mut found = Vec::new();
    for _ in 0..calls {
        let failure = operations.create(request.clone()).await.err();
        found.push(failure.map(|it| (it.kind, it.certainty)));
    }
    assert!(backend.0.lock().unwrap().is_empty());
    found
}

#[tokio::test]
async fn a_server_that_is_away_says_nothing_of_an_earlier_call() {
    use Certainty::{MayBeRunning, NothingHappened};
    let answers = [
        Err(unreachable()),
        Err(running()),
        Err(unreachable()),
        Ok(volume(Phase::Ready)),
        Err(unreachable()),
    ];
    let request = named("pvc-1", block());
    let expected = [
        Some((Kind::Unreachable, NothingHappened)),
        Some((Kind::Busy, MayBeRunning)),
        Some((Kind::Unreachable, MayBeRunning)),
        None,
        Some((Kind::Unreachable, MayBeRunning)),
    ];
    assert_eq!(certainties(&request, answers, 5).await, expected);
}

/// The caller has disconnected before the response, so the caller does not know that the volume
/// exists.
#[tokio::test]
async fn a_volume_whose_caller_has_left_is_not_forgotten_when_the_server_is_away() {
    let answers = [Ok(volume(Phase::Ready)), Err(unreachable())];
    let backend = Arc::new(Unfound::of(answers));
    let operations = Operations::new(Arc::clone(&backend) as Arc<dyn Backend>, rules());
    let request = named("pvc-1", block());
    {
        let mut left = pin!(operations.create(request.clone()));
        let waker = task::Context::from_waker(Waker::noop());
        assert!(left.as_mut().poll(&mut { waker }).is_pending());
    }
    let creates = async {
        while backend.0.lock().unwrap().len() > 1 {
            yield_now().await;
        }
    };
    let created = timeout(PATIENCE, creates).await;
    created.expect("the call that was left creates the volume");
    let failure = operations.create(request).await.unwrap_err();
    let state = (failure.kind, failure.certainty);
    assert_eq!(state, (Kind::Unreachable, Certainty::MayBeRunning));
}

/// If an earlier call may have created a copy, only the storage can report whether the copy exists.
#[tokio::test]
async fn the_copy_of_a_source_that_is_gone_is_looked_for_if_a_call_may_have_made_it() {
    let source = || ContentSource::Volume(VolumeId::new("gone").unwrap());
    let request = CreateVolume {
        source: Some(source()),
        ..named("pvc-1", block())
    };
    let missing = Some((Kind::NotFound, Certainty::NothingHappened));
    assert_eq!(certainties(&request, [], 1).await, [missing]);

    let backend = Arc::new(Unfound::default());
    let operations = Operations::new(Arc::clone(&backend) as Arc<dyn Backend>, rules());
    let withdrawn = || Err(Failure::not_found("why").rolled_back());
    let copy = Volume {
        source: Some(source()),
        ..volume(Phase::Ready)
    };
    // The state is the same as after a call during which the source existed.
    backend.1.volumes.note(request.name.as_str());
    backend.0.lock().unwrap().push_back(Ok(copy));
    operations.create(request.clone()).await.unwrap();
    backend.1.volumes.note(request.name.as_str());
    backend.0.lock().unwrap().push_back(withdrawn());
    let failure = operations.create(request.clone()).await.unwrap_err();
    assert_eq!(failure.certainty, Certainty::RolledBack);
    let failure = operations.create(request).await.unwrap_err();
    assert_eq!(failure.certainty, Certainty::NothingHappened);
}
