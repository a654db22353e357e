//! The events of a filesystem, in order, and the content that a disk still has if the power fails
//! at a given position. The rule is the harshest that POSIX allows: data, size and attributes of a
//! file certainly survive only if the file was synced later, and a name only if its directory was.
//! Syncing a file does not preserve its name, although ext4, xfs and btrfs all guarantee that.

use std::collections::HashSet;
use std::fmt;

use super::tree::{ALL_PIECES, Change, Tree};
use crate::rig::Chance;

/// The changes that one sync makes durable together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Scope {
    /// The content and the size of a file.
    Data(u64),
    /// The extended attributes of a file.
    Attributes(u64),
    /// The names in a directory.
    Names(u64),
    /// A change that has no effect by itself, and so counts as durable.
    Certain,
}

/// An event of the filesystem.
#[derive(Clone, Debug)]
enum Event {
    Change(Change),
    /// An fsync(2), or an fdatasync(2), which omits the attributes.
    Sync {
        ino: u64,
        data_only: bool,
    },
}

/// The selection of unsynced changes that survive a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survival {
    /// No unsynced change survives.
    Nothing,
    /// All changes survive, as if only the programs had been killed.
    Everything,
    /// All changes survive except removals of names and attributes.
    Undeleted,
    /// Names, sizes and attributes survive, but no data.
    Metadata,
    /// Only the most recent change survives: the disk has chosen another order.
    Newest,
    /// A random selection survives; of pages, some pieces.
    Some(u64),
}

impl Survival {
    /// Parses the output of [`fmt::Display`].
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "nothing" => Some(Survival::Nothing),
            "everything" => Some(Survival::Everything),
            "undeleted" => Some(Survival::Undeleted),
            "metadata" => Some(Survival::Metadata),
            "newest" => Some(Survival::Newest),
            seed => seed.parse().ok().map(Survival::Some),
        }
    }
}

impl fmt::Display for Survival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Survival::Nothing => f.write_str("nothing"),
            Survival::Everything => f.write_str("everything"),
            Survival::Undeleted => f.write_str("undeleted"),
            Survival::Metadata => f.write_str("metadata"),
            Survival::Newest => f.write_str("newest"),
            Survival::Some(seed) => write!(f, "{seed}"),
        }
    }
}

/// The events since a state of the filesystem that was completely on disk.
#[derive(Clone, Debug)]
pub(super) struct Tape {
    base: Tree,
    events: Vec<Event>,
    tears: bool,
}

impl Tape {
    /// Creates an empty tape.
    pub(super) fn new(base: Tree) -> Self {
        Tape {
            base,
            events: Vec::new(),
            tears: true,
        }
    }

    /// Returns the same tape for a disk that writes each page in one piece.
    pub(super) fn untorn(self) -> Self {
        Tape {
            tears: false,
            ..self
        }
    }

    pub(super) fn change(&mut self, change: Change) {
        self.events.push(Event::Change(change));
    }

    pub(super) fn sync(&mut self, ino: u64, data_only: bool) {
        self.events.push(Event::Sync { ino, data_only });
    }

    /// Returns the number of events, which is the position after the last one.
    pub(super) fn end(&self) -> usize {
        self.events.len()
    }

    /// Whether the newest change could overtake an earlier one on its way to the disk: it is the
    /// second change since any sync, or of another kind than an unsynced change. If a sync is
    /// missing, this is where a change is on disk too early.
    pub(super) fn is_overtaking(&self, position: usize) -> bool {
        let scopes = self.events[..position].iter().rev();
        let scopes = scopes.map_while(|event| match event {
            Event::Change(change) => Some(scope(change)),
            Event::Sync { .. } => None,
        });
        let scopes: Vec<_> = scopes.filter(|scope| *scope != Scope::Certain).collect();
        scopes.len() == 2
            || scopes.iter().any(|scope| *scope != scopes[0])
            || self.is_name_beside_others(position)
    }

    /// Whether the last event changes a name, and other names in the same directory are not synced
    /// either.
    fn is_name_beside_others(&self, position: usize) -> bool {
        let (newest, before) = match self.events[..position].split_last() {
            Some((Event::Change(change), before)) => (scope(change), before),
            _ => return false,
        };
        let unsynced = before.iter().rev().take_while(|event| match event {
            Event::Change(_) => true,
            Event::Sync { ino, .. } => Scope::Names(*ino) != newest,
        });
        let is_beside =
            |event: &Event| matches!(event, Event::Change(change) if scope(change) == newest);
        matches!(newest, Scope::Names(_)) && unsynced.filter(|event| is_beside(event)).count() > 0
    }

    /// Returns the content that a mount finds if the power fails at this position.
    pub(super) fn cut(&self, position: usize, survival: Survival) -> Tree {
        let events = &self.events[..position];
        let certain = certain(events);
        let mut chance = match survival {
            Survival::Some(seed) => Chance::seeded(seed),
            _ => Chance::seeded(0),
        };
        // Disks differ in how much they still had to write, so vary this for each loss.
        let kept_of_eight = chance.below(8);
        let newest = newest(events);
        let mut tree = self.base.clone();
        for (at, event) in events.iter().enumerate() {
            let Event::Change(change) = event else {
                continue;
            };
            let pieces = match survival {
                _ if certain[at] => ALL_PIECES,
                Survival::Nothing => continue,
                Survival::Everything => ALL_PIECES,
                Survival::Undeleted if !is_removal(change) => ALL_PIECES,
                Survival::Metadata if !matches!(change, Change::Write { .. }) => ALL_PIECES,
                Survival::Newest if newest == Some(at) => ALL_PIECES,
                Survival::Undeleted | Survival::Metadata | Survival::Newest => continue,
                Survival::Some(_) if chance.below(8) > kept_of_eight => continue,
                // Most pages are written as a whole.
                Survival::Some(_) if !self.tears || chance.below(4) > 0 => ALL_PIECES,
                Survival::Some(_) => chance.bits().to_le_bytes()[0] & ALL_PIECES,
            };
            tree.apply_torn(change, pieces);
        }
        tree.mounted()
    }
}

/// Returns the last change that has an effect by itself.
fn newest(events: &[Event]) -> Option<usize> {
    events.iter().rposition(|event| match event {
        Event::Change(change) => scope(change) != Scope::Certain,
        Event::Sync { .. } => false,
    })
}

/// Returns, for each event, whether a later sync has made it durable.
fn certain(events: &[Event]) -> Vec<bool> {
    let mut synced = HashSet::from([Scope::Certain]);
    let mut certain = vec![false; events.len()];
    for (at, event) in events.iter().enumerate().rev() {
        match event {
            Event::Change(change) => certain[at] = synced.contains(&scope(change)),
            Event::Sync { ino, data_only } => {
                synced.extend([Scope::Data(*ino), Scope::Names(*ino)]);
                if !data_only {
                    synced.insert(Scope::Attributes(*ino));
                }
            }
        }
    }
    certain
}

fn is_removal(change: &Change) -> bool {
    matches!(
        change,
        Change::Unname { .. } | Change::Attribute { value: None, .. }
    )
}

fn scope(change: &Change) -> Scope {
    match change {
        Change::Make { .. } => Scope::Certain,
        Change::Name { directory, .. }
        | Change::Unname { directory, .. }
        | Change::Rename { directory, .. } => Scope::Names(*directory),
        Change::Resize { ino, .. } | Change::Write { ino, .. } | Change::Punch { ino, .. } => {
            Scope::Data(*ino)
        }
        Change::Attribute { ino, .. } => Scope::Attributes(*ino),
    }
}
