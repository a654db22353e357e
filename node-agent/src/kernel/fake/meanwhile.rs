//! What happens from outside between two calls of a process: a disk is plugged in, removed or
//! exchanged. And reads that return a part of what they could.

use std::path::PathBuf;

use super::state::State;
use super::{Machine, Plug};

/// Something that happens once, right before a call.
pub(crate) enum Meanwhile {
    /// A disk is plugged in.
    Plug(Plug),
    /// The disk with that medium is removed.
    Unplug(PathBuf),
    /// The same, and another one is plugged in.
    Swap(PathBuf, Plug),
    /// The call, if it reads, returns half of what it could.
    Short,
}

impl Machine {
    /// Lets it happen before the call of that number, counted from [`Machine::begin`].
    pub(crate) fn meanwhile(&self, number: usize, what: Meanwhile) {
        self.lock().meanwhile = Some((number, what));
    }
}

impl State {
    pub(super) fn before_call(&mut self, number: usize) {
        self.reads_half = false;
        let Some((_, what)) = self.meanwhile.take_if(|(at, _)| *at == number) else {
            return;
        };
        match what {
            Meanwhile::Plug(plug) => self.plug(plug),
            Meanwhile::Unplug(medium) => self.unplug(&medium),
            Meanwhile::Swap(medium, plug) => {
                self.unplug(&medium);
                self.plug(plug);
            }
            Meanwhile::Short => self.reads_half = true,
        }
    }
}
