//! The readiness of a program. Each part of the program sets its own state. Probe, /healthz and
//! gRPC's health service report these states.

use std::sync::Arc;
use tokio::sync::watch;

/// The readiness of one part of a program, such as a driver. Clones of this value refer to the same
/// part. The program is ready if all its parts are ready.
#[derive(Clone, Debug)]
pub struct Readiness {
    parts: Arc<watch::Sender<Vec<State>>>,
    own: usize,
}

/// The state of a part, or of the whole program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The part is starting. Contains the reason why the part is not ready.
    Starting(String),
    /// The part is ready to serve.
    Ready,
    /// The part cannot serve until an operator intervenes. Contains the problem and the remedy, as
    /// a lowercase fragment.
    Unhealthy(String),
}

impl Readiness {
    /// Creates the readiness of a program with one part, whose initial state is this state.
    #[must_use]
    pub fn new(state: State) -> Self {
        Self {
            parts: Arc::new(watch::Sender::new(vec![state])),
            own: 0,
        }
    }

    /// Adds a part with this initial state to the same program.
    #[must_use]
    pub fn part(&self, state: State) -> Self {
        let mut own = 0;
        self.parts.send_modify(|parts| {
            own = parts.len();
            parts.push(state);
        });
        Self {
            parts: Arc::clone(&self.parts),
            own,
        }
    }

    /// Sets the state of this part.
    pub fn set(&self, state: State) {
        self.parts.send_modify(|parts| parts[self.own] = state);
    }

    /// Returns the state of the program, with the reasons of all parts in that state. The program
    /// is unhealthy if any part is unhealthy. If no part is unhealthy, the program is starting if
    /// any part is starting.
    #[must_use]
    pub fn state(&self) -> State {
        let parts = self.parts.borrow();
        let (mut unhealthy, mut starting) = (Vec::new(), Vec::new());
        for part in parts.iter() {
            let (why, reasons) = match part {
                State::Ready => continue,
                State::Starting(why) => (why.as_str(), &mut starting),
                State::Unhealthy(why) => (why.as_str(), &mut unhealthy),
            };
            // If a reason affects the whole program, each of its drivers has set the same reason.
            if !reasons.contains(&why) {
                reasons.push(why);
            }
        }
        match (unhealthy.is_empty(), starting.is_empty()) {
            (false, _) => State::Unhealthy(unhealthy.join("; ")),
            (true, false) => State::Starting(starting.join("; ")),
            (true, true) => State::Ready,
        }
    }

    /// Returns the state of this part, regardless of the other parts.
    #[must_use]
    pub fn own(&self) -> State {
        self.parts.borrow()[self.own].clone()
    }

    /// Whether this part is still starting.
    pub(crate) fn is_starting(&self) -> bool {
        matches!(self.own(), State::Starting(_))
    }

    /// Waits until this part is no longer starting.
    pub(crate) async fn started(&self) {
        let mut parts = self.parts.subscribe();
        let is_over = |parts: &Vec<State>| !matches!(parts[self.own], State::Starting(_));
        // The channel cannot be closed: `self` holds the sender.
        drop(parts.wait_for(is_over).await);
    }

    /// Returns a receiver that is notified whenever a part's state is set, even to the same value.
    pub(crate) fn changes(&self) -> watch::Receiver<Vec<State>> {
        self.parts.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_is_in_the_state_of_its_worst_part() {
        let (waits, broken) = (
            State::Starting("waits".to_owned()),
            State::Unhealthy("broken".to_owned()),
        );
        let whole = Readiness::new(State::Ready);
        assert_eq!(whole.state(), State::Ready);
        let part = whole.part(waits.clone());
        assert_eq!(whole.state(), waits);
        whole.set(broken.clone());
        assert_eq!(part.state(), broken);
        part.set(State::Ready);
        assert_eq!(part.state(), broken);
        assert_eq!((part.own(), whole.own()), (State::Ready, broken));
        whole.set(State::Ready);
        assert_eq!(part.state(), State::Ready);
    }

    #[test]
    fn a_whole_has_the_reason_of_every_part_once() {
        let whole = Readiness::new(State::Ready);
        for why in ["one waits", "both wait", "both wait", "two waits"] {
            drop(whole.part(State::Starting(why.to_owned())));
        }
        let all = "one waits; both wait; two waits".to_owned();
        assert_eq!(whole.state(), State::Starting(all));
        drop(whole.part(State::Unhealthy("broken".to_owned())));
        assert_eq!(whole.state(), State::Unhealthy("broken".to_owned()));
    }

    #[tokio::test]
    async fn a_part_has_started_whatever_the_state_of_the_others() {
        let whole = Readiness::new(State::Ready);
        let part = whole.part(State::Starting("waits".to_owned()));
        let other = whole.part(State::Starting("waits as well".to_owned()));
        assert!(part.is_starting() && other.is_starting() && !whole.is_starting());
        whole.started().await;
        let waiting = tokio::spawn({
            let part = part.clone();
            async move { part.started().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        part.set(State::Unhealthy("broken".to_owned()));
        waiting.await.unwrap();
    }
}
