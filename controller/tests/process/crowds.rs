//! Many concurrent calls: the controller remains small, and each call returns.

use crate::bed::{Bed, MIB, ROOMY, clone, create, created, snapshot};
use std::collections::HashSet;
use tokio::task::JoinSet;

const CALLS: usize = 100;
/// Maximum number of threads of the runtime, the pool and the copier.
const THREADS_MAX: u64 = 64;

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
                match round {
                    0 => created(&mut client, create(&name, MIB)).await.volume_id,
                    1 => {
                        created(&mut client, clone(&name, MIB, &source))
                            .await
                            .volume_id
                    }
                    _ => {
                        let cut = client.create_snapshot(snapshot(&name, &source)).await;
                        cut.unwrap().into_inner().snapshot.unwrap().snapshot_id
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
