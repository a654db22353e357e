//! Volumes with disks on a hypervisor: an action is complete once the disk has changed.

use super::state::{Action, Change, State, after};
use super::{DigitalOcean, Refusal, refused};
use crate::{Hypervisor, Model, lock};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The model that a droplet sees for a volume's disk; the disk's serial is the volume's name.
pub const MODEL: Model = Model {
    vendor: "DO",
    product: "Volume",
};

impl DigitalOcean {
    /// Gives each new volume a disk on the hypervisor. The hypervisor's guests have the droplets'
    /// names.
    #[must_use]
    pub fn with_disks(mut self, hypervisor: Hypervisor) -> Self {
        self.disks = Some(Arc::new(hypervisor));
        self
    }

    /// Sets the name of a droplet.
    pub fn rename(&self, droplet: u64, name: &str) {
        if let Some(droplet) = self.state().change().droplets.get_mut(&droplet) {
            name.clone_into(&mut droplet.name);
        }
    }

    /// Changes a disk for a call that starts no action. Has no effect if the twin has no disks.
    pub(super) fn disk(
        &self,
        what: &str,
        change: impl FnOnce(&Hypervisor) -> io::Result<()>,
    ) -> Result<(), Refusal> {
        let Some(disks) = &self.disks else {
            return Ok(());
        };
        change(disks).or_else(|error| refused(500, format!("{what}: {error}")))
    }

    /// Changes the disk of a volume in the background, and then ends the action.
    pub(super) fn perform(&self, state: &State, number: u64, action: Action) {
        let Some(disks) = self.disks.clone() else {
            return;
        };
        let name = state.volumes.get(&action.volume);
        let name = name.map_or_else(String::new, |volume| volume.name.clone());
        let droplet = action.change.droplet();
        let droplet = droplet.and_then(|droplet| state.droplets.get(&droplet));
        let server = droplet.map_or_else(String::new, |droplet| droplet.name.clone());
        let (state, delay) = (Arc::clone(&self.state), self.settings().delay);
        std::thread::spawn(move || {
            // A real hypervisor also takes time to change a disk.
            #[expect(clippy::disallowed_methods, reason = "no event comes before it")]
            std::thread::sleep(delay);
            let Action { volume, fails, .. } = action;
            let done = match action.change {
                _ if fails => Ok(()),
                Change::Attach(_) => disks.plug(&volume, &name, &server),
                Change::Detach(_) => disks.unplug(&volume),
                Change::Resize(gib) => disks.grow(&volume, gib << 30),
            };
            if let Err(error) = &done {
                eprintln!("volume {volume} ({name}): {error}");
            }
            if let Some(action) = lock(&state).change().actions.get_mut(&number) {
                action.fails |= done.is_err();
                action.due = after(Duration::ZERO);
            }
        });
    }
}
