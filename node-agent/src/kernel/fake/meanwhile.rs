//! External events between two calls of a process: a disk is plugged in, removed, swapped or
//! claimed. Also short reads.

use std::path::PathBuf;

use super::state::State;
use super::{Machine, Plug};
use crate::kernel::Open;

/// An event that happens once, right before a call.
pub(crate) enum Meanwhile {
    /// A disk is plugged in.
    Plug(Plug),
    /// The disk with this medium is removed.
    Unplug(PathBuf),
    /// The disk with this medium is removed, and another disk is plugged in.
    Swap(PathBuf, Plug),
    /// Another process opens this device node exclusively, and keeps it open.
    Claim(PathBuf),
    /// If the next call is a read, it returns half of the available bytes.
    Short,
}

impl Machine {
    /// Makes the event happen before the call with this number, counted from [`Machine::begin`].
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
            Meanwhile::Claim(device) => {
                let location = self.walk(&device).unwrap();
                let object = self.open_location(location, Open::DeviceExclusive);
                let process = self.number();
                self.describe(process, object.unwrap(), String::new());
            }
            Meanwhile::Short => self.reads_half = true,
        }
    }
}
