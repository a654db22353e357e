//! A caller with a separate volume. No other caller uses it, so each response must match the
//! kernel's state at that moment, however many other calls are running.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tonic::Code;

use super::scene::{Scene, impatience};
use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{Caller, Chance, Op, Origin, Outcome, Seen, Volume};

/// The growth of an expansion, in bytes.
const GROWTH: i64 = 16 << 20;
/// Maximum number of expansions of one volume.
const GROWTHS_MAX: u32 = 4;
/// A volume in use is deleted once in this many unstages, since the refusal takes 5 seconds.
const DELETED_TOO_EARLY: u64 = 32;

/// The caller.
pub(crate) struct Owner<'a> {
    scene: &'a Scene,
    caller: Caller,
    chance: Chance,
    kind: &'static str,
    lives: u32,
    own: Option<Own>,
}

/// The volume, according to the responses.
struct Own {
    volume: Volume,
    bytes: i64,
    growths: u32,
    is_staged: bool,
    targets: BTreeSet<PathBuf>,
    has_words: bool,
    snapshot: Option<String>,
}

impl<'a> Owner<'a> {
    pub(crate) fn new(scene: &'a Scene, number: usize, kind: &'static str, chance: Chance) -> Self {
        Owner {
            scene,
            caller: scene.caller(format!("owner {number} ({kind})")),
            chance,
            kind,
            lives: 0,
            own: None,
        }
    }

    /// Makes calls until the scene is over.
    pub(crate) fn run(&mut self) {
        while !self.scene.is_over() {
            self.step();
            self.check();
        }
    }

    fn step(&mut self) {
        let dice = self.chance.below(8);
        let Some(own) = &self.own else {
            return self.create();
        };
        let is_rare = self.chance.below(DELETED_TOO_EARLY) == 0;
        match (own.is_staged, own.targets.len(), dice) {
            (_, _, 0) => self.look(),
            (_, _, 1) => self.grow(),
            (false, _, 2) => self.delete(),
            (false, _, 3) => self.snapshot(),
            (false, ..) => self.stage(),
            (true, _, 2) if is_rare => self.delete_too_early(),
            (true, 0, 2 | 3) => self.unstage(Code::Ok),
            (true, 0, _) => self.publish(),
            (true, _, 2) => self.unstage(Code::FailedPrecondition),
            (true, _, 3) => self.words(),
            (true, 3, _) | (true, _, 4 | 5) => self.unpublish(),
            (true, ..) => self.publish(),
        }
    }

    /// Repeats the call until it gets a response, which must be OK.
    fn must(&mut self, op: &Op) -> Outcome {
        match self.answered(op) {
            Ok(outcome) => outcome,
            Err(code) => {
                let why = format!(
                    "must succeed, but ended with {code:?}, for {}",
                    self.caller.who
                );
                self.scene.fail(op, &why)
            }
        }
    }

    fn answered(&mut self, op: &Op) -> Result<Outcome, Code> {
        let chance = &mut self.chance;
        let answer = self.scene.insist(&self.caller, op, || impatience(chance));
        answer.map_err(|status| status.code())
    }

    fn own(&mut self) -> &mut Own {
        self.own.as_mut().expect("a volume")
    }

    fn create(&mut self) {
        self.lives += 1;
        let name = format!("{} {}", self.caller.who, self.lives);
        let op = Op::Create(name, self.kind, Origin::Blank);
        let Outcome::Volume(id, bytes) = self.must(&op) else {
            unreachable!("a volume")
        };
        let site = &self.scene.site;
        self.own = Some(Own {
            volume: Volume::made(&site.top, &site.volumes(), id),
            bytes,
            growths: 0,
            is_staged: false,
            targets: BTreeSet::new(),
            has_words: false,
            snapshot: None,
        });
    }

    fn delete(&mut self) {
        if let Some(snapshot) = self.own().snapshot.take() {
            self.must(&Op::Discard(snapshot));
        }
        let id = self.own().volume.id.clone();
        self.must(&Op::Delete(id.clone()));
        let seen = self.scene.site.see(&id);
        if seen != Seen::default() {
            self.scene
                .fail(&Op::Delete(id), &format!("has left {seen:?}"));
        }
        self.own = None;
    }

    /// Deletes a volume that is staged: this is refused, and changes nothing.
    fn delete_too_early(&mut self) {
        let op = Op::Delete(self.own().volume.id.clone());
        let code = self.answered(&op).err().unwrap_or(Code::Ok);
        if code != Code::FailedPrecondition {
            self.scene
                .fail(&op, &format!("in use, ended with {code:?}"));
        }
    }

