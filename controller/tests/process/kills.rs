//! SIGKILL at random instants: whatever was acknowledged is there, and nothing else is left over.

use crate::bed::{Bed, Client, MIB, ROOMY, create, range};
use belay_proto::csi::v1 as csi;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const KILLS: usize = 30;
/// Callers at work at the same time, each on its own volumes.
const CALLERS: usize = 4;
/// The latest instant of a kill after the callers begin; some hundred calls fit in.
const KILL_WITHIN: Duration = Duration::from_millis(60);

/// A small random generator (xorshift64), so that a failed run can be repeated by its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What one caller knows of a volume that it was told of.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    id: String,
    bytes: i64,
}

/// The call that was not answered.
#[derive(Clone, Debug, PartialEq)]
enum Unanswered {
    Create { name: String, bytes: i64 },
    Expand { name: String, bytes: i64 },
    Delete { name: String },
}

/// One caller: all the volumes that it knows, by name, and the call under way.
#[derive(Clone, Debug, Default)]
struct Caller {
    prefix: usize,
    names: usize,
    known: HashMap<String, Known>,
    unanswered: Option<Unanswered>,
}

impl Caller {
    /// Calls until the connection breaks.
    async fn work(&mut self, mut client: Client, dice: &mut Dice) {
        loop {
            self.unanswered = Some(self.choose(dice));
            if !self.call(&mut client).await {
                return;
            }
            self.unanswered = None;
        }
    }

    fn choose(&mut self, dice: &mut Dice) -> Unanswered {
        let bytes = MIB * i64::try_from(1 + dice.below(64)).unwrap();
        let mut names: Vec<_> = self.known.keys().cloned().collect();
        names.sort();
        let picked = usize::try_from(dice.below(1 + names.len() as u64)).unwrap();
        let Some(name) = names.get(picked).cloned() else {
            self.names += 1;
            let name = format!("pvc-{}-{}", self.prefix, self.names);
            return Unanswered::Create { name, bytes };
        };
        if dice.below(2) == 0 {
            return Unanswered::Delete { name };
        }
        let bytes = self.known[&name].bytes + bytes;
        Unanswered::Expand { name, bytes }
    }

    /// Makes the call under way; false if no answer came. Any answer but OK is a failure.
    async fn call(&mut self, client: &mut Client) -> bool {
        match self.unanswered.clone().unwrap() {
            Unanswered::Create { name, bytes } => {
                let answer = client.create_volume(create(&name, bytes)).await;
                let Some(answer) = answered(answer) else {
                    return false;
                };
                let id = answer.volume.unwrap().volume_id;
                self.known.insert(name, Known { id, bytes });
            }
            Unanswered::Expand { name, bytes } => {
                let known = self.known.get_mut(&name).unwrap();
                let request = csi::ControllerExpandVolumeRequest {
                    volume_id: known.id.clone(),
                    capacity_range: range(bytes, 0),
                    ..Default::default()
                };
                let Some(answer) = answered(client.controller_expand_volume(request).await) else {
                    return false;
                };
                known.bytes = answer.capacity_bytes;
            }
            Unanswered::Delete { name } => {
                let volume_id = self.known[&name].id.clone();
                let request = csi::DeleteVolumeRequest {
                    volume_id,
                    ..Default::default()
                };
                if answered(client.delete_volume(request).await).is_none() {
                    return false;
                }
                self.known.remove(&name);
            }
        }
        true
    }

    /// Compares what it knows with what there is: id to bytes.
    fn check(&self, listed: &HashMap<String, i64>) {
        for (name, known) in &self.known {
            let bytes = listed.get(&known.id).copied();
            let allowed = match &self.unanswered {
                Some(Unanswered::Expand {
                    name: pending,
                    bytes,
                }) if pending == name => {
                    vec![Some(known.bytes), Some(*bytes)]
                }
                Some(Unanswered::Delete { name: pending }) if pending == name => {
                    vec![Some(known.bytes), None]
                }
                _ => vec![Some(known.bytes)],
            };
            assert!(
                allowed.contains(&bytes),
                "{name} is {bytes:?}, not {allowed:?}: {known:?}"
            );
        }
    }
}

