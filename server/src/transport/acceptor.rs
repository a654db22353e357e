//! Accepts connections to one listener, and limits their number. If there are too many connections,
//! a connection without a running call is closed in favour of a new connection, so that no client
//! can lock out other clients by keeping connections open. This module does not depend on the
//! protocol.

use crate::lock::Lock;
use metrics::Counter;
use std::cmp::Reverse;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The pause after a failed accept(2), whose cause is nearly always a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Counter: connections closed in favour of a new connection, by `listener`.
const CLOSED: &str = "belay_connections_closed_total";

/// Accepts connections.
pub(crate) struct Acceptor {
    /// The name of the listener, for the log and the metrics.
    name: &'static str,
    table: Arc<Table>,
    closed: Counter,
    is_stuck: bool,
}

/// All connections of an acceptor.
struct Table {
    max: usize,
    slots: Lock<Vec<Arc<Slot>>>,
    /// Notified when a connection or a call ends.
    freed: Notify,
}

/// The acceptor's data about one connection.
struct Slot {
    table: Arc<Table>,
    source: Option<IpAddr>,
    usage: Lock<Usage>,
    is_unwanted: watch::Sender<bool>,
}

struct Usage {
    /// The time at which the connection was accepted, or at which its last call ended.
    since: Instant,
    /// Number of requests without a response.
    calls: usize,
}

impl Acceptor {
    /// Creates an acceptor of at most `max` connections at a time.
    pub(crate) fn new(name: &'static str, max: usize) -> Self {
        metrics::describe_counter!(CLOSED, "Connections closed to make room for new ones.");
        Self {
            name,
            table: Arc::new(Table {
                max,
                slots: Lock::default(),
                freed: Notify::new(),
            }),
            closed: metrics::counter!(CLOSED, "listener" => name),
            is_stuck: false,
        }
    }

