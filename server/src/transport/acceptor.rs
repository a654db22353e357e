//! Accepts and limits connections to one listener: if there are too many, the least used is closed
//! for a new one, so that no client can lock others out by holding connections. Does not know the
//! protocol.

use crate::call::Record;
use crate::lock::Lock;
use metrics::Counter;
use std::cmp::Reverse;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

/// The pause after a failed accept, which is nearly always a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Minimum time between two log lines about closed connections: an attacker must not fill the log.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Connections that are shutting down may exceed the maximum by one in this many, so that a new
/// connection never waits for the end of an old one.
const CLOSING_SHARE: usize = 4;

/// Maximum number of lists of a connection that run or are not sent completely; further ones wait.
/// A list of 10,000 volumes has some 200 KiB, and a client that does not read would otherwise hold
/// one for each of its streams.
const LISTS_MAX: usize = 2;

/// Counter: connections closed to make room, by `listener`.
const CLOSED: &str = "belay_connections_closed_total";

/// Accepts connections.
#[derive(Debug)]
pub(crate) struct Acceptor {
    /// The listener, for the log and the metrics.
    name: &'static str,
    table: Arc<Table>,
    closed: Counter,
    is_stuck: bool,
    warned: Option<Instant>,
}

/// All connections of an acceptor.
#[derive(Debug)]
struct Table {
    max: usize,
    slots: Lock<Vec<Arc<Slot>>>,
    freed: Notify,
}

/// The acceptor's view of one connection.
#[derive(Debug)]
struct Slot {
    source: Option<IpAddr>,
    usage: Lock<Usage>,
    stay: watch::Sender<Stay>,
    lists: Semaphore,
}

#[derive(Debug)]
struct Usage {
    /// The last change: accepted, request received, or response sent.
    since: Instant,
    is_answering: bool,
    /// Requests without a response. A request without a handler has not arrived in full.
    calls: Vec<Record>,
}

/// Whether a connection may stay open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stay {
    Open,
    /// Shutting down; running calls may finish.
    Leave,
    /// Closed at once.
    Cut,
}

impl Acceptor {
    /// Creates an acceptor of at most `max` connections at a time, plus a few that are shutting
    /// down.
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
            warned: None,
        }
    }

    /// Returns the next connection, and its slot, which is freed when dropped. Waits for other
    /// connections only while each of them has a running call.
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

    fn enter(&mut self, source: Option<IpAddr>) -> Connection {
        let slot = Arc::new(Slot {
            source,
            usage: Lock::new(Usage {
                since: Instant::now(),
                is_answering: false,
                calls: Vec::new(),
            }),
            stay: watch::Sender::new(Stay::Open),
            lists: Semaphore::new(LISTS_MAX),
        });
        if self.table.enter(&slot) {
            self.closed.increment(1);
            self.warn();
        }
        Connection {
            slot,
            table: Arc::clone(&self.table),
        }
    }

    fn warn(&mut self) {
        if self
            .warned
            .is_some_and(|at| at.elapsed() < WARNING_INTERVAL)
        {
            return;
        }
        self.warned = Some(Instant::now());
        let max = self.table.max;
        tracing::warn!(
            at = self.name,
            max,
            "too many connections: the least used are closed for new ones"
        );
    }
}

impl Table {
    /// Returns when another connection may be accepted.
    async fn room(&self) {
        if self.slots.lock().len() < self.max {
            return;
        }
        // Lets the latest connections be polled before one of them is closed: in the first turn the
        // runtime sees what has arrived, in the second the connections read it.
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
        loop {
            // Created before the check, so that no slot freed after the check is missed.
            let freed = self.freed.notified();
            if self.has_room() {
                return;
            }
            freed.await;
        }
    }

    fn has_room(&self) -> bool {
        let slots = self.slots.lock();
        slots.len() < self.max + self.max / CLOSING_SHARE
            || slots.iter().any(|slot| slot.rank().is_some())
    }

    /// Adds a connection. Returns whether another connection had to be closed for it.
    fn enter(&self, new: &Arc<Slot>) -> bool {
        let mut slots = self.slots.lock();
        if slots.len() >= self.max + self.max / CLOSING_SHARE {
            cut_oldest(&slots);
        }
        let open = slots.iter().filter(|slot| slot.is_open()).count();
        let victim = (open >= self.max).then(|| least_in_use(&slots)).flatten();
        if let Some(victim) = victim {
            victim.stay.send_replace(Stay::Leave);
        }
        let has_victim = victim.is_some();
        slots.push(Arc::clone(new));
        has_victim
    }

    fn leave(&self, gone: &Arc<Slot>) {
        self.slots.lock().retain(|slot| !Arc::ptr_eq(slot, gone));
        self.freed.notify_one();
    }
}

/// Returns the connection to close for a new one: an idle connection, or if there is none, one
/// whose response is being sent. Chooses an address with the most connections, and of its
/// connections the one that has been in this state for longest.
fn least_in_use(slots: &[Arc<Slot>]) -> Option<&Arc<Slot>> {
    let crowd = |source: IpAddr| {
        let same = slots.iter().filter(|slot| slot.source == Some(source));
        same.count()
    };
    slots
        .iter()
        .filter(|slot| slot.is_open())
        .filter_map(|slot| Some((slot, slot.rank()?)))
        .min_by_key(|(slot, rank)| {
            let crowd = slot.source.map_or(0, crowd);
            (*rank, Reverse(crowd), slot.usage.lock().since)
        })
        .map(|(slot, _)| slot)
}

/// Closes at once the connection that was accepted first of those that are shutting down without a
/// running call.
fn cut_oldest(slots: &[Arc<Slot>]) {
    let is_leaving = |slot: &&Arc<Slot>| slot.stay() == Stay::Leave && slot.rank().is_some();
    if let Some(oldest) = slots.iter().find(is_leaving) {
        oldest.stay.send_replace(Stay::Cut);
    }
}

