//! SIGKILL at random instants: all acknowledged changes persist, and nothing else is left behind.

use crate::bed::{Bed, Client, MIB, ROOMY, clone, create, restore, snapshot};
use crate::mounts::Xfs;
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const KILLS: usize = 30;
/// The number of concurrent callers, each with separate volumes.
const CALLERS: usize = 4;
/// The latest time of a kill after the callers start; about a hundred calls fit in.
const KILL_WITHIN: Duration = Duration::from_millis(60);

/// A small random number generator (xorshift64), whose seed repeats a failed run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A volume or snapshot that a caller has received.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    id: String,
    bytes: i64,
    /// The first bytes of the file.
    mark: [u8; 16],
}

/// The call without a response.
#[derive(Clone, Debug, PartialEq)]
enum Unanswered {
    Create { name: String, bytes: i64 },
    Expand { name: String, bytes: i64 },
    Delete { name: String },
    Clone { name: String, from: String },
    Cut { name: String, from: String },
    Restore { name: String, from: String },
    Discard { name: String },
}

/// The number of kinds of calls.
const KINDS: usize = 7;

/// A caller, with its volumes and snapshots by name, and the call in progress.
#[derive(Clone, Debug)]
struct Caller {
    prefix: usize,
    names: usize,
    volumes_dir: PathBuf,
    known: HashMap<String, Known>,
    snapshots: HashMap<String, Known>,
    unanswered: Option<Unanswered>,
}