/// None if the connection broke before the answer.
fn answered<T>(answer: Result<tonic::Response<T>, tonic::Status>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer.into_inner()),
        Err(status) => {
            let broken = [
                tonic::Code::Unavailable,
                tonic::Code::Unknown,
                tonic::Code::Cancelled,
            ];
            assert!(broken.contains(&status.code()), "{status}");
            None
        }
    }
}

async fn listed(client: &mut Client) -> HashMap<String, i64> {
    let page = client
        .list_volumes(csi::ListVolumesRequest::default())
        .await
        .unwrap();
    let volumes = page
        .into_inner()
        .entries
        .into_iter()
        .map(|entry| entry.volume.unwrap());
    volumes
        .map(|volume| (volume.volume_id, volume.capacity_bytes))
        .collect()
}

/// Every volume has its file, of its size, and every file its volume.
fn check_files(bed: &Bed, listed: &HashMap<String, i64>) {
    let entries = fs::read_dir(bed.volumes_dir()).unwrap().map(Result::unwrap);
    let files: HashMap<String, i64> = entries
        .map(|entry| {
            let bytes = i64::try_from(entry.metadata().unwrap().len()).unwrap();
            (entry.file_name().into_string().unwrap(), bytes)
        })
        .collect();
    assert_eq!(&files, listed);
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_and_nothing_else_is_left_when_killed_at_any_instant() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap() | 1;
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let bed = Bed::new(&ROOMY);
    let mut callers: Vec<_> = (0..CALLERS)
        .map(|prefix| Caller {
            prefix,
            ..Caller::default()
        })
        .collect();
    let mut interrupted = HashSet::new();
    for _ in 0..KILLS {
        let mut controller = bed.start();
        let mut work = tokio::task::JoinSet::new();
        for mut caller in callers.drain(..) {
            let client = bed.client().await;
            let mut dice = Dice(dice.below(u64::MAX) | 1);
            work.spawn(async move {
                caller.work(client, &mut dice).await;
                caller
            });
        }
        let latest = u64::try_from(KILL_WITHIN.as_micros()).unwrap();
        tokio::time::sleep(Duration::from_micros(dice.below(latest))).await;
        controller.kill();
        callers = work.join_all().await;

        let _controller = bed.start();
        let mut client = bed.client().await;
        let found = listed(&mut client).await;
        check_files(&bed, &found);
        for caller in &mut callers {
            caller.check(&found);
            // The same call again, as a sidecar would: now it must be answered.
            interrupted.extend(caller.unanswered.as_ref().map(std::mem::discriminant));
            assert!(caller.call(&mut client).await);
            caller.unanswered = None;
        }
        let all: HashMap<_, _> = callers
            .iter()
            .flat_map(|caller| caller.known.values())
            .map(|known| (known.id.clone(), known.bytes))
            .collect();
        assert_eq!(listed(&mut client).await, all);
        check_files(&bed, &all);
    }
    assert_eq!(
        interrupted.len(),
        3,
        "creates, expands and deletes were all interrupted"
    );
    free_all_names(&bed, &mut callers).await;
}

async fn free_all_names(bed: &Bed, callers: &mut [Caller]) {
    let _controller = bed.start();
    let mut client = bed.client().await;
    for caller in callers {
        for name in caller.known.keys().cloned().collect::<Vec<_>>() {
            caller.unanswered = Some(Unanswered::Delete { name });
            assert!(caller.call(&mut client).await);
        }
        for n in 1..=caller.names {
            let name = format!("pvc-{}-{n}", caller.prefix);
            caller.unanswered = Some(Unanswered::Create { name, bytes: MIB });
            assert!(caller.call(&mut client).await);
        }
    }
}
