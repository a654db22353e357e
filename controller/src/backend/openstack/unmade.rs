//! Why a change that Nova or Cinder has accepted was not made. Both answer before they do it, and
//! report no error later: the volume goes back to its former status. Cinder has a message for some
//! of these cases (`cinder/message/message_field.py`); the cause of the others is only in logs.

use super::failed::NO_BACKEND;
use super::wire::{CinderVolume, GIB, Message};
use super::{Cloud, Phase};
use crate::backend::time::seconds;
use crate::backend::{Unmade, Volume};
use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

pub(super) const WHERE_TO_LOOK: &str = "the logs of cinder-volume, nova-compute or cinder-backup \
     say why, and an administrator can reset the status";

/// Actions of messages.
const ATTACH: &[&str] = &["002", "004"];
const EXTEND: &[&str] = &["007"];

/// Between a message and the volume's status, which one or another service writes, with its clock.
const APART_MAX: u64 = 60;

/// Whether the volume is still without the change.
fn lacks(volume: &Volume, unmade: &Unmade) -> bool {
    volume.phase == Phase::Ready
        && match unmade {
            Unmade::Attach(node) => !volume.nodes.contains(node),
            Unmade::Detach(node) => volume.nodes.contains(node),
            Unmade::Expand(bytes) => volume.bytes < *bytes,
            Unmade::Delete => true,
        }
}

/// The latest message about one of these actions. An older one than the end of the change is that
/// of another call.
fn latest(messages: Vec<Message>, actions: &[&str], volume: &CinderVolume) -> Option<Message> {
    let ended = volume.updated_at.as_deref().and_then(seconds);
    let is_of_then = |message: &Message| {
        let created = message.created_at.as_deref().and_then(seconds);
        let (Some(created), Some(ended)) = (created, ended) else {
            return true;
        };
        created + APART_MAX >= ended
    };
    let is_meant = |message: &Message| {
        let action = message.event_id.rsplit('_').nth(1);
        action.is_some_and(|action| actions.contains(&action)) && is_of_then(message)
    };
    let meant = messages.into_iter().filter(is_meant);
    meant.max_by(|a, b| a.created_at.cmp(&b.created_at))
}

/// What Cinder's messages say; empty if they cannot be read.
fn words(messages: Option<Vec<Message>>, actions: &[&str], volume: &CinderVolume) -> String {
    let Some(messages) = messages else {
        return String::new();
    };
    match latest(messages, actions, volume) {
        Some(Message {
            user_message,
            created_at,
            ..
        }) => {
            let at = created_at.map_or_else(String::new, |at| format!(" of {at}"));
            format!("; Cinder's message{at}: {user_message:?}")
        }
        None => "; Cinder has no message about it".to_owned(),
    }
}

/// Where the volume is, as Cinder shows it.
fn place(seen: &Volume, volume: &CinderVolume) -> String {
    let nodes: Vec<_> = seen.nodes.iter().map(ToString::to_string).collect();
    let nodes = match &*nodes {
        [] => "no server".to_owned(),
        nodes => format!("server {}", nodes.join(", ")),
    };
    let (status, gib) = (&volume.status, seen.bytes / GIB);
    format!("the volume is {status}, attached to {nodes}, and has {gib} GiB")
}

impl Cloud {
    /// None if the volume shows the change now, or another one.
    pub(super) async fn cause(
        &self,
        id: &VolumeId,
        unmade: Unmade,
    ) -> Result<Option<Failure>, Failure> {
        let Some(volume) = self.client.volume(id).await? else {
            return Ok(None);
        };
        let seen = self.seen(&volume)?;
        if !lacks(&seen, &unmade) {
            return Ok(None);
        }
        let messages = match unmade {
            Unmade::Attach(_) | Unmade::Expand(_) => self.client.messages(id.as_str()).await,
            // Cinder has no message for these.
            Unmade::Detach(_) | Unmade::Delete => None,
        };
        let place = place(&seen, &volume);
        let message = match unmade {
            Unmade::Attach(node) => format!(
                "Nova accepted the attachment to server {node} and dropped it: {place}{}; see the \
                 logs of nova-compute of that server and of cinder-volume; repeat the call",
                words(messages, ATTACH, &volume)
            ),
            Unmade::Detach(node) => format!(
                "Nova accepted the detachment from server {node} and did not make it, such as when \
                 the guest does not release the disk: {place}; see the log of nova-compute of that \
                 server; repeat the call"
            ),
            Unmade::Expand(bytes) => format!(
                "Cinder accepted the expansion to {} GiB and did not make it: {place}{}; see the \
                 logs of cinder-scheduler and cinder-volume; repeat the call",
                bytes.div_ceil(GIB),
                words(messages, EXTEND, &volume)
            ),
            Unmade::Delete => format!(
                "Cinder accepted the deletion and did not make it, such as while copies in its \
                 storage depend on the volume: {place}; see the log of cinder-volume; repeat the \
                 call"
            ),
        };
        let message = format!("volume {id}: {message}");
        // Only if Cinder's message says so.
        Ok(Some(match message.contains(NO_BACKEND) {
            true => Failure::new(Kind::Quota, message).rolled_back(),
            false => Failure::busy(message).may_be_running(),
        }))
    }
}
