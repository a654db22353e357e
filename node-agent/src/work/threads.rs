//! The threads of a pool. A thread that has finished its work takes the next work. Tokio alone
//! would start a new thread for work that arrives before the previous thread counts as idle, so
//! that a burst of calls would start several times as many threads as can work at once, each with
//! its own stack. Must not know the limits of the pool.
//!
//! If the system allows no further thread (EAGAIN), Tokio queues the work until a thread stops.
//! This module does not know of that queue, so newer work that it hands to one of its threads runs
//! before the queued work.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use belay_server::call::Failure;
use belay_server::lock::Lock;
use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// Threads that have work, and the work that is queued for them.
#[derive(Default)]
pub(super) struct Threads(Lock<State>);

#[derive(Default)]
struct State {
    /// Work for threads that have finished their previous work. Each item has its own thread, so no
    /// item waits for other work, which may hang.
    next: VecDeque<Work>,
    /// The number of threads that have finished their work and for which `next` has no item.
    free: usize,
}

/// Work that runs on a thread. The work continues if this is dropped.
pub(super) struct Running<T>(oneshot::Receiver<Result<T, Box<dyn Any + Send>>>);

impl<T> Running<T> {
    /// Waits for the result of the work. Safe to cancel: a later call continues to wait.
    ///
    /// # Errors
    /// Returns `INTERNAL` if the work panicked or the agent is shutting down; an effect of the work
    /// may still be in progress.
    pub(super) async fn result(&mut self) -> Result<T, Failure> {
        let why = match (&mut self.0).await {
            Ok(Ok(result)) => return Ok(result),
            // The panic hook has logged the message.
            Ok(Err(_panic)) => "it panicked",
            Err(_) => "the agent is shutting down",
        };
        Err(Failure::bug(format!("an operation ended abnormally: {why}")).may_be_running())
    }
}

impl Threads {
    /// Runs `work` at once, on a free thread or on a new one.
    pub(super) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Running<T> {
        let (sender, receiver) = oneshot::channel();
        let threads = Arc::clone(self);
        let work = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            // Take the lock before the result is sent: the receiver may submit more work at once,
            // and this thread must be free for it.
            let mut state = threads.0.lock();
            if let Err(unread) = sender.send(result) {
                drop(state);
                // The receiver was dropped with its job. Dropping the result here closes its files,
                // which may hang or panic; the thread is not free until that is done.
                drop(catch_unwind(AssertUnwindSafe(|| drop(unread))));
                state = threads.0.lock();
            }
            state.free += 1;
        });
        if let Some(mut work) = self.hand(work) {
            let threads = Arc::clone(self);
            // The join handle is not needed: the work sends its result itself.
            drop(spawn(move || {
                loop {
                    work();
                    match threads.next() {
                        Some(next) => work = next,
                        None => return,
                    }
                }
            }));
        }
        Running(receiver)
    }

    /// Hands the work to a free thread; returns the work if no thread is free.
    fn hand(&self, work: Work) -> Option<Work> {
        let mut state = self.0.lock();
        if state.free == 0 {
            return Some(work);
        }
        state.free -= 1;
        state.next.push_back(work);
        None
    }

    /// Returns the next work of a thread; `None` if the thread must stop, after which it no longer
    /// counts as free.
    fn next(&self) -> Option<Work> {
        let mut state = self.0.lock();
        let next = state.next.pop_front();
        if next.is_none() {
            state.free -= 1;
        }
        next
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the only function that starts threads"
)]
pub(super) fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;
    use tokio::time::timeout;

    /// Performs the steps of a thread one by one, without a real thread.
    fn work(threads: &Arc<Threads>) -> Option<Work> {
        let ended = Arc::clone(threads);
        threads.hand(Box::new(move || ended.0.lock().free += 1))
    }

    #[test]
    fn each_free_thread_takes_one_work_and_the_others_get_new_ones() {
        let threads = Arc::new(Threads::default());
        let [first, second] = [work(&threads), work(&threads)].map(|it| it.expect("a new thread"));
        first();
        assert!(work(&threads).is_none(), "the first thread is free");
        let other = work(&threads).expect("the first thread has its next work");
        second();
        // The work goes to the thread that asks first.
        let third = threads.next().expect("the next work");
        assert!(threads.next().is_none(), "the second thread stops");
        let fourth = work(&threads).expect("both threads are busy or gone");
        for work in [other, third, fourth] {
            work();
            assert!(threads.next().is_none());
        }
        assert_eq!(threads.0.lock().free, 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn all_work_is_done_however_it_is_handed_on() {
        let (threads, done) = (Arc::new(Threads::default()), Arc::new(AtomicU32::new(0)));
        let callers = (0..8).map(|_| {
            let (threads, done) = (Arc::clone(&threads), Arc::clone(&done));
            tokio::spawn(async move {
                for n in 0..500 {
                    let done = Arc::clone(&done);
                    let count = move || {
                        done.fetch_add(1, Ordering::Relaxed);
                        n
                    };
                    assert_eq!(threads.run(count).result().await, Ok(n));
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        assert_eq!(done.load(Ordering::Relaxed), 4_000);
    }

    /// A value whose drop waits until it is released, and then panics.
    struct Stubborn {
        dropping: mpsc::Sender<()>,
        released: mpsc::Receiver<()>,
    }

    impl Drop for Stubborn {
        fn drop(&mut self) {
            self.dropping.send(()).unwrap();
            self.released.recv().expect("on purpose");
        }
    }

    #[tokio::test]
    async fn an_unread_result_that_hangs_or_panics_holds_up_no_other_work() {
        let threads = Arc::new(Threads::default());
        let (begin, begun) = mpsc::channel::<()>();
        let (dropping, drops) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let stubborn = Stubborn { dropping, released };
        drop(threads.run(move || {
            begun.recv().unwrap_err();
            stubborn
        }));
        // The work ends after its receiver was dropped, so its result is never received.
        drop(begin);
        drops.recv().unwrap();
        assert_eq!(threads.0.lock().free, 0, "it hangs");
        let mut other = threads.run(|| 7);
        let other = timeout(Duration::from_secs(60), other.result()).await;
        assert_eq!(other.expect("it waits for the result that hangs"), Ok(7));
        drop(release);
        assert_eq!(threads.run(|| 8).result().await, Ok(8));
    }

    #[tokio::test]
    async fn work_that_panics_is_a_bug_and_its_thread_works_on() {
        let threads = Arc::new(Threads::default());
        let failure = threads
            .run(|| -> u8 { panic!("on purpose") })
            .result()
            .await;
        let failure = failure.unwrap_err();
        assert!(failure.message.contains("it panicked"), "{failure}");
        assert_eq!(threads.run(|| 7).result().await, Ok(7));
    }
}
