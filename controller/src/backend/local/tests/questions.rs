//! Tests of read-only calls on a disk that does not respond. The number of these calls is limited,
//! and the calls do not block changes.

use super::super::Local;
use super::super::slots::QUESTIONS_MAX;
use super::{Bed, MIB, order};
use crate::backend::Backend as _;
use belay_server::readiness::{Readiness, State};
use belay_server::request::Secrets;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn questions_beyond_those_that_hang_wait_while_changes_go_on() {
    let bed = Bed::new();
    let local = Local::open(bed.config(), Readiness::new(State::Ready)).unwrap();
    let volume = local.create(order("pvc-1", MIB).into()).await.unwrap();
    let places = u32::try_from(QUESTIONS_MAX).unwrap();
    let hanging = Arc::clone(&local.slots.questions.at_work)
        .acquire_many_owned(places)
        .await;

    // The paused clock does not advance while a task runs.
    let hour = Duration::from_secs(3600);
    let listed = tokio::time::timeout(hour, local.list(None, 10, Secrets::default())).await;
    assert!(listed.is_err(), "{listed:?}");
    local.create(order("pvc-2", MIB).into()).await.unwrap();

    drop(hanging);
    assert_eq!(
        local
            .list(None, 10, Secrets::default())
            .await
            .unwrap()
            .volumes
            .len(),
        2
    );
    let got = local
        .get(volume.id.clone(), Secrets::default())
        .await
        .unwrap();
    assert_eq!(got.map(|it| it.id), Some(volume.id));
}
