//! The threads of a pool. A thread that has finished its work runs the next work. Without this
//! module, Tokio would start a new thread if work arrives before Tokio considers the previous
//! thread idle. A burst of calls would then start several times as many threads as there are slots,
//! each with a separate stack. This module must not depend on the limits of the pool.
//!
//! If the system does not allow a further thread (EAGAIN), Tokio queues the work until a thread
//! stops. This module cannot access Tokio's queue, so newer work may run on an existing thread
//! before the queued work.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use belay_server::call::Failure;
use belay_server::lock::Lock;
use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// The threads of a pool, and the work that is queued for these threads.
#[derive(Default)]
pub(super) struct Threads(Lock<State>);

#[derive(Default)]
struct State {
    /// Work for threads that have finished their previous work. There is one such thread for each
    /// item, so no item waits for other work, which may hang.
    next: VecDeque<Work>,
    /// The number of threads that have finished their work and for which there is no item in
    /// `next`.
    free: usize,
}

/// A handle to work that runs on a thread. The work continues if the handle is dropped.
pub(super) struct Running<T>(oneshot::Receiver<Result<T, Box<dyn Any + Send>>>);

impl<T> Running<T> {
    /// Waits for the result of the work. This function is cancel safe: a later call continues to
    /// wait.
    ///
    /// # Errors
    /// Returns `INTERNAL` if the work panicked or the agent is shutting down; changes by the work
    /// may then still be in progress.
    pub(super) async fn result(&mut self) -> Result<T, Failure> {
        let why = match (&mut self.0).await {
            Ok(Ok(result)) => return Ok(result),
            // The panic hook has already logged the panic message.
            Ok(Err(_panic)) => "it panicked",
            Err(_) => "the agent is shutting down",
        };
        Err(Failure::bug(format!("an operation ended abnormally: {why}")).may_be_running())
    }
}

impl Threads {
    /// Runs `work` immediately, on a free thread or on a new thread.
    pub(super) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Running<T> {
        let (sender, receiver) = oneshot::channel();
        let threads = Arc::clone(self);
        let work = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            // Take the lock before the result is sent: the receiver may immediately submit new
            // work, and this thread must then count as free.
            let mut state = threads.0.lock();
            if let Err(unread) = sender.send(result) {
                drop(state);
                // The receiver was dropped together with its job. Dropping the result here closes
                // files, which may hang or panic; the thread is not free until the result is
                // dropped.
                drop(catch_unwind(AssertUnwindSafe(|| drop(unread))));
                state = threads.0.lock();
            }
            state.free += 1;
        });
        if let Some(mut work) = self.hand(work) {
            let threads = Arc::clone(self);
            // The join handle is not needed, because the work itself sends its result.
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

    /// Queues the work for a free thread; returns the work if no thread is free.
    fn hand(&self, work: Work) -> Option<Work> {
        let mut state = self.0.lock();
        if state.free == 0 {
            return Some(work);
        }
        state.free -= 1;
        state.next.push_back(work);
        None
    }

    /// Returns the next work for a thread that has finished its work. Returns `None` if no work is
    /// queued; the thread must then stop, and is no longer counted as free.
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

    /// Submits work without a real thread, so that a test can perform the steps of each thread.
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
        // The first thread that calls `next` gets the work.
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

    /// A value that, when dropped, waits until the test releases it, and then panics.
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
