//! The only user of a machine that loses power: makes requests, trusts each response, and repeats
//! requests without a response. Independent of power losses.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use belay_contract::drivers::local::{self, Claim};
use tonic::{Code, Status};

use crate::rig::{
    Caller, Chance, Journal, Op, Origin, Outcome, PATIENCE, Records, Site, Volume, pause,
};

/// The offset of ext4's magic number and UUID, which are next to each other, in bytes.
const IDENTITY_AT: u64 = 1024 + 0x38;
const IDENTITY_BYTES: usize = 0x30 + 16;
/// The name of a target.
const TARGET: &str = "a";

/// An act of the user. Volumes and snapshots are given by their IDs.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// The first start of both programs, on an empty disk.
    Start,
    /// Creates a volume with this name, kind and origin.
    Create(String, &'static str, Origin),
    Delete(String),
    /// Deletes a volume, which is refused, since the volume is in use.
    DeleteTooEarly(String),
    Stage(String),
    Publish(String),
    Unpublish(String),
    Unstage(String),
    /// Writes another record, which is on disk when this returns.
    Write(String),
    /// Expands a volume to this number of bytes.
    Grow(String, i64),
    Expand(String),
    /// Creates a snapshot with this name of this volume.
    Cut(String, String),
    /// Waits until the snapshot with this name is ready.
    Await(String, String),
    Discard(String),
}

/// Everything that was acknowledged.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) volumes: BTreeMap<String, Held>,
    pub(super) snapshots: BTreeMap<String, Cut>,
}

/// A volume, as acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) kind: &'static str,
    pub(super) bytes: i64,
    /// Whether the volume, or the source of its copy, was staged.
    pub(super) is_used: bool,
    /// The identity of the volume's filesystem.
    pub(super) identity: Option<Vec<u8>>,
    pub(super) records: Records,
}

/// A snapshot, as acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) name: String,
    pub(super) volume: String,
    pub(super) kind: &'static str,
    pub(super) is_ready: bool,
    /// Whether the volume had been staged.
    pub(super) is_used: bool,
    pub(super) identity: Option<Vec<u8>>,
    pub(super) records: Records,
}

/// The user.
pub(super) struct User {
    pub(super) known: Known,
    caller: Caller,
    chance: Chance,
}

impl User {
    /// Creates a user with this knowledge.
    pub(super) fn new(site: Site, known: Known, chance: Chance) -> Self {
        let caller = Caller {
            site,
            journal: Arc::new(Journal::new()),
            who: "user".to_owned(),
        };
        User {
            known,
            caller,
            chance,
        }
    }

    /// Performs an act, and repeats it until it is done.
    pub(super) fn act(&mut self, act: &Act) {
        match act {
            Act::Start => {}
            Act::Create(name, kind, origin) => self.create(name, kind, origin),
            Act::Delete(id) => {
                self.must(&Op::Delete(id.clone()));
                self.known.volumes.remove(id);
            }
            Act::DeleteTooEarly(id) => self.delete_too_early(id),
            Act::Stage(id) => self.stage(id),
            Act::Publish(id) => {
                self.must(&Op::Publish(
                    self.volume(id),
                    self.kind(id),
                    self.target(id),
                ));
            }
            Act::Unpublish(id) => {
                self.must(&Op::Unpublish(self.volume(id), self.target(id)));
            }
            Act::Unstage(id) => {
                self.must(&Op::Unstage(self.volume(id)));
            }
            Act::Write(id) => {
                let (kind, target) = (self.kind(id), self.target(id));
                let held = self.known.volumes.get_mut(id).expect("a volume");
                held.records.write(kind, &target, &mut self.chance);
            }
            Act::Grow(id, bytes) => {
                self.must(&Op::Grow(id.clone(), *bytes));
                self.held_mut(id).bytes = *bytes;
            }
            Act::Expand(id) => self.expand(id),
            Act::Cut(name, id) => {
                self.cut(name, id);
            }
            Act::Await(name, id) => {
                let end = std::time::Instant::now() + PATIENCE;
                while !self.cut(name, id) {
                    assert!(std::time::Instant::now() < end, "never ready: {name}");
                    pause();
                }
            }
            Act::Discard(id) => {
                self.must(&Op::Discard(id.clone()));
                self.known.snapshots.remove(id);
            }
        }
    }

    /// Brings a volume to a pod.
    pub(super) fn up(&mut self, id: &str) {
        self.act(&Act::Stage(id.to_owned()));
        self.act(&Act::Publish(id.to_owned()));
    }

    /// Unpublishes and unstages a volume.
    pub(super) fn down(&mut self, id: &str) {
        self.act(&Act::Unpublish(id.to_owned()));
        self.act(&Act::Unstage(id.to_owned()));
    }

    /// Returns the damage that a pod finds in a volume, if any.
    pub(super) fn damage(&self, id: &str) -> Option<String> {
        let held = self.held(id);
        let now = self.identity(id);
        if held.identity.is_some() && held.identity != now {
            return Some(format!("volume {id}: has another filesystem: {now:?}"));
        }
        held.records.damage(held.kind, &self.target(id))
    }

    /// Returns the target path of a volume.
    pub(super) fn target(&self, id: &str) -> PathBuf {
        self.volume(id).target(TARGET)
    }

