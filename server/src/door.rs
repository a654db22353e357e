//! The way into a server: so many connections at a time, and one line when it stops to work and one
//! when it works again. Knows nothing of what is spoken behind it.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The pause after a failed accept, which is nearly always a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Lets connections in.
#[derive(Debug)]
pub(crate) struct Door {
    /// What is connected to, for the log.
    name: &'static str,
    places: Arc<Semaphore>,
    is_stuck: bool,
}

impl Door {
    /// For at most `places` connections at a time; more wait in the queue of the kernel.
    pub(crate) fn new(name: &'static str, places: usize) -> Self {
        Self {
            name,
            places: Arc::new(Semaphore::new(places)),
            is_stuck: false,
        }
    }

    /// The next connection, and its place, which is free again once that is dropped.
    pub(crate) async fn next<C, F>(
        &mut self,
        accept: impl Fn() -> F,
    ) -> (C, Option<OwnedSemaphorePermit>)
    where
        F: Future<Output = io::Result<C>>,
    {
        // The semaphore is never closed, so there is always a place in the end.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        loop {
            match accept().await {
                Ok(connection) => {
                    if std::mem::take(&mut self.is_stuck) {
                        tracing::info!(at = self.name, "connections are accepted again");
                    }
                    return (connection, place);
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.is_stuck, true) {
                        tracing::warn!(at = self.name, %error, "cannot accept connections");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use std::cell::Cell;
    use std::io::Read as _;
    use std::sync::Mutex;

    #[tokio::test(start_paused = true)]
    async fn a_door_that_is_stuck_says_so_once_and_once_more_when_it_is_not() {
        let (mut lines, writer) = io::pipe().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(Mutex::new(writer))
            .without_time()
            .finish();
        let log = tracing::subscriber::set_default(subscriber);
        let left = Cell::new(20);
        let accept = || {
            left.set(left.get() - 1);
            std::future::ready(match left.get() {
                0 => Ok("in"),
                _ => Err(io::Error::other("too many open files")),
            })
        };
        let mut door = Door::new("the socket", 1);
        assert_eq!(door.next(accept).await.0, "in");
        drop(log);
        let mut log = String::new();
        lines.read_to_string(&mut log).unwrap();
        let lines: Vec<_> = log.lines().collect();
        let [stuck, again] = lines.as_slice() else {
            panic!("{lines:?}")
        };
        assert!(stuck.contains("too many open files"), "{stuck}");
        assert!(again.contains("accepted again"), "{again}");
    }

    #[tokio::test]
    async fn a_place_is_free_again_when_its_connection_has_ended() {
        let mut door = Door::new("the socket", 1);
        let accept = || std::future::ready(Ok(()));
        let first = door.next(accept).await;
        assert!(door.next(accept).now_or_never().is_none());
        drop(first);
        assert!(door.next(accept).now_or_never().is_some());
    }
}
