//! Why a volume or a snapshot has failed, in the cloud's own words.

use super::Cloud;
use super::wire::Message;
use crate::backend::Phase;
use belay_server::call::Kind;

/// In Cinder's message if no backend could be chosen for a volume: of its type, in its zone, with
/// room (`cinder/message/message_field.py`).
pub(super) const NO_BACKEND: &str = "any available weighted backend";

impl Cloud {
    /// Adds Cinder's message to the failure of a phase.
    pub(super) async fn explain(&self, id: &str, phase: &mut Phase) {
        let Phase::Failed(why) = phase else { return };
        let Some(message) = self.client.messages(id).await.and_then(latest) else {
            return;
        };
        if message.contains(NO_BACKEND) {
            // The scheduler may choose a node elsewhere.
            why.kind = Kind::Quota;
        }
        why.message = format!("{}; the latest says {message:?}", why.message);
    }
}

/// The latest message. Cinder's times have seconds, and a backend may fail in the second in which
/// the scheduler finds no other one: its word is the later one.
fn latest(messages: Vec<Message>) -> Option<String> {
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
        let text = |messages| latest(messages).unwrap();
        for both in [vec![driver(), scheduler(7)], vec![scheduler(7), driver()]] {
            assert!(text(both).contains(NO_BACKEND));
        }
        assert!(text(vec![scheduler(6), driver()]).starts_with("Driver failed"));
        assert!(text(vec![driver(), scheduler(8)]).contains(NO_BACKEND));
        assert_eq!(latest(Vec::new()), None);
    }
}
