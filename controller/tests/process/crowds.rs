//! Many concurrent calls: the controller remains small, and each call returns.

use crate::bed::{Bed, Client, MIB, ROOMY, clone, create, created, snapshot};
use std::collections::HashSet;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::{Code, Status};

const CALLS: usize = 100;
const BETWEEN_CALLS: Duration = Duration::from_millis(50);
/// Maximum number of threads of the runtime, the pool and the copier.
const THREADS_MAX: u64 = 64;

/// Creates a volume, a clone or a snapshot, according to the round.
async fn made(client: &mut Client, round: u32, name: &str, source: &str) -> Result<String, Status> {
    let request = match round {
        0 => create(name, MIB),
        1 => clone(name, MIB, source),
        _ => {
            let cut = client.create_snapshot(snapshot(name, source)).await?;
            return Ok(cut.into_inner().snapshot.unwrap().snapshot_id);
        }
    };
    let volume = client.create_volume(request).await?.into_inner().volume;
    Ok(volume.unwrap().volume_id)
}

#[tokio::test]
async fn a_hundred_calls_at_once_are_all_answered_by_a_bounded_number_of_threads() {
    let bed = Bed::new(&ROOMY);
    let controller = bed.start();
    let mut client = bed.client().await;
    let source = created(&mut client, create("source", MIB)).await.volume_id;
    for round in 0..3 {
        let mut calls = JoinSet::new();
        for call in 0..CALLS {
            let (mut client, source) = (bed.client().await, source.clone());
            let name = format!("{round}-{call}");
            calls.spawn(async move {
                loop {
                    match made(&mut client, round, &name, &source).await {
                        // A volume has one copy at a time where files cannot share blocks.
                        Err(status) if status.code() == Code::Aborted => sleep(BETWEEN_CALLS).await,
                        answer => return answer.unwrap(),
                    }
                }
            });
        }
        let ids: HashSet<_> = calls.join_all().await.into_iter().collect();
        assert_eq!(ids.len(), CALLS);
        // The pool keeps its threads for some seconds.
        let [threads, peak] = ["Threads", "VmHWM"].map(|key| controller.status(key));
        eprintln!("round {round}: {threads} threads, {peak} KiB at most");
        assert!(threads <= THREADS_MAX, "{threads} threads");
    }
}