    /// Fails if a volume that was never written to shows any data.
    pub(super) fn expect_no_more(&self, id: &str) {
        let (held, target) = (self.held(id), self.target(id));
        if held.kind == "block" {
            let mut next = vec![0; 4096];
            let at = held.records.bytes();
            File::open(target)
                .and_then(|device| device.read_exact_at(&mut next, at))
                .expect("read the device");
            let is_blank = next.iter().all(|byte| *byte == 0);
            assert!(is_blank, "{id}: unwritten data at byte {at}");
            return;
        }
        let entries = std::fs::read_dir(target).expect("readdir").flatten();
        let names = entries.map(|entry| entry.file_name().into_string().expect("UTF-8"));
        let strange: Vec<_> = names
            .filter(|name| !["lost+found", "records"].contains(&name.as_str()))
            .collect();
        assert!(strange.is_empty(), "{id}: unknown files: {strange:?}");
    }

    /// Returns the acknowledged state of a volume.
    pub(super) fn held(&self, id: &str) -> &Held {
        self.known.volumes.get(id).expect("a volume")
    }

    /// Returns the record of all calls.
    pub(super) fn journal(&self) -> &Journal {
        &self.caller.journal
    }

    /// Makes a call once.
    pub(super) fn ask(&self, op: &Op) -> Result<Outcome, Status> {
        self.caller.ask(op, None)
    }

    fn held_mut(&mut self, id: &str) -> &mut Held {
        self.known.volumes.get_mut(id).expect("a volume")
    }

    fn kind(&self, id: &str) -> &'static str {
        self.held(id).kind
    }

    /// Returns a volume as its callers know it.
    pub(super) fn volume(&self, id: &str) -> Volume {
        let site = &self.caller.site;
        Volume::made(&site.top, &site.volumes(), id.to_owned())
    }

    fn must(&self, op: &Op) -> Outcome {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            match self.caller.ask(op, None) {
                Ok(outcome) => return outcome,
                Err(status)
                    if status.code() == Code::Aborted && std::time::Instant::now() < end =>
                {
                    pause();
                }
                Err(status) => {
                    let why = format!("is refused: {status:?}");
                    self.caller.site.fail(&self.caller.journal, op, &why, &[])
                }
            }
        }
    }

    fn create(&mut self, name: &str, kind: &'static str, origin: &Origin) {
        let op = Op::Create(name.to_owned(), kind, origin.clone());
        let Outcome::Volume(id, bytes) = self.must(&op) else {
            unreachable!("a volume")
        };
        let (is_used, identity, records) = match origin {
            Origin::Blank => (false, None, Records::default()),
            Origin::Volume(id) => {
                let held = self.held(id);
                (held.is_used, held.identity.clone(), held.records.clone())
            }
            Origin::Snapshot(id) => {
                let cut = &self.known.snapshots[id];
                (cut.is_used, cut.identity.clone(), cut.records.clone())
            }
        };
        let held = Held {
            kind,
            bytes,
            is_used,
            identity,
            records,
        };
        self.known.volumes.insert(id, held);
    }

    fn delete_too_early(&self, id: &str) {
        let refused = self.ask(&Op::Delete(id.to_owned()));
        let code = refused.map_err(|status| status.code());
        assert_eq!(code, Err(Code::FailedPrecondition), "in use: {id}");
        let claim = self.volume(id).attribute(local::CLAIM);
        assert_eq!(claim, Some(Claim::Delete.value().into_bytes()), "{id}");
    }

    fn stage(&mut self, id: &str) {
        self.must(&Op::Stage(self.volume(id), self.kind(id)));
        let claim = self.volume(id).attribute(local::CLAIM);
        assert_eq!(claim, None, "{id} is staged");
        self.held_mut(id).is_used = true;
        if self.held(id).identity.is_none() {
            self.held_mut(id).identity = self.identity(id);
        }
    }

    fn expand(&self, id: &str) {
        let held = self.held(id);
        let op = Op::Expand(self.volume(id), held.kind, self.target(id), held.bytes);
        match self.caller.ask(&op, None) {
            Ok(_) => {}
            // This machine may not grant CAP_SYS_RESOURCE.
            Err(status) if held.kind == "ext4" && status.code() == Code::FailedPrecondition => {}
            Err(status) => panic!("{op:?}: {status:?}"),
        }
    }

    /// Creates a snapshot; returns whether it is ready.
    fn cut(&mut self, name: &str, volume: &str) -> bool {
        let op = Op::Cut(name.to_owned(), volume.to_owned());
        let Outcome::Snapshot(id, is_ready) = self.must(&op) else {
            unreachable!("a snapshot")
        };
        // An existing snapshot has not changed since it was cut.
        if let Some(cut) = self.known.snapshots.get_mut(&id) {
            cut.is_ready = is_ready;
            return is_ready;
        }
        let held = self.held(volume);
        let cut = Cut {
            name: name.to_owned(),
            volume: volume.to_owned(),
            kind: held.kind,
            is_ready,
            is_used: held.is_used,
            identity: held.identity.clone(),
            records: held.records.clone(),
        };
        self.known.snapshots.insert(id, cut);
        is_ready
    }

    /// Returns magic number and UUID of an ext4, read without its mount; `None` for a raw volume.
    fn identity(&self, id: &str) -> Option<Vec<u8>> {
        if self.kind(id) != "ext4" {
            return None;
        }
        let mut found = vec![0; IDENTITY_BYTES];
        File::open(self.volume(id).file)
            .and_then(|file| file.read_exact_at(&mut found, IDENTITY_AT))
            .expect("read the superblock");
        // Drop the counters and the state between the two.
        found.drain(2..0x30);
        Some(found)
    }
}