    /// Accepts the next connection. Returns the connection with its slot, which is freed when the
    /// slot is dropped. If there is no free slot, waits only while every open connection has a
    /// running call.
    pub(crate) async fn next<C, F>(&mut self, accept: impl Fn() -> F) -> (C, Connection)
    where
        F: Future<Output = io::Result<(C, Option<IpAddr>)>>,
    {
        self.table.room().await;
        loop {
            match accept().await {
                Ok((connection, source)) => {
                    if std::mem::take(&mut self.is_stuck) {
                        tracing::info!(at = self.name, "accepting connections again");
                    }
                    return (connection, self.enter(source));
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

    fn enter(&self, source: Option<IpAddr>) -> Connection {
        let slot = Arc::new(Slot {
            table: Arc::clone(&self.table),
            source,
            usage: Lock::new(Usage {
                since: Instant::now(),
                calls: 0,
            }),
            is_unwanted: watch::Sender::new(false),
        });
        let mut slots = self.table.slots.lock();
        if slots.len() >= self.table.max
            && let Some(victim) = least_in_use(&slots)
        {
            slots.remove(victim).is_unwanted.send_replace(true);
            self.closed.increment(1);
        }
        slots.push(Arc::clone(&slot));
        Connection(slot)
    }
}

impl Table {
    /// Waits until a further connection may be accepted.
    async fn room(&self) {
        if self.slots.lock().len() < self.max {
            return;
        }
        // Give the latest connections time to read their requests before one of them is closed. In
        // the first turn, the runtime polls for received data. In the second turn, the connections
        // read the data.
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
        while !self.has_room() {
            self.freed.notified().await;
        }
    }

    fn has_room(&self) -> bool {
        let slots = self.slots.lock();
        slots.len() < self.max || slots.iter().any(|slot| slot.is_idle())
    }
}

/// Returns the index of the connection without a running call that must be closed for a new
/// connection. Among the addresses with the most connections, selects the connection that has been
/// idle for the longest time.
fn least_in_use(slots: &[Arc<Slot>]) -> Option<usize> {
    let crowd = |source: IpAddr| {
        let same = slots.iter().filter(|slot| slot.source == Some(source));
        same.count()
    };
    let idle = slots.iter().enumerate().filter(|(_, slot)| slot.is_idle());
    idle.min_by_key(|(_, slot)| {
        let crowd = slot.source.map_or(0, crowd);
        (Reverse(crowd), slot.usage.lock().since)
    })
    .map(|(index, _)| index)
}

impl Slot {
    fn is_idle(&self) -> bool {
        self.usage.lock().calls == 0
    }
}

/// The slot of an open connection.
pub(crate) struct Connection(Arc<Slot>);

impl Connection {
    /// Waits until the connection must be closed in favour of a new connection.
    pub(crate) async fn unwanted(&self) {
        let mut changes = self.0.is_unwanted.subscribe();
        // The slot holds the sender, so the channel is open.
        drop(changes.wait_for(|is_unwanted| *is_unwanted).await);
    }

    /// Returns the counter of the connection's calls.
    pub(crate) fn calls(&self) -> Calls {
        Calls(Arc::clone(&self.0))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let table = &self.0.table;
        table
            .slots
            .lock()
            .retain(|slot| !Arc::ptr_eq(slot, &self.0));
        table.freed.notify_one();
    }
}

/// Counts the calls on a connection. While a call is running, the connection is not closed in
/// favour of a new connection.
#[derive(Clone)]
pub(crate) struct Calls(Arc<Slot>);

impl Calls {
    /// Records that a request has begun to arrive.
    pub(crate) fn begin(&self) -> OpenCall {
        self.0.usage.lock().calls += 1;
        OpenCall(Arc::clone(&self.0))
    }
}

/// A running call, which ends when this value is dropped.
pub(crate) struct OpenCall(Arc<Slot>);

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut usage = self.0.usage.lock();
        usage.calls -= 1;
        usage.since = Instant::now();
        drop(usage);
        self.0.table.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use std::cell::Cell;
    use std::io::Read as _;

    const ATTACKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));
    const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    async fn next_from(acceptor: &mut Acceptor, source: Option<IpAddr>) -> Connection {
        let accept = || std::future::ready(Ok(((), source)));
        acceptor.next(accept).await.1
    }

    async fn next(acceptor: &mut Acceptor) -> Connection {
        next_from(acceptor, None).await
    }

    fn is_unwanted(connection: &Connection) -> bool {
        connection.unwanted().now_or_never().is_some()
    }

    fn unwanted(connections: &[Connection]) -> Vec<usize> {
        let numbered = connections.iter().enumerate();
        let unwanted = numbered.filter(|(_, connection)| is_unwanted(connection));
        unwanted.map(|(number, _)| number).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_acceptor_that_is_stuck_logs_it_once_and_logs_its_recovery() {
        let (mut lines, writer) = io::pipe().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(std::sync::Mutex::new(writer))
            .without_time()
            .finish();
        let log = tracing::subscriber::set_default(subscriber);
        let left = Cell::new(20);
        let accept = || {
            left.set(left.get() - 1);
            std::future::ready(match left.get() {
                0 => Ok(("in", None)),
                _ => Err(io::Error::other("too many open files")),
            })
        };
        let mut acceptor = Acceptor::new("csi", 1);
        assert_eq!(acceptor.next(accept).await.0, "in");
        drop(log);
        let mut log = String::new();
        lines.read_to_string(&mut log).unwrap();
        let lines: Vec<_> = log.lines().collect();
        let [stuck, again] = lines.as_slice() else {
            panic!("{lines:?}")
        };
        assert!(stuck.contains("too many open files"), "{stuck}");
        assert!(again.contains("accepting connections again"), "{again}");
    }

    #[tokio::test]
    async fn the_connection_idle_for_longest_is_closed_for_a_new_one() {
        let mut acceptor = Acceptor::new("csi", 3);
        let mut all = vec![next(&mut acceptor).await];
        all.push(next(&mut acceptor).await);
        all.push(next(&mut acceptor).await);
        assert_eq!(unwanted(&all), [] as [usize; 0]);
        // The first connection was used since, so the second connection has been idle for the
        // longest time.
        drop(all[0].calls().begin());
        all.push(next(&mut acceptor).await);
        assert_eq!(unwanted(&all), [1]);
        all.remove(1);
        all.push(next(&mut acceptor).await);
        assert_eq!(unwanted(&all), [1]);
    }

    #[tokio::test]
    async fn a_connection_is_not_closed_while_a_call_runs_on_it() {
        let mut acceptor = Acceptor::new("csi", 2);
        let (first, second) = (next(&mut acceptor).await, next(&mut acceptor).await);
        let running = first.calls().begin();
        let third = next(&mut acceptor).await;
        assert!(!is_unwanted(&first) && is_unwanted(&second));
        drop(running);
        let _fourth = next(&mut acceptor).await;
        assert!(!is_unwanted(&first) && is_unwanted(&third));
    }

    #[tokio::test]
    async fn if_calls_run_on_all_connections_the_next_one_waits_for_the_end_of_one() {
        let mut acceptor = Acceptor::new("csi", 2);
        let mut all = Vec::new();
        for _ in 0..2 {
            let connection = next(&mut acceptor).await;
            let call = connection.calls().begin();
            all.push((connection, call));
        }
        assert!(next(&mut acceptor).now_or_never().is_none());
        all.pop();
        let third = next(&mut acceptor).await;
        assert!(!is_unwanted(&third) && !is_unwanted(&all[0].0));
    }

    #[tokio::test]
    async fn a_connection_whose_call_ends_is_closed_for_the_one_that_waits() {
        let mut acceptor = Acceptor::new("csi", 1);
        let first = next(&mut acceptor).await;
        let call = first.calls().begin();
        let mut second = Box::pin(next(&mut acceptor));
        assert!(second.as_mut().now_or_never().is_none());
        drop(call);
        second.await;
        assert!(is_unwanted(&first));
    }

    #[tokio::test]
    async fn an_address_with_many_connections_loses_one_of_its_own() {
        let mut acceptor = Acceptor::new("http", 3);
        let probe = next_from(&mut acceptor, Some(NODE)).await;
        let mut others = Vec::new();
        for _ in 0..3 {
            others.push(next_from(&mut acceptor, Some(ATTACKER)).await);
        }
        assert!(!is_unwanted(&probe));
        assert_eq!(unwanted(&others), [0]);
    }
}
