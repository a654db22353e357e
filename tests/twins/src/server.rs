//! Serves a twin on loopback: with a thread for each connection, a log of all calls, and faults on
//! request. Independent of the clouds.

use crate::http::{Request, Response};
use crate::lock;
use belay_bed::scrape;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The API of a cloud.
pub trait Service: Send + Sync + 'static {
    /// Returns the response to a request. A change that the request begins may complete after the
    /// response.
    fn answer(&self, request: &Request) -> Response;

    /// Returns the kind of a call, such as `POST /v2/volumes`: the method, and the path with words
    /// in place of IDs. The server counts calls, and injects faults, by kind.
    fn kind(&self, request: &Request) -> String;

    /// Adds the headers of the cloud service to a response that the server sends in place of the
    /// twin.
    fn dress(&self, response: Response) -> Response {
        response
    }
}

/// A fault that the server injects into a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The call is processed, but the connection is cut in place of the response.
    Lost,
    /// The connection is cut, and the call is not processed.
    Cut,
    /// The call gets this response, and is not processed.
    Refused(Response),
    /// The call is processed, but gets this response in place of the real one.
    Denied(Response),
    /// The call gets this response from a proxy, without the service's headers, and is not
    /// processed.
    Astray(Response),
    /// The call is processed, but in the JSON of its response, the values at these JSON pointers
    /// (RFC 6901) are replaced, for example by the ID of a different object.
    Altered(Vec<(&'static str, Value)>),
    /// The call is processed after this time.
    Late(Duration),
    /// The call is processed at once, and gets its response after this time.
    Slow(Duration),
}

/// A call in the log.
#[derive(Clone, Debug)]
pub struct Call {
    /// The kind, from [`Service::kind`].
    pub kind: String,
    /// The path, without the query.
    pub path: String,
    /// The status of the response, even if the response was lost.
    pub status: u16,
    /// The time of arrival.
    pub at: Instant,
}

/// A server for a twin. It serves until the process of the test exits.
pub struct Server<S> {
    shared: Arc<Shared<S>>,
    address: SocketAddr,
}

struct Shared<S> {
    service: S,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    log: Vec<Call>,
    faults: Vec<Planned>,
    is_held: bool,
    /// The number of calls that wait because of [`Server::hold`].
    held: usize,
}

struct Planned {
    kind: String,
    left: usize,
    fault: Fault,
}

impl Fault {
    /// Returns two faults with responses of a proxy that have this status: one response with a
    /// page, and one without a body.
    #[must_use]
    pub fn of_proxies(status: u16) -> [Self; 2] {
        [true, false].map(|has_page| Self::Astray(Response::of_proxy(status, has_page)))
    }
}

impl<S: Service> Server<S> {
    /// Serves on a free loopback port.
    ///
    /// # Errors
    /// Fails if no port is free.
    pub fn start(service: S) -> io::Result<Self> {
        Self::serve(scrape::listen()?, service)
    }

    /// Serves on this listener.
    ///
    /// # Errors
    /// Fails if the listener has no address.
    pub fn serve(listener: TcpListener, service: S) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            service,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let server = Self {
            shared: Arc::clone(&shared),
            address,
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // Ignore errors: the connection breaks if a client is killed.
                std::thread::spawn(move || drop(shared.converse(&stream)));
            }
        });
        Ok(server)
    }

    /// Returns the service.
    #[must_use]
    pub fn service(&self) -> &S {
        &self.shared.service
    }

    /// Returns the URL, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all calls, in the order of their responses.
    #[must_use]
    pub fn log(&self) -> Vec<Call> {
        self.shared.state().log.clone()
    }

    /// Empties the log.
    pub fn forget(&self) {
        self.shared.state().log.clear();
    }

    /// Returns the number of calls of this kind; of all kinds if `kind` is empty.
    #[must_use]
    pub fn count(&self, kind: &str) -> usize {
        let state = self.shared.state();
        let calls = state.log.iter();
        calls.filter(|call| is_of(&call.kind, kind)).count()
    }

    /// Returns the number of calls of each kind, for the failure message of a test.
    #[must_use]
    pub fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for call in &self.shared.state().log {
            *kinds.entry(call.kind.clone()).or_default() += 1;
        }
        kinds
    }

    /// Sets the fault of the next `times` calls of this kind; an empty kind means calls of any
    /// kind.
    pub fn disturb(&self, kind: &str, times: usize, fault: Fault) {
        self.shared.state().faults.push(Planned {
            kind: kind.to_owned(),
            left: times,
            fault,
        });
    }

    /// Removes all faults that are set for later calls.
    pub fn calm(&self) {
        self.shared.state().faults.clear();
    }

    /// Makes calls wait before they are processed, or releases the waiting calls.
    pub fn hold(&self, is_held: bool) {
        self.shared.state().is_held = is_held;
        self.shared.changed.notify_all();
    }

    /// Waits until the calls that [`Self::hold`] delays and the calls in the log are together at
    /// least this number. Returns false if this does not happen within `within`.
    #[must_use]
    pub fn wait_for(&self, calls: usize, within: Duration) -> bool {
        let short = |state: &mut State| state.held + state.log.len() < calls;
        let waited = self
            .shared
            .changed
            .wait_timeout_while(self.shared.state(), within, short);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// Whether `meant` selects calls of this kind; an empty text selects all calls.
fn is_of(kind: &str, meant: &str) -> bool {
    meant.is_empty() || kind == meant
}

impl<S: Service> Shared<S> {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Responds to the requests of a connection, one after the other.
    fn converse(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = Request::read(&mut reader)? {
            let Some(response) = self.respond(&request) else {
                return stream.shutdown(Shutdown::Both);
            };
            let mut bytes = Vec::new();
            response.write(&mut bytes)?;
            // Write the response in one piece, so that a client does not receive it in parts.
            let mut stream = stream;
            stream.write_all(&bytes)?;
            if request.is_last() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the response; `None` if the connection must be cut.
    fn respond(&self, request: &Request) -> Option<Response> {
        let kind = self.service.kind(request);
        let at = Instant::now();
        let fault = self.admit(&kind);
        if let Some(Fault::Late(time)) = fault {
            self.pause(time);
        }
        let response = match &fault {
            Some(Fault::Cut) => None,
            Some(Fault::Astray(response)) => Some(response.clone()),
            Some(Fault::Refused(response)) => Some(self.service.dress(response.clone())),
            _ => Some(self.service.answer(request)),
        };
        let response = match (&fault, response) {
            (Some(Fault::Denied(response)), Some(_)) => Some(self.service.dress(response.clone())),
            (Some(Fault::Altered(values)), Some(response)) => Some(response.altered(values)),
            (_, response) => response,
        };
        if let Some(Fault::Slow(time)) = fault {
            self.pause(time);
        }
        self.state().log.push(Call {
            kind,
            path: request.path.clone(),
            status: response.as_ref().map_or(0, |response| response.status),
            at,
        });
        self.changed.notify_all();
        response.filter(|_| !matches!(fault, Some(Fault::Lost)))
    }

    /// Waits while calls are held. Returns the fault of this call; `None` if none is set.
    fn admit(&self, kind: &str) -> Option<Fault> {
        let mut state = self.state();
        state.held += 1;
        self.changed.notify_all();
        let held = |state: &mut State| state.is_held;
        let mut state = self
            .changed
            .wait_while(state, held)
            .unwrap_or_else(PoisonError::into_inner);
        state.held -= 1;
        let at = state
            .faults
            .iter()
            .position(|planned| planned.left > 0 && is_of(kind, &planned.kind))?;
        let planned = &mut state.faults[at];
        planned.left -= 1;
        Some(planned.fault.clone())
    }

    fn pause(&self, time: Duration) {
        let end = Instant::now() + time;
        let mut state = self.state();
        while let Some(left) = end.checked_duration_since(Instant::now())
            && !left.is_zero()
        {
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service that counts the calls it has processed.
    #[derive(Default)]
    struct Counter(Mutex<usize>);

    impl Service for Counter {
        fn answer(&self, _: &Request) -> Response {
            let mut served = lock(&self.0);
            *served += 1;
            Response::json(200, &(*served).into())
        }

        fn kind(&self, request: &Request) -> String {
            format!("{} {}", request.method, request.path)
        }
    }

    fn start() -> Server<Counter> {
        Server::start(Counter::default()).unwrap()
    }

    fn get(server: &Server<Counter>, path: &str) -> io::Result<(u16, String)> {
        scrape::get(server.address, path)
    }

    #[test]
    fn calls_are_counted_by_kind_and_a_fault_hits_those_of_its_kind() {
        let server = start();
        server.disturb("GET /b", 1, Fault::Lost);
        server.disturb("GET /b", 1, Fault::Cut);
        let denied = Response::json(503, &"no".into());
        server.disturb("GET /b", 1, Fault::Denied(denied.clone()));
        server.disturb("GET /b", 1, Fault::Refused(denied));
        assert_eq!(get(&server, "/a").unwrap(), (200, "1".to_owned()));
        get(&server, "/b").unwrap_err();
        get(&server, "/b").unwrap_err();
        for _ in 0..2 {
            assert_eq!(get(&server, "/b").unwrap(), (503, "\"no\"".to_owned()));
        }
        assert_eq!(get(&server, "/b").unwrap(), (200, "4".to_owned()));
        server.disturb("GET /c", 1, Fault::Altered(vec![("", "other".into())]));
        assert_eq!(get(&server, "/c").unwrap(), (200, "\"other\"".to_owned()));
        assert_eq!((server.count("GET /b"), server.count("")), (5, 7));
        let statuses: Vec<_> = server.log().iter().map(|call| call.status).collect();
        assert_eq!(statuses, [200, 200, 0, 503, 503, 200, 200]);
    }

    #[test]
    fn a_held_call_is_served_when_it_is_released() {
        let server = start();
        server.hold(true);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| get(&server, "/a"));
            assert!(server.wait_for(1, Duration::from_secs(60)));
            assert_eq!(*lock(&server.service().0), 0);
            server.hold(false);
            assert_eq!(call.join().unwrap().unwrap().0, 200);
        });
        server.forget();
        assert_eq!(server.count(""), 0);
    }
}
