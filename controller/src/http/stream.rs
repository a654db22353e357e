//! Responses that remain open and deliver lines, such as the events of a watch. This module does
//! not retry: if the connection breaks, the caller makes a new call that continues after the last
//! received line.

use super::answer::Asked;
use super::words::{self, Secrets};
use super::{Answer, Broken, Call, Client, LIMITED, PAUSE, chain};
use belay_server::call::{Failure, Kind};
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

/// The maximum length of a line, in bytes. etcd refuses an object of more than 1.5 MiB.
const LINE_BYTES_MAX: usize = 4 << 20;

/// The response to [`Client::open`].
pub enum Opened {
    /// The service has accepted the call, and the lines follow.
    Lines(Lines),
    /// The service has refused the call.
    Refused(Answer),
}

/// The lines of an open response.
pub struct Lines {
    body: Incoming,
    asked: Asked,
    secrets: Secrets,
    /// The received bytes after the last line that was returned.
    buffer: BytesMut,
    /// The number of bytes at the start of `buffer` that are known to contain no line end.
    searched: usize,
}

impl Client {
    /// Makes a call whose response remains open. The deadline of the call, and the measured
    /// duration, end with the head of the response.
    ///
    /// # Errors
    /// Returns `Unreachable` or `Timeout` if the service does not respond.
    pub async fn open(&self, call: &Call<'_>) -> Result<Opened, Failure> {
        let until = Instant::now() + call.deadline;
        if timeout_at(until, self.pace.turn(false)).await.is_err() {
            return Err(self.failed(call, Kind::Timeout, false, LIMITED));
        }
        let sent = Instant::now();
        let Ok(opened) = timeout_at(until, self.head(call)).await else {
            return Err(self.unanswered(call, sent));
        };
        let status = opened.as_ref().ok().map(|(status, _)| *status);
        self.measure(call, status, sent);
        match &opened {
            Ok((_, Opened::Refused(answer))) if self.refuses_pace(answer) => {
                self.pace
                    .refused(sent, answer.retry_after().unwrap_or(PAUSE));
            }
            Ok(_) => self.pace.answered(),
            Err(_) => {}
        }
        let opened = opened.map_err(|broken| self.broken(call, &broken))?;
        Ok(opened.1)
    }

    /// Sends the request, and receives the head of a response that remains open, or a whole
    /// refusal.
    async fn head(&self, call: &Call<'_>) -> Result<(StatusCode, Opened), Broken> {
        let (head, body, secrets) = self.send(call).await?;
        let status = head.status;
        if !status.is_success() {
            let answer = self.whole(call, head, body, secrets).await?;
            return Ok((status, Opened::Refused(answer)));
        }
        let lines = Lines {
            body,
            asked: self.asked(call),
            secrets,
            buffer: BytesMut::new(),
            searched: 0,
        };
        Ok((status, Opened::Lines(lines)))
    }
}

impl Lines {
    /// Returns the next line without its end, or `None` at the end of the response. The caller may
    /// cancel this call without losing a line.
    ///
    /// # Errors
    /// Returns `Timeout` if neither a line nor the end has arrived at the time `until`, and
    /// `Unreachable` if the connection breaks or a line is too long.
    pub async fn next(&mut self, until: Instant) -> Result<Option<Bytes>, Failure> {
        loop {
            let end = self.buffer[self.searched..]
                .iter()
                .position(|b| *b == b'\n');
            if let Some(end) = end {
                let length = self.searched + end;
                let line = self.buffer.split_to(length + 1).freeze();
                self.searched = 0;
                return Ok(Some(line.slice(..length)));
            }
            self.searched = self.buffer.len();
            if self.searched > LINE_BYTES_MAX {
                return Err(self.failed(Kind::Unreachable, "a line is too long"));
            }
            let Ok(frame) = timeout_at(until, self.body.frame()).await else {
                return Err(self.failed(Kind::Timeout, "the response has not ended in time"));
            };
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => {
                    let why = self.secrets.masked(&chain(&error));
                    return Err(self.failed(Kind::Unreachable, &why));
                }
            }
        }
    }

    /// Masks the secrets in a text from a line, and shortens the text, so that an error can quote
    /// it.
    #[must_use]
    pub(crate) fn quoted(&self, text: &str) -> String {
        words::quoted(text, &self.secrets)
    }

    fn failed(&self, kind: Kind, why: &str) -> Failure {
        let Asked { what, host, .. } = &self.asked;
        Failure::new(kind, format!("{what} at {host}: {why}"))
    }
}
