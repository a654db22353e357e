//! Calls to a program over its socket: each on a new connection, as the kubelet makes them, or on a
//! connection that is kept open. The time of a call runs from the connect, or from the request, to
//! the response.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belay_proto::csi::v1 as csi;
use belay_proto::dial::dial;
use csi::identity_client::IdentityClient;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// The deadline of a call, sent with the call as the kubelet does.
const DEADLINE: Duration = Duration::from_secs(120);

/// The number of turns that the tasks of a finished connection get to close it, outside the
/// measured time. They need three; a connection left open would be closed during the next call.
const CLOSING_TURNS: u32 = 16;

/// A client of one socket, which uses the calling thread.
pub struct Client {
    runtime: Runtime,
    socket: PathBuf,
}

/// A connection for many calls.
pub struct Kept<'a> {
    client: &'a Client,
    channel: Channel,
}

impl Client {
    /// Creates a client without connecting.
    ///
    /// # Errors
    /// Fails if the process has no free descriptors.
    pub fn new(socket: &Path) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            runtime,
            socket: socket.to_owned(),
        })
    }

    /// Makes a call on a new connection. Returns the time of both together.
    ///
    /// # Errors
    /// Fails if no process listens, or if the call fails.
    pub fn call<T>(
        &self,
        call: impl AsyncFnOnce(Channel) -> Result<Response<T>, Status>,
    ) -> io::Result<(Duration, T)> {
        self.runtime.block_on(async {
            let start = Instant::now();
            let channel = dial(&self.socket).await.map_err(io::Error::other)?;
            let answer = call(channel).await;
            let took = start.elapsed();
            for _ in 0..CLOSING_TURNS {
                tokio::task::yield_now().await;
            }
            Ok((
                took,
                answer.map_err(|status| refused(&status))?.into_inner(),
            ))
        })
    }

    /// Makes one call for each of the numbers, on new connections, `width` calls concurrently.
    /// `call` gets a connection and a number, and makes the call. Returns the time of each call
    /// with its connection.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn at_once<F>(
        &self,
        width: usize,
        numbers: Range<usize>,
        call: impl Fn(Channel, usize) -> F + Clone + Send + 'static,
    ) -> io::Result<Vec<Duration>>
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        at_once(&self.runtime, width, numbers, |number| {
            let (socket, call) = (self.socket.clone(), call.clone());
            async move {
                let channel = dial(&socket).await;
                let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
                call(channel, number).await
            }
        })
    }

    /// Waits for this time.
    pub fn rest(&self, time: Duration) {
        self.runtime
            .block_on(async { tokio::time::sleep(time).await });
    }

    /// Calls `Probe` on a new connection.
    ///
    /// # Errors
    /// Fails if no process listens, or if it is not ready.
    pub fn probe(&self) -> io::Result<Duration> {
        let (took, answer) = self.call(async |channel| {
            IdentityClient::new(channel)
                .probe(with_deadline(csi::ProbeRequest {}))
                .await
        })?;
        ready(&answer).map(|()| took)
    }

    /// Opens a kept connection.
    ///
    /// # Errors
    /// Fails if no process listens.
    pub fn keep(&self) -> io::Result<Kept<'_>> {
        let channel = self
            .runtime
            .block_on(dial(&self.socket))
            .map_err(io::Error::other)?;
        Ok(Kept {
            client: self,
            channel,
        })
    }
}

impl Kept<'_> {
    /// Makes a call on this connection, and returns its time.
    ///
    /// # Errors
    /// Fails if the connection broke, or if the call fails.
    pub fn call<R, T>(
        &self,
        request: R,
        call: impl AsyncFnOnce(Channel, Request<R>) -> Result<Response<T>, Status>,
    ) -> io::Result<(Duration, T)> {
        let (channel, request) = (self.channel.clone(), with_deadline(request));
        let start = Instant::now();
        let answer = self.client.runtime.block_on(call(channel, request));
        let took = start.elapsed();
        let answer = answer.map_err(|status| refused(&status))?;
        Ok((took, answer.into_inner()))
    }

    /// Makes one call for each of the numbers on this connection, `width` calls concurrently.
    /// `call` gets the connection and a number, and makes the call.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn at_once<F>(
        &self,
        width: usize,
        numbers: Range<usize>,
        call: impl Fn(Channel, usize) -> F,
    ) -> io::Result<Vec<Duration>>
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        at_once(&self.client.runtime, width, numbers, |number| {
            call(self.channel.clone(), number)
        })
    }

    /// Waits for this time.
    pub fn rest(&self, time: Duration) {
        self.client.rest(time);
    }

    /// Calls `Probe` on this connection.
    ///
    /// # Errors
    /// Fails if the connection broke, or if the driver is not ready.
    pub fn probe(&self) -> io::Result<Duration> {
        let channel = self.channel.clone();
        let start = Instant::now();
        let answer = self.client.runtime.block_on(async {
            IdentityClient::new(channel)
                .probe(with_deadline(csi::ProbeRequest {}))
                .await
        });
        let took = start.elapsed();
        ready(answer.map_err(|status| refused(&status))?.get_ref()).map(|()| took)
    }
}

fn at_once<F>(
    runtime: &Runtime,
    width: usize,
    mut numbers: Range<usize>,
    call: impl Fn(usize) -> F,
) -> io::Result<Vec<Duration>>
where
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    runtime.block_on(async {
        let (mut running, mut times) = (JoinSet::new(), Vec::new());
        loop {
            while running.len() < width
                && let Some(number) = numbers.next()
            {
                let call = call(number);
                running.spawn(async move {
                    let start = Instant::now();
                    call.await.map(|()| start.elapsed())
                });
            }
            let Some(ended) = running.join_next().await else {
                return Ok(times);
            };
            let took = ended.map_err(io::Error::other)?;
            times.push(took.map_err(|status| refused(&status))?);
        }
    })
}

/// Returns a request with a deadline, as the kubelet sends it.
pub fn with_deadline<M>(message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

/// Checks that the driver is ready. An absent field means ready (CSI 1.13, `ProbeResponse`).
fn ready(answer: &csi::ProbeResponse) -> io::Result<()> {
    match answer.ready {
        Some(false) => Err(io::Error::other("belay-node answers that it is not ready")),
        _ => Ok(()),
    }
}

/// Converts an error status; ABORTED becomes `WouldBlock`, since both mean retry.
fn refused(status: &Status) -> io::Error {
    let kind = match status.code() {
        Code::Aborted => io::ErrorKind::WouldBlock,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("{:?}: {}", status.code(), status.message()))
}
