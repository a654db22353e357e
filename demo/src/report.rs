//! What the demo has shown so far: finished steps, facts, times and weight. Knows no terminal.

use std::collections::BTreeMap;

use crate::kind::{Kind, Scene};
use crate::samples::{Samples, Step};

/// Everything on the demo's screen.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) rounds: u32,
    pub(crate) samples: Samples,
    /// The kinds of volume, in order.
    pub(crate) kinds: Vec<Kind>,
    cells: BTreeMap<(Kind, Step), Cell>,
    facts: Vec<(Topic, String)>,
    /// Filesystems staged blank, each of which needs a mkfs.
    pub(crate) blank_stages: u32,
}

/// The result of a step in the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Done,
    /// Not possible on this machine, and refused with the reason.
    Refused,
}

/// A section of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Copies,
    Refused,
    Killed,
    Weight,
}

impl Topic {
    /// The name shown to the user.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Copies => "Copies",
            Self::Refused => "Refused",
            Self::Killed => "Killed",
            Self::Weight => "Weight",
        }
    }
}

impl Report {
    pub(crate) fn new(rounds: u32, kinds: &[Kind]) -> Self {
        Self {
            rounds,
            samples: Samples::default(),
            kinds: kinds.to_vec(),
            cells: BTreeMap::new(),
            facts: Vec::new(),
            blank_stages: 0,
        }
    }

    /// Records the result of a step. Copies have no row in the matrix.
    pub(crate) fn set(&mut self, scene: Scene, step: Step, cell: Cell) {
        if let Scene::Life(kind) = scene {
            self.cells.insert((kind, step), cell);
        }
    }

    pub(crate) fn cell(&self, kind: Kind, step: Step) -> Option<Cell> {
        self.cells.get(&(kind, step)).copied()
    }

    /// Records a line of a section.
    pub(crate) fn fact(&mut self, topic: Topic, text: String) {
        self.facts.push((topic, text));
    }

    /// The lines of a section so far.
    pub(crate) fn facts(&self, topic: Topic) -> Vec<String> {
        let of_topic = self.facts.iter().filter(|(of, _)| *of == topic);
        of_topic.map(|(_, text)| text.clone()).collect()
    }

    /// Whether a step was refused anywhere.
    pub(crate) fn has_refused_steps(&self) -> bool {
        self.cells.values().any(|cell| *cell == Cell::Refused)
    }
}
