//! What a killed agent left bound: freed when the next one starts.
//!
//! A device that was bound for a raw volume and not yet shown stays bound when the agent dies
//! there. The volume's next stage or unstage finds it; but a stage may be refused before that,
//! and then nobody would come again, while the volume counts as attached.

use belay_server::failure::Failure;

use super::Node;
use crate::device::Remnant;
use crate::kernel::Kernel;

impl<K: Kernel> Node<K> {
    /// Frees the loop devices of the volumes' files that nothing mounts, binds or has open. To be
    /// called once, before anything else is done; not at all while another agent serves the same
    /// folder, since that may be about to show such a device. Whatever cannot be asked or freed
    /// is left to the volume's own calls. Whether the folder is served by this agent alone.
    pub(crate) fn sweep(&self) -> bool {
        match self.loop_dir.is_ours_alone(&self.kernel) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("another process has the lock of --loop-dir; nothing is freed");
                return false;
            }
            Err(error) => {
                tracing::warn!("the lock of --loop-dir: {error}");
                return false;
            }
        }
        match self.kernel.loop_bound() {
            Ok(numbers) => numbers.into_iter().for_each(|number| self.free(number)),
            Err(error) => tracing::warn!("the list of loop devices: {error}"),
        }
        true
    }

    fn free(&self, number: u32) {
        let freed = match Remnant::at(&self.kernel, &self.loop_dir, number) {
            Ok(None) => return,
            Ok(Some(remnant)) => self.free_unless_shown(remnant),
            Err(failure) => Err(failure),
        };
        match freed {
            Ok(false) => {}
            Ok(true) => tracing::info!("/dev/loop{number} was left bound, and is freed"),
            Err(failure) => tracing::warn!("/dev/loop{number} is left as it is: {failure}"),
        }
    }

    /// Whether it was freed.
    fn free_unless_shown(&self, remnant: Remnant<K>) -> Result<bool, Failure> {
        let (kernel, dev) = (&self.kernel, remnant.dev(&self.kernel)?);
        let shown = self.index.others(kernel, remnant.volume(), dev, &[])?;
        match shown.is_empty() {
            true => Ok(remnant.free(kernel)?),
            false => Ok(false),
        }
    }
}