impl Caller {
    /// Makes calls until the connection breaks.
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
        let volume = picked(&self.known, dice);
        let snapshot = picked(&self.snapshots, dice);
        match (dice.below(KINDS as u64), volume, snapshot) {
            (0, Some(name), _) => Unanswered::Expand {
                bytes: self.known[&name].bytes + bytes,
                name,
            },
            (1, Some(name), _) => Unanswered::Delete { name },
            (2, Some(from), _) => Unanswered::Clone {
                name: self.fresh("pvc"),
                from,
            },
            (3, Some(from), _) => Unanswered::Cut {
                name: self.fresh("snap"),
                from,
            },
            (4, _, Some(from)) => Unanswered::Restore {
                name: self.fresh("pvc"),
                from,
            },
            (5, _, Some(name)) => Unanswered::Discard { name },
            _ => Unanswered::Create {
                name: self.fresh("pvc"),
                bytes,
            },
        }
    }

    fn fresh(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}-{}-{}", self.prefix, self.names)
    }

    /// Makes the call in progress; returns false if there is no response. Any code except OK is a
    /// failure, except if it must wait for a copy.
    async fn call(&mut self, client: &mut Client) -> bool {
        loop {
            match self.attempt(client).await {
                Err(status) if awaits_a_copy(&status) => {}
                Err(status) => {
                    let broken = [
                        tonic::Code::Unavailable,
                        tonic::Code::Unknown,
                        tonic::Code::Cancelled,
                    ];
                    assert!(broken.contains(&status.code()), "{status}");
                    return false;
                }
                Ok(()) => return true,
            }
        }
    }

    async fn attempt(&mut self, client: &mut Client) -> Result<(), tonic::Status> {
        match self.unanswered.clone().unwrap() {
            Unanswered::Create { name, bytes } => {
                let mark = mark(&name);
                let id = self.made(client, create(&name, bytes), mark).await?;
                // Write as the volume's node would; no process reads it yet.
                let path = self.volumes_dir.join(id);
                let file = OpenOptions::new().write(true).open(path).unwrap();
                file.write_all_at(&mark, 0).unwrap();
            }
            Unanswered::Clone { name, from } => {
                let Known { id, bytes, mark } = self.known[&from].clone();
                self.made(client, clone(&name, bytes, &id), mark).await?;
            }
            Unanswered::Restore { name, from } => {
                let Known { id, bytes, mark } = self.snapshots[&from].clone();
                self.made(client, restore(&name, bytes, &id), mark).await?;
            }
            Unanswered::Expand { name, bytes } => {
                let known = self.known.get_mut(&name).unwrap();
                let request = requests::grow(&known.id, bytes);
                let answer = client.controller_expand_volume(request).await?;
                known.bytes = answer.into_inner().capacity_bytes;
            }
            Unanswered::Delete { name } => {
                let request = requests::delete(&self.known[&name].id);
                client.delete_volume(request).await?;
                self.known.remove(&name);
            }
            Unanswered::Cut { name, from } => {
                let Known { id, bytes, mark } = self.known[&from].clone();
                let answer = client.create_snapshot(snapshot(&name, &id)).await?;
                let id = answer.into_inner().snapshot.unwrap().snapshot_id;
                self.snapshots.insert(name, Known { id, bytes, mark });
            }
            Unanswered::Discard { name } => {
                let request = requests::discard(&self.snapshots[&name].id);
                client.delete_snapshot(request).await?;
                self.snapshots.remove(&name);
            }
        }
        Ok(())
    }

    /// Creates a volume and records it; returns its ID.
    async fn made(
        &mut self,
        client: &mut Client,
        request: csi::CreateVolumeRequest,
        mark: [u8; 16],
    ) -> Result<String, tonic::Status> {
        let name = request.name.clone();
        let answer = client.create_volume(request).await?;
        let volume = answer.into_inner().volume.unwrap();
        let (id, bytes) = (volume.volume_id, volume.capacity_bytes);
        let known = Known {
            id: id.clone(),
            bytes,
            mark,
        };
        self.known.insert(name, known);
        Ok(id)
    }

    /// Compares the recorded volumes with the existing ones, which are given as ID and size in
    /// bytes.
    fn check(&self, there: &HashMap<String, i64>) {
        for (name, known) in self.known.iter().chain(&self.snapshots) {
            let bytes = there.get(&known.id).copied();
            let allowed = match &self.unanswered {
                Some(Unanswered::Expand {
                    name: pending,
                    bytes,
                }) if pending == name => {
                    vec![Some(known.bytes), Some(*bytes)]
                }
                Some(
                    Unanswered::Delete { name: pending } | Unanswered::Discard { name: pending },
                ) if pending == name => {
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

/// Whether the call must be repeated until a copy has ended.
fn awaits_a_copy(status: &tonic::Status) -> bool {
    [tonic::Code::FailedPrecondition, tonic::Code::Aborted].contains(&status.code())
        && ["being copied", "not ready"]
            .iter()
            .any(|words| status.message().contains(words))
}

/// Returns a mark that differs from all others.
fn mark(name: &str) -> [u8; 16] {
    let mut mark = [b'.'; 16];
    mark[..name.len()].copy_from_slice(name.as_bytes());
    mark
}

fn picked(known: &HashMap<String, Known>, dice: &mut Dice) -> Option<String> {
    let mut names: Vec<_> = known.keys().cloned().collect();
    names.sort();
    let picked = usize::try_from(dice.below(1 + names.len() as u64)).unwrap();
    names.get(picked).cloned()
}

/// Returns all volumes, and all snapshots once they are ready.
async fn listed(client: &mut Client) -> HashMap<String, i64> {
    let page = client
        .list_volumes(csi::ListVolumesRequest::default())
        .await
        .unwrap();
    let volumes = page.into_inner().entries.into_iter().map(|entry| {
        let volume = entry.volume.unwrap();
        (volume.volume_id, volume.capacity_bytes)
    });
    let mut all: HashMap<_, _> = volumes.collect();
    loop {
        let request = csi::ListSnapshotsRequest::default();
        let page = client.list_snapshots(request).await.unwrap();
        let entries = page.into_inner().entries.into_iter();
        let snapshots: Vec<_> = entries.map(|entry| entry.snapshot.unwrap()).collect();
        if snapshots.iter().all(|snapshot| snapshot.ready_to_use) {
            let sizes = snapshots
                .into_iter()
                .map(|snapshot| (snapshot.snapshot_id, snapshot.size_bytes));
            all.extend(sizes);
            return all;
        }
    }
}

/// Checks that every volume and snapshot has a file of its size, and that every file has an owner.
fn check_files(bed: &Bed, listed: &HashMap<String, i64>) {
    let dirs = [bed.volumes_dir(), bed.snapshots_dir()];
    let entries = dirs.iter().flat_map(|dir| fs::read_dir(dir).unwrap());
    let files: HashMap<String, i64> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let bytes = i64::try_from(entry.metadata().unwrap().len()).unwrap();
            (entry.file_name().into_string().unwrap(), bytes)
        })
        .collect();
    assert_eq!(&files, listed);
}

/// Checks that every volume and snapshot has the content of its source.
fn check_marks(bed: &Bed, caller: &Caller) {
    let check = |dir: &Path, all: &HashMap<String, Known>| {
        for (name, known) in all {
            let mut mark = [0; 16];
            let file = fs::File::open(dir.join(&known.id)).unwrap();
            file.read_exact_at(&mut mark, 0).unwrap();
            assert_eq!(mark, known.mark, "{name}: {known:?}");
        }
    };
    check(&bed.volumes_dir(), &caller.known);
    check(&bed.snapshots_dir(), &caller.snapshots);
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_and_nothing_else_is_left_when_killed_at_any_instant() {
    kill_again_and_again(&Bed::new(&ROOMY)).await;
}

#[tokio::test]
#[ignore = "mounts: needs root and a private mount namespace"]
async fn nor_where_files_share_blocks() {
    let xfs = Xfs::new();
    kill_again_and_again(&Bed::beneath(xfs.path(), &ROOMY)).await;
}

async fn kill_again_and_again(bed: &Bed) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap() | 1;
    eprintln!("seed {seed}");
    let mut dice = Dice(seed);
    let mut callers: Vec<_> = (0..CALLERS)
        .map(|prefix| Caller {
            prefix,
            names: 0,
            volumes_dir: bed.volumes_dir(),
            known: HashMap::new(),
            snapshots: HashMap::new(),
            unanswered: None,
        })
        .collect();
    let mut interrupted = HashSet::new();
    for kills in 0..3 * KILLS {
        // More kills may be necessary to interrupt every kind of call.
        if kills >= KILLS && interrupted.len() == KINDS {
            break;
        }
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
        check_files(bed, &found);
        for caller in &mut callers {
            caller.check(&found);
            // Repeat the same call, as a sidecar does: now there must be a response.
            interrupted.extend(caller.unanswered.as_ref().map(std::mem::discriminant));
            assert!(caller.call(&mut client).await);
            caller.unanswered = None;
        }
        callers.iter().for_each(|caller| check_marks(bed, caller));
        let all: HashMap<_, _> = callers
            .iter()
            .flat_map(|caller| caller.known.values().chain(caller.snapshots.values()))
            .map(|known| (known.id.clone(), known.bytes))
            .collect();
        assert_eq!(listed(&mut client).await, all);
        check_files(bed, &all);
    }
    assert_eq!(
        interrupted.len(),
        KINDS,
        "calls of every kind were interrupted"
    );
    free_all_names(bed, &mut callers).await;
}

async fn free_all_names(bed: &Bed, callers: &mut [Caller]) {
    let _controller = bed.start();
    let mut client = bed.client().await;
    for caller in callers {
        for name in caller.known.keys().cloned().collect::<Vec<_>>() {
            caller.unanswered = Some(Unanswered::Delete { name });
            assert!(caller.call(&mut client).await);
        }
        for name in caller.snapshots.keys().cloned().collect::<Vec<_>>() {
            caller.unanswered = Some(Unanswered::Discard { name });
            assert!(caller.call(&mut client).await);
        }
        for n in 1..=caller.names {
            let name = format!("pvc-{}-{n}", caller.prefix);
            caller.unanswered = Some(Unanswered::Create { name, bytes: MIB });
            assert!(caller.call(&mut client).await);
        }
    }
}
