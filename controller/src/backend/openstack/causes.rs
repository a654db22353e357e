//! Determines why Cinder or Nova has not carried out a change: a volume or a snapshot has failed, a
//! volume was not deleted, or an accepted change was dropped. Cinder and Nova respond before they
//! carry out a change. If the change fails later, no error is reported, and the volume returns to
//! its former status. Cinder provides messages about some of these cases
//! (`cinder/message/message_field.py`); other causes are only in the services' logs.

use super::Cloud;
use super::wire::{CinderVolume, GIB, Message};
use crate::backend::cloud::time::seconds;
use crate::backend::{DroppedChange, Phase, Volume};
use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

/// A part of Cinder's message if no storage backend can hold a volume of the requested type and
/// size in its zone (`cinder/message/message_field.py`).
pub(super) const NO_BACKEND: &str = "any available weighted backend";

impl Cloud {
    /// Adds Cinder's latest message to the error of a failed volume or snapshot.
    pub(super) async fn explain(&self, id: &str, phase: &mut Phase) {
        let Phase::Failed(why) = phase else { return };
        let Some(message) = self.client.messages(id).await.and_then(latest_text) else {
            return;
        };
        if message.contains(NO_BACKEND) {
            // After the error `Quota`, the Kubernetes scheduler can select a node in another zone.
            why.kind = Kind::Quota;
        }
        why.message = format!("{}; the latest says {message:?}", why.message);
    }
}

/// Returns the text of the latest message. Cinder's times have a resolution of one second. If a
/// backend fails in the same second in which the scheduler finds no other backend, the scheduler's
/// message is treated as the latest message.
fn latest_text(messages: Vec<Message>) -> Option<String> {
    let newest = messages
        .iter()
        .map(|message| &message.created_at)
        .max()?
        .clone();
    let of_then = messages
        .into_iter()
        .filter(|message| message.created_at == newest);
    let mut texts: Vec<_> = of_then.map(|message| message.user_message).collect();
    let last = texts.iter().position(|text| text.contains(NO_BACKEND));
    Some(texts.swap_remove(last.unwrap_or(0)))
}

impl Cloud {
    /// Returns the error for a refused deletion. Adds the reason if the volume's attachments or
    /// snapshots are the reason; otherwise, the error contains only Cinder's list of possible
    /// reasons.
    pub(super) async fn deletion_refused(&self, volume: &Volume, refused: Failure) -> Failure {
        if refused.kind != Kind::Precondition {
            return refused;
        }
        let id = &volume.id;
        let reason = match &*volume.nodes {
            [] => {
                let snapshots = self.client.snapshots(Some(id), None, 1).await;
                let first = snapshots.ok().and_then(|(page, _)| page.into_iter().next());
                first.map(|first| {
                    let snapshot = first.id;
                    format!("has snapshots, such as {snapshot}; delete them first")
                })
            }
            nodes => {
                let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
                let nodes = nodes.join(", ");
                Some(format!("attached to node {nodes}; detach it there first"))
            }
        };
        match reason {
            Some(reason) => Failure {
                message: format!("volume {id}: {reason}: {}", refused.message),
                ..refused
            },
            None => refused,
        }
    }
}

pub(super) const WHERE_TO_LOOK: &str = "the logs of cinder-volume, nova-compute or cinder-backup \
     say why, and an administrator can reset the status";

/// Action numbers in the event IDs of Cinder's messages.
const ATTACH: &[&str] = &["002", "004"];
const EXTEND: &[&str] = &["007"];

/// Maximum difference between the times of a message and of the volume's last change, in seconds.
/// The two times may come from different services with different clocks.
const APART_MAX: u64 = 60;

/// Whether the volume is still in the state before the change.
fn lacks(volume: &Volume, dropped: &DroppedChange) -> bool {
    volume.phase == Phase::Ready
        && match dropped {
            DroppedChange::Attach(node) => !volume.nodes.contains(node),
            DroppedChange::Detach(node) => volume.nodes.contains(node),
            DroppedChange::Expand(bytes) => volume.bytes < *bytes,
            DroppedChange::Delete => true,
        }
}

/// Returns the latest message about one of these actions. A message that is much older than the
/// volume's last change belongs to an earlier call.
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

/// Returns a description of Cinder's latest message. Returns an empty text if the messages cannot
/// be read.
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

/// Describes the status, servers and size of the volume.
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
    /// Returns the error that explains why the cloud dropped a change. Returns `None` if the
    /// dropped change, or a different change, has taken effect since.
    pub(super) async fn cause(
        &self,
        id: &VolumeId,
        dropped: DroppedChange,
    ) -> Result<Option<Failure>, Failure> {
        let Some(volume) = self.client.volume(id).await? else {
            return Ok(None);
        };
        let seen = self.seen(&volume)?;
        if !lacks(&seen, &dropped) {
            return Ok(None);
        }
        let messages = match dropped {
            DroppedChange::Attach(_) | DroppedChange::Expand(_) => {
                self.client.messages(id.as_str()).await
            }
            // Cinder has no messages about detachments and deletions.
            DroppedChange::Detach(_) | DroppedChange::Delete => None,
        };
        let place = place(&seen, &volume);
        let message = match dropped {
            DroppedChange::Attach(node) => format!(
                "Nova accepted the attachment to server {node} and dropped it: {place}{}; see the \
                 logs of nova-compute of that server and of cinder-volume; repeat the call",
                words(messages, ATTACH, &volume)
            ),
            DroppedChange::Detach(node) => format!(
                "Nova accepted the detachment from server {node} and did not make it, such as when \
                 the guest does not release the disk: {place}; see the log of nova-compute of that \
                 server; repeat the call"
            ),
            DroppedChange::Expand(bytes) => format!(
                "Cinder accepted the expansion to {} GiB and did not make it: {place}{}; see the \
                 logs of cinder-scheduler and cinder-volume; repeat the call",
                bytes.div_ceil(GIB),
                words(messages, EXTEND, &volume)
            ),
            DroppedChange::Delete => format!(
                "Cinder accepted the deletion and did not make it, such as while copies in its \
                 storage depend on the volume: {place}; see the log of cinder-volume; repeat the \
                 call"
            ),
        };
        let message = format!("volume {id}: {message}");
        // Cinder's scheduler also reports a lack of space while cinder-volume is down. If the error
        // were `Quota`, csi-resizer would wait until a smaller size is requested.
        Ok(Some(match message.contains(NO_BACKEND) {
            true => Failure::new(Kind::System, message).rolled_back(),
            false => Failure::busy(message).may_be_running(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str, second: u8) -> Message {
        Message {
            user_message: text.to_owned(),
            created_at: Some(format!("2026-11-24T18:00:{second:02}.000000")),
            event_id: String::new(),
        }
    }

    #[test]
    fn of_two_messages_of_one_second_that_of_the_scheduler_is_the_later_one() {
        let driver = || message("Driver failed to create the volume.", 7);
        let scheduler = |second| message("no any available weighted backend", second);
        let text = |messages| latest_text(messages).unwrap();
        for both in [vec![driver(), scheduler(7)], vec![scheduler(7), driver()]] {
            assert!(text(both).contains(NO_BACKEND));
        }
        assert!(text(vec![scheduler(6), driver()]).starts_with("Driver failed"));
        assert!(text(vec![driver(), scheduler(8)]).contains(NO_BACKEND));
        assert_eq!(latest_text(Vec::new()), None);
    }
}