    fn stage(&mut self) {
        let op = Op::Stage(self.own().volume.clone(), self.kind);
        self.must(&op);
        self.own().is_staged = true;
    }

    fn unstage(&mut self, expected: Code) {
        let op = Op::Unstage(self.own().volume.clone());
        let code = self.answered(&op).err().unwrap_or(Code::Ok);
        if code != expected {
            let why = format!("ended with {code:?}, not {expected:?}");
            self.scene.fail(&op, &why);
        }
        self.own().is_staged = expected != Code::Ok;
    }

    fn publish(&mut self) {
        let name = *self.chance.pick(&["a", "b", "c"]);
        let target = self.own().volume.target(name);
        let volume = self.own().volume.clone();
        self.must(&Op::Publish(volume, self.kind, target.clone()));
        self.own().targets.insert(target);
    }

    fn unpublish(&mut self) {
        let target = self.own().targets.pop_first().expect("a target");
        let op = Op::Unpublish(self.own().volume.clone(), target.clone());
        self.must(&op);
        if target.exists() {
            self.scene.fail(&op, "has left the target");
        }
    }

    /// Checks that data that was written can be read back.
    fn words(&mut self) {
        let kind = self.kind;
        let own = self.own();
        let target = own.targets.first().expect("a target");
        if own.has_words {
            expect_words(kind, target);
        } else {
            leave_words(kind, target);
            own.has_words = true;
        }
    }

    fn look(&mut self) {
        let own = self.own();
        let (volume, bytes) = (own.volume.clone(), own.bytes);
        let path = own.targets.first().cloned();
        match path {
            None => {
                let op = Op::Get(volume.id.clone());
                let found = self.must(&op);
                if found != Outcome::Volume(volume.id, bytes) {
                    self.scene.fail(&op, &format!("found {found:?}"));
                }
            }
            Some(path) => {
                let op = Op::Stats(volume, path);
                let Outcome::Bytes(total) = self.must(&op) else {
                    unreachable!("bytes")
                };
                if total > bytes || total < bytes / 2 && self.kind == "block" {
                    self.scene
                        .fail(&op, &format!("reported {total} of {bytes} bytes"));
                }
            }
        }
    }

    fn grow(&mut self) {
        let own = self.own();
        if own.growths == GROWTHS_MAX {
            return;
        }
        own.growths += 1;
        own.bytes += GROWTH;
        let (volume, bytes, is_staged) = (own.volume.clone(), own.bytes, own.is_staged);
        self.must(&Op::Grow(volume.id.clone(), bytes));
        if !is_staged {
            return;
        }
        let path = volume.staging.clone();
        let op = Op::Expand(volume, self.kind, path, bytes);
        match self.answered(&op) {
            Ok(Outcome::Bytes(reported)) if reported == bytes => {}
            // This machine may not grant CAP_SYS_RESOURCE.
            Err(Code::FailedPrecondition) if self.kind == "ext4" => {}
            other => self.scene.fail(&op, &format!("ended with {other:?}")),
        }
    }

    fn snapshot(&mut self) {
        if let Some(snapshot) = self.own().snapshot.take() {
            self.must(&Op::Discard(snapshot));
            return;
        }
        let id = self.own().volume.id.clone();
        let op = Op::Cut(format!("of {id}"), id);
        match self.must(&op) {
            Outcome::Snapshot(snapshot, true) => self.own().snapshot = Some(snapshot),
            other => self.scene.fail(&op, &format!("returned {other:?}")),
        }
    }

    /// Checks that the responses are true.
    fn check(&mut self) {
        let kind = self.kind;
        let Some(own) = &self.own else { return };
        let mut mounts = own.targets.clone();
        if own.is_staged {
            mounts.insert(match kind {
                "block" => own.volume.device(),
                _ => own.volume.staging.clone(),
            });
        }
        let reported = Seen {
            mounts,
            loops: usize::from(own.is_staged),
            bytes: u64::try_from(own.bytes).ok(),
        };
        let seen = self.scene.site.see(&own.volume.id);
        if seen != reported {
            let op = Op::Get(own.volume.id.clone());
            let why = format!(
                "{} was answered {reported:#?}, and sees {seen:#?}",
                self.caller.who
            );
            self.scene.fail(&op, &why);
        }
    }

    /// Takes everything down, without disconnecting.
    pub(crate) fn leave(mut self) {
        let Some(own) = self.own.take() else { return };
        for target in own.targets {
            self.must(&Op::Unpublish(own.volume.clone(), target));
        }
        if let Some(snapshot) = own.snapshot {
            self.must(&Op::Discard(snapshot));
        }
        self.must(&Op::Unstage(own.volume.clone()));
        self.must(&Op::Delete(own.volume.id));
    }
}
