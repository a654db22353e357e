//! How long a waiting job tolerates storage that does not respond.

use belay_server::call::{Failure, Kind};
use std::time::Duration;
use tokio::time::Instant;

/// Longer than a restart of the storage's own services. A call repeated later starts with a search.
const OUTAGE_MAX: Duration = Duration::from_secs(30);

/// Consecutive failures, without a response between them.
#[derive(Debug, Default)]
pub(super) struct Outage(Option<Instant>);

impl Outage {
    /// Counts a failure.
    ///
    /// # Errors
    /// The failure, with an unknown state, if it is permanent or has persisted for too long.
    pub(super) fn bear(&mut self, failure: Failure) -> Result<(), Failure> {
        let since = *self.0.get_or_insert_with(Instant::now);
        match passes(failure.kind) && since.elapsed() < OUTAGE_MAX {
            true => Ok(()),
            false => Err(failure.may_be_running()),
        }
    }

    /// The storage has responded.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }
}

/// Whether the same call may succeed later, without intervention.
fn passes(kind: Kind) -> bool {
    match kind {
        Kind::Busy | Kind::Unreachable | Kind::Timeout | Kind::System => true,
        Kind::Invalid
        | Kind::NotFound
        | Kind::Incompatible
        | Kind::Precondition
        | Kind::Range
        | Kind::Quota
        | Kind::Unsupported
        | Kind::BadToken
        | Kind::Unauthenticated
        | Kind::Denied
        | Kind::Bug => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Certainty;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_borne_for_a_while_and_an_answer_ends_it() {
        let mut outage = Outage::default();
        let down = || Failure::new(Kind::Unreachable, "connection refused");
        for _ in 0..2 {
            outage.bear(down()).unwrap();
            advance(OUTAGE_MAX - Duration::from_millis(1)).await;
            outage.bear(down()).unwrap();
            outage.end();
        }
        outage.bear(down()).unwrap();
        advance(OUTAGE_MAX).await;
        let failure = outage.bear(down()).unwrap_err();
        assert_eq!(failure.certainty, Certainty::MayBeRunning);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_does_not_pass_is_not_borne() {
        let refused = Failure::precondition("401");
        let failure = Outage::default().bear(refused.clone()).unwrap_err();
        assert_eq!(failure, refused.may_be_running());
    }
}
