//! Why a volume or a snapshot has failed, in the cloud's own words.

use super::Openstack;
use crate::backend::Phase;
use belay_server::call::Kind;

/// In Cinder's message if no backend could be chosen for a new volume: of its type, in its zone,
/// with room (`cinder/message/message_field.py`).
const NO_BACKEND: &str = "any available weighted backend";

impl Openstack {
    /// Adds Cinder's message to the failure of a phase.
    pub(super) async fn explain(&self, id: &str, phase: &mut Phase) {
        let Phase::Failed(why) = phase else { return };
        let Some(message) = self.client.message(id).await else {
            return;
        };
        if message.contains(NO_BACKEND) {
            // The scheduler may choose a node elsewhere.
            why.kind = Kind::Quota;
        }
        why.message = format!("{}; the latest says {message:?}", why.message);
    }
}
