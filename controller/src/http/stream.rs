//! Responses that remain open and deliver lines, such as the events of a watch. This module does
//! not retry: if the connection breaks, the caller makes a new call that continues after the last
//! received line.

use super::answer::Asked;
use super::words::Secrets;
use super::{Answer, Call, Client, chain};
use belay_server::call::{Failure, Kind};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::time::Duration;
use tokio::time::timeout;

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
    /// Makes a call whose response remains open. The deadline of the call applies only to the head
    /// of the response.
    ///
    /// # Errors
    /// Returns `Unreachable` or `Timeout` if the service does not respond.
    pub async fn open(&self, call: &Call<'_>) -> Result<Opened, Failure> {
        let opened = timeout(call.deadline, async {
            self.pace.turn(false).await;
            let (head, body, secrets) = self.send(call).await?;
            if !head.status.is_success() {
                let answer = self.whole(call, head, body, secrets).await;
                return answer.map(Opened::Refused);
            }
            Ok(Opened::Lines(Lines {
                body,
                asked: self.asked(call),
                secrets,
                buffer: BytesMut::new(),
                searched: 0,
            }))
        });
        match opened.await {
            Ok(opened) => opened.map_err(|broken| self.broken(call, &broken)),
            Err(_) => {
                let why = format!("no answer within {} s", call.deadline.as_secs_f32());
                Err(self.failed(call, Kind::Timeout, true, &why))
            }
        }
    }
}

impl Lines {
    /// Returns the next line without its end, or `None` at the end of the response. The caller may
    /// cancel this call without losing a line.
    ///
    /// # Errors
    /// Returns `Timeout` if nothing arrives for `patience`, and `Unreachable` if the connection
    /// breaks or a line is too long.
    pub async fn next(&mut self, patience: Duration) -> Result<Option<Bytes>, Failure> {
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
            let Ok(frame) = timeout(patience, self.body.frame()).await else {
                let why = format!("nothing arrived for {} s", patience.as_secs_f32());
                return Err(self.failed(Kind::Timeout, &why));
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

    fn failed(&self, kind: Kind, why: &str) -> Failure {
        let Asked { what, host, .. } = &self.asked;
        Failure::new(kind, format!("{what} at {host}: {why}"))
    }
}
