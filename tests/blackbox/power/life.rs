//! The recorded lifecycles of some volumes: the positions at which each act began and was
//! acknowledged, and the knowledge at that point.

use super::disk::Recorded;
use super::tape::Tape;
use super::tree::Tree;
use super::user::{Act, Known, User};
use crate::rig::{Chance, Drive, Origin, Pair, TestDir};

/// The growth of an expansion, in bytes.
const GROWTH: i64 = 16 << 20;

/// Storage that records its changes.
pub(super) trait Recording: Drive {
    /// Whether a page may be on disk in part. The kernel's filesystems assume that their pages
    /// never are: the superblock of btrfs has 4 KiB.
    const TEARS: bool;

    /// Mounts the content that a power loss has left.
    fn mount(test_dir: &TestDir, tree: Tree) -> Self;
    /// Returns the recorder.
    fn recorded(&self) -> &Recorded;
}

impl Drive for Recorded {
    fn unmount(self) {}
}

impl Recording for Recorded {
    const TEARS: bool = true;

    fn mount(test_dir: &TestDir, tree: Tree) -> Self {
        Recorded::mount(&test_dir.directory("state"), tree)
    }

    fn recorded(&self) -> &Recorded {
        self
    }
}

/// One act of the recorded lifecycle.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) act: Act,
    pub(super) began: usize,
    /// The position from which on the act is acknowledged.
    pub(super) ended: usize,
    /// Everything that was acknowledged until then.
    pub(super) known: Known,
}

/// The whole recorded lifecycle.
pub(super) struct Life {
    pub(super) steps: Vec<Step>,
    pub(super) tape: Tape,
}

impl Life {
    /// Records the lifecycle on a newly started pair; `shares` as in [`Recorder::live`].
    pub(super) fn of<D: Recording>(pair: Pair<D>, shares: bool) -> Self {
        let steps = Recorder::new(&pair).live(shares);
        let tape = pair.drive().recorded().tape();
        let tape = if D::TEARS { tape } else { tape.untorn() };
        pair.end();
        Life { steps, tape }
    }

    /// Returns the number of steps that were acknowledged at this position.
    pub(super) fn over(&self, position: usize) -> usize {
        self.steps.partition_point(|step| step.ended <= position)
    }

    /// Returns the knowledge at this position, and the current act.
    pub(super) fn at(&self, position: usize) -> (Known, Option<&Act>) {
        let over = self.over(position);
        let known = match over {
            0 => Known::default(),
            over => self.steps[over - 1].known.clone(),
        };
        let next = self.steps.get(over);
        let doubtful = next.filter(|step| step.began <= position);
        (known, doubtful.map(|step| &step.act))
    }
}

/// Performs the lifecycle, and records it.
struct Recorder<'a, D: Recording> {
    pair: &'a Pair<D>,
    user: User,
    steps: Vec<Step>,
}

impl<'a, D: Recording> Recorder<'a, D> {
    fn new(pair: &'a Pair<D>) -> Self {
        let user = User::new(pair.site().clone(), Known::default(), Chance::seeded(0));
        let start = Step {
            act: Act::Start,
            began: 0,
            ended: pair.drive().recorded().position(),
            known: Known::default(),
        };
        Recorder {
            pair,
            user,
            steps: vec![start],
        }
    }

    /// Performs a volume's whole lifecycle, with a filesystem and as a raw device. `shares` states
    /// whether a volume in use can be snapshotted.
    fn live(mut self, shares: bool) -> Vec<Step> {
        let first = self.create("first", "ext4", Origin::Blank);
        self.up(&first);
        self.act(Act::Write(first.clone()));
        self.act(Act::DeleteTooEarly(first.clone()));
        self.act(Act::Write(first.clone()));
        self.act(Act::Stage(first.clone()));
        self.grow(&first);
        self.act(Act::Write(first.clone()));
        if shares {
            let in_use = self.cut("in use", &first);
            self.act(Act::Discard(in_use));
        }
        self.down(&first);
        let snapshot = self.cut("snapshot", &first);
        let restored = self.create("restored", "ext4", Origin::Snapshot(snapshot.clone()));
        let clone = self.create("clone", "ext4", Origin::Volume(first.clone()));
        self.act(Act::Delete(first));
        self.up(&restored);
        self.act(Act::Write(restored.clone()));
        self.down(&restored);
        self.act(Act::Discard(snapshot));
        self.act(Act::Delete(clone));
        self.act(Act::Delete(restored));
        self.live_raw();
        self.steps
    }

    fn live_raw(&mut self) {
        let raw = self.create("raw", "block", Origin::Blank);
        self.up(&raw);
        self.act(Act::Write(raw.clone()));
        self.grow(&raw);
        self.act(Act::Write(raw.clone()));
        self.down(&raw);
        let snapshot = self.cut("raw snapshot", &raw);
        let clone = self.create("raw clone", "block", Origin::Volume(raw.clone()));
        self.act(Act::Discard(snapshot));
        self.act(Act::Delete(raw));
        self.act(Act::Delete(clone));
    }

    fn act(&mut self, act: Act) {
        let began = self.pair.drive().recorded().position();
        self.user.act(&act);
        self.steps.push(Step {
            act,
            began,
            ended: self.pair.drive().recorded().position(),
            known: self.user.known.clone(),
        });
    }

    fn create(&mut self, name: &str, kind: &'static str, origin: Origin) -> String {
        let before = self.user.known.volumes.clone();
        self.act(Act::Create(name.to_owned(), kind, origin));
        let mut ids = self.user.known.volumes.keys();
        let new = ids.find(|id| !before.contains_key(*id));
        new.expect("a new volume").clone()
    }

    fn cut(&mut self, name: &str, volume: &str) -> String {
        self.act(Act::Cut(name.to_owned(), volume.to_owned()));
        self.act(Act::Await(name.to_owned(), volume.to_owned()));
        let mut snapshots = self.user.known.snapshots.iter();
        let found = snapshots.find(|(_, cut)| cut.name == name);
        found.expect("a snapshot").0.clone()
    }

    fn up(&mut self, id: &str) {
        for act in [Act::Stage, Act::Publish] {
            self.act(act(id.to_owned()));
        }
    }

    fn down(&mut self, id: &str) {
        for act in [Act::Unpublish, Act::Unstage] {
            self.act(act(id.to_owned()));
        }
    }

    fn grow(&mut self, id: &str) {
        let bytes = self.user.held(id).bytes + GROWTH;
        self.act(Act::Grow(id.to_owned(), bytes));
        self.act(Act::Expand(id.to_owned()));
    }
}
