//! Shares reads from a cloud between concurrent calls. Calls that begin during a round of reads
//! share the reads of the next round, so a hundred concurrent calls need few reads.

use belay_server::call::Failure;
use belay_server::lock::Lock;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Maximum time for which a round delays the next round. If a response takes longer, only the
/// callers in that round wait until it arrives.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// A storage service whose reads can serve several calls together.
pub(in crate::backend) trait Reads: Sized + Send + Sync + 'static {
    /// The query of a call.
    type Of: Send;
    /// The result of a call.
    type Output: Send;

    /// Reads the results for these callers, and sends them. `callers` is not empty.
    fn serve(self: Arc<Self>, callers: Vec<Caller<Self>>) -> impl Future<Output = ()> + Send;
}

/// A call that waits for its result.
pub(in crate::backend) struct Caller<R: Reads> {
    pub(in crate::backend) of: R::Of,
    answer: oneshot::Sender<Result<R::Output, Failure>>,
}

impl<R: Reads> Caller<R> {
    pub(in crate::backend) fn answer(self, found: Result<R::Output, Failure>) {
        // Ignore the error: the caller may have stopped waiting.
        drop(self.answer.send(found));
    }
}

/// Sends the same result to all callers, success or failure.
pub(in crate::backend) fn answer_all<R>(callers: Vec<Caller<R>>, found: &Result<R::Output, Failure>)
where
    R: Reads<Output: Clone>,
{
    for caller in callers {
        caller.answer(found.clone());
    }
}

/// The queue of calls, which are served in rounds.
pub(in crate::backend) struct Rounds<R: Reads>(Arc<Shared<R>>);

struct Shared<R: Reads> {
    reads: Arc<R>,
    state: Lock<State<R>>,
}

struct State<R: Reads> {
    waiting: Vec<Caller<R>>,
    /// Whether a task is serving the calls.
    runs: bool,
}

impl<R: Reads> Rounds<R> {
    pub(in crate::backend) fn new(reads: R) -> Self {
        Self(Arc::new(Shared {
            reads: Arc::new(reads),
            state: Lock::new(State {
                waiting: Vec::new(),
                runs: false,
            }),
        }))
    }

    /// Returns the result of a read that begins after this call.
    pub(in crate::backend) async fn next(&self, of: R::Of) -> Result<R::Output, Failure> {
        let (answer, found) = oneshot::channel();
        {
            let mut state = self.0.state.lock();
            state.waiting.push(Caller { of, answer });
            if !state.runs {
                state.runs = true;
                tokio::spawn(Arc::clone(&self.0).run());
            }
        }
        let lost = |_| Err(Failure::bug("a read ended without an answer"));
        found.await.unwrap_or_else(lost)
    }
}

impl<R: Reads> Shared<R> {
    /// Runs rounds until no call is waiting.
    async fn run(self: Arc<Self>) {
        loop {
            let Some(callers) = self.state.lock().callers() else {
                return;
            };
            let round = tokio::spawn(Arc::clone(&self.reads).serve(callers));
            // Ignore the result: the callers have received the errors of the round.
            drop(timeout(ROUND_MAX, round).await);
        }
    }
}

impl<R: Reads> State<R> {
    /// Returns the callers of the next round; `None` if no caller is waiting, which ends the task.
    fn callers(&mut self) -> Option<Vec<Caller<R>>> {
        self.waiting.retain(|caller| !caller.answer.is_closed());
        self.runs = !self.waiting.is_empty();
        self.runs.then(|| std::mem::take(&mut self.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, sleep};

    /// Storage that takes this time and returns the number of the round.
    struct Numbered(Duration, Lock<Vec<Vec<char>>>);

    impl Reads for Numbered {
        type Of = char;
        type Output = usize;

        async fn serve(self: Arc<Self>, callers: Vec<Caller<Self>>) {
            let of = callers.iter().map(|caller| caller.of).collect();
            let number = {
                let mut rounds = self.1.lock();
                rounds.push(of);
                rounds.len()
            };
            sleep(self.0).await;
            answer_all(callers, &Ok(number));
        }
    }

    fn numbered(seconds: u64) -> Rounds<Numbered> {
        let takes = Duration::from_secs(seconds);
        Rounds::new(Numbered(takes, Lock::default()))
    }

    fn served(rounds: &Rounds<Numbered>) -> Vec<Vec<char>> {
        rounds.0.reads.1.lock().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn calls_at_one_time_share_a_round() {
        let rounds = numbered(0);
        for number in 1..=2 {
            let all = tokio::join!(rounds.next('a'), rounds.next('b'));
            assert_eq!(all, (Ok(number), Ok(number)));
        }
        assert_eq!(served(&rounds), [['a', 'b'], ['a', 'b']]);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_come_while_a_round_runs_share_the_next_one_which_waits_a_second() {
        let rounds = numbered(20);
        let begun = Instant::now();
        let late = async {
            let moment = Duration::from_millis(1);
            sleep(moment).await;
            let left = timeout(moment, rounds.next('x')).await;
            assert!(left.is_err(), "it stops waiting before its round");
            tokio::join!(rounds.next('b'), rounds.next('c'))
        };
        let (first, (second, third)) = tokio::join!(rounds.next('a'), late);
        assert_eq!((first, second, third), (Ok(1), Ok(2), Ok(2)));
        assert_eq!(served(&rounds), [vec!['a'], vec!['b', 'c']]);
        assert_eq!(begun.elapsed().as_secs(), 21);
    }
}