impl Slot {
    fn stay(&self) -> Stay {
        *self.stay.borrow()
    }

    fn is_open(&self) -> bool {
        self.stay() == Stay::Open
    }

    /// Returns the rank of the connection: the lower, the sooner it is closed. `None` if it must
    /// not be closed, since a call is running.
    fn rank(&self) -> Option<bool> {
        let usage = self.usage.lock();
        let is_running = usage.calls.iter().any(|call| call.subject().is_some());
        (!is_running).then_some(usage.is_answering)
    }

    async fn until(&self, stay: Stay) {
        let mut changes = self.stay.subscribe();
        // `self` holds the sender, so the channel is open.
        drop(changes.wait_for(|now| *now >= stay).await);
    }
}

/// The slot of an open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    slot: Arc<Slot>,
    table: Arc<Table>,
}

impl Connection {
    /// Returns when the connection should be closed to make room.
    pub(crate) async fn unwanted(&self) {
        self.slot.until(Stay::Leave).await;
    }

    /// Returns when the connection must be closed at once.
    pub(crate) async fn cut(&self) {
        self.slot.until(Stay::Cut).await;
    }

    /// Records that a request has arrived on this connection, and that its response is being sent.
    /// If connections must be closed to make room, idle ones are closed first.
    pub(crate) fn answers(&self) {
        let mut usage = self.slot.usage.lock();
        usage.is_answering = true;
        usage.since = Instant::now();
    }

    /// Whether a call that has arrived in full is running.
    pub(crate) fn is_running(&self) -> bool {
        self.slot.rank().is_none()
    }

    /// Returns the counter of the connection's calls.
    pub(crate) fn calls(&self) -> Calls {
        Calls(Arc::clone(&self.slot))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.table.leave(&self.slot);
    }
}

/// Counts the calls on a connection, which is not closed for others while a call runs.
#[derive(Clone, Debug)]
pub(crate) struct Calls(Arc<Slot>);

impl Calls {
    /// Records that a request has begun to arrive. Its handler must get the record, see
    /// [`OpenCall::record`].
    pub(crate) fn begin(&self) -> OpenCall {
        let record = Record::default();
        self.0.usage.lock().calls.push(record.clone());
        OpenCall {
            slot: Arc::clone(&self.0),
            record,
        }
    }

    /// Returns when the connection may begin another list.
    pub(crate) async fn list_turn(&self) -> ListTurn {
        match self.0.lists.acquire().await {
            // `ListTurn` returns the permit when it is dropped.
            Ok(permit) => permit.forget(),
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        }
        ListTurn(Arc::clone(&self.0))
    }
}

/// The turn of a list on a connection, which ends when dropped.
#[derive(Debug)]
pub(crate) struct ListTurn(Arc<Slot>);

impl Drop for ListTurn {
    fn drop(&mut self) {
        self.0.lists.add_permits(1);
    }
}

/// A call, which runs until dropped.
#[derive(Debug)]
pub(crate) struct OpenCall {
    slot: Arc<Slot>,
    record: Record,
}

impl OpenCall {
    /// Returns the record that the handler fills.
    pub(crate) fn record(&self) -> Record {
        self.record.clone()
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut usage = self.slot.usage.lock();
        usage.calls.retain(|call| !call.is(&self.record));
        usage.since = Instant::now();
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
        // The first was used since, so the second is idle for longest.
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
        running.record().reached("vol-1");
        let third = next(&mut acceptor).await;
        assert!(!is_unwanted(&first) && is_unwanted(&second));
        drop(running);
        let _fourth = next(&mut acceptor).await;
        assert!(!is_unwanted(&first) && is_unwanted(&third));
    }

    #[tokio::test]
    async fn a_request_that_has_not_arrived_in_full_does_not_keep_its_connection() {
        let mut acceptor = Acceptor::new("csi", 1);
        let first = next(&mut acceptor).await;
        let _half = first.calls().begin();
        let _second = next(&mut acceptor).await;
        assert!(is_unwanted(&first));
    }

    #[tokio::test]
    async fn if_calls_run_on_all_connections_the_next_one_waits_for_the_end_of_one() {
        let mut acceptor = Acceptor::new("csi", 2);
        let mut all = Vec::new();
        for _ in 0..2 {
            let connection = next(&mut acceptor).await;
            let call = connection.calls().begin();
            call.record().reached("vol-1");
            all.push((connection, call));
        }
        assert!(next(&mut acceptor).now_or_never().is_none());
        all.pop();
        let third = next(&mut acceptor).await;
        assert!(!is_unwanted(&third) && !is_unwanted(&all[0].0));
    }

    #[tokio::test]
    async fn a_connection_that_does_not_shut_down_is_cut_when_too_many_do_not() {
        let mut acceptor = Acceptor::new("csi", 4);
        let mut all = Vec::new();
        for _ in 0..6 {
            all.push(next(&mut acceptor).await);
        }
        assert_eq!(unwanted(&all), [0, 1]);
        assert!(all[0].cut().now_or_never().is_some());
        assert!(all[1].cut().now_or_never().is_none());
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

    #[tokio::test]
    async fn a_connection_being_answered_is_closed_only_if_none_is_idle() {
        let mut acceptor = Acceptor::new("http", 2);
        let (first, second) = (next(&mut acceptor).await, next(&mut acceptor).await);
        first.answers();
        let third = next(&mut acceptor).await;
        assert!(!is_unwanted(&first) && is_unwanted(&second));
        third.answers();
        let _fourth = next(&mut acceptor).await;
        assert!(is_unwanted(&first) && !is_unwanted(&third));
    }
}
