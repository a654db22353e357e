//! Read-only calls have a deadline: storage that does not respond is reported, and no longer waited
//! for. Calls that change something are jobs, which continue past their deadline.

use belay_server::call::Failure;
use std::time::Duration;

/// Maximum duration of a read-only call, as in the node agent. The sidecars wait 15 s or more.
const DEADLINE: Duration = Duration::from_secs(10);

/// The backend's response to a query about `what`.
///
/// # Errors
/// `Timeout` at the deadline, else those of the backend.
pub(super) async fn enforce<T>(
    what: &str,
    asked: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let answer = tokio::time::timeout(DEADLINE, asked).await;
    answer.unwrap_or_else(|_| {
        Err(Failure::timeout(format!(
            "{what}: the storage has not answered for {} s; check it (a disk of this node: the \
             kernel log; a cloud: its endpoint and the network), and repeat the call later",
            DEADLINE.as_secs()
        )))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Kind;

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_than_the_deadline_is_a_timeout_that_names_what_was_asked() {
        let silent = std::future::pending::<Result<(), Failure>>();
        let failure = enforce("volume vol-1", silent).await.unwrap_err();
        assert_eq!(failure.kind, Kind::Timeout);
        assert!(failure.message.starts_with("volume vol-1: "), "{failure}");
        let slow = async {
            tokio::time::sleep(DEADLINE - Duration::from_millis(1)).await;
            Ok(7)
        };
        assert_eq!(enforce("volume vol-1", slow).await, Ok(7));
        let refused = async { Err::<(), _>(Failure::not_found("volume vol-1: not found")) };
        let failure = enforce("volume vol-1", refused).await.unwrap_err();
        assert_eq!(failure.kind, Kind::NotFound);
    }
}
