//! The innermost layer of every call: passes a decoded message to its handler, and converts the
//! result to a response or a status. The outermost layer is [`super::layer`]; a [`Record`] passes
//! data from the handler to that layer. This module does not depend on individual calls.

use super::{Failure, Rpc, Subject, code};
use std::sync::{Arc, OnceLock};
use tonic::{Request, Response, Status};

/// Maximum length of a message sent with a status, in bytes of the header `grpc-message`,
/// percent-encoded. By default, clients refuse headers of more than 8 KiB in total (gRPC's C core)
/// or 16 KiB.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Maximum length of a call's subject (an ID or name) in the log line, in bytes: the
/// specification's limit for identifiers.
const SUBJECT_BYTES_MAX: usize = 128;

/// Passes the message to `handle`, and records the subject of the call (an ID or name) for the log
/// line. Converts a failure to a gRPC status with [`code`].
///
/// # Errors
/// Returns the failure of `handle` as a status.
pub async fn answer<M, T, F, Fut>(
    rpc: Rpc,
    request: Request<M>,
    handle: F,
) -> Result<Response<T>, Status>
where
    M: Subject,
    F: FnOnce(M) -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    let (_, extensions, message) = request.into_parts();
    let record = extensions.get::<Record>().cloned().unwrap_or_default();
    let subject = record.reached(message.subject());
    tracing::Span::current().record("subject", subject);
    match CALL.scope(record, handle(message)).await {
        Ok(answer) => Ok(Response::new(answer)),
        Err(failure) => Err(status(rpc, &failure)),
    }
}

tokio::task_local! {
    /// The record of the call whose handler is running.
    static CALL: Record;
}

/// Adds the name of a cloud to the log line of the current call. Has no effect outside the handler
/// of a call.
pub fn in_cloud(name: &str) {
    // Ignore the error, since there is no record outside the handler of a call.
    let _outside = CALL.try_with(|record| {
        record.0.cloud.get_or_init(|| name.into());
    });
}

/// Returns the status of a failed call.
pub(crate) fn status(rpc: Rpc, failure: &Failure) -> Status {
    let code = code(rpc, failure.kind, failure.certainty);
    Status::new(code, sendable(&failure.message))
}

/// Returns the longest start of a message that fits the header `grpc-message`, cut between
/// characters.
fn sendable(message: &str) -> &str {
    // Most messages are so short that they fit even if every byte is percent-encoded.
    if message.len() * 3 <= MESSAGE_BYTES_MAX {
        return message;
    }
    let mut left = MESSAGE_BYTES_MAX;
    let cut = message.char_indices().find(|(_, c)| {
        let bytes = match c {
            ' ' | '"' | '#' | '%' | '<' | '>' | '`' | '?' | '{' | '}' => 3,
            c if c.is_ascii_graphic() => 1,
            c => 3 * c.len_utf8(),
        };
        let fits = left.checked_sub(bytes);
        left = fits.unwrap_or_default();
        fits.is_none()
    });
    cut.map_or(message, |(end, _)| &message[..end])
}

/// The data that the handler of a call passes to the outermost layer: the cloud, and the subject of
/// the call, whose presence also means that a handler was reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record(Arc<Reported>);

#[derive(Debug, Default)]
struct Reported {
    subject: OnceLock<Box<str>>,
    cloud: OnceLock<Box<str>>,
}

impl Record {
    /// Records that a handler was reached, with the subject of the call; returns the recorded
    /// subject. The first record is kept: if a handler calls a second handler, the subject of the
    /// outer handler is correct.
    pub(crate) fn reached(&self, subject: &str) -> &str {
        self.0
            .subject
            .get_or_init(|| start_of(subject, SUBJECT_BYTES_MAX).into())
    }

    /// Returns the recorded subject of the call. The subject is empty if the call has none, and
    /// `None` if no handler was reached.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.0.subject.get().map(AsRef::as_ref)
    }

    /// Returns the cloud, if [`in_cloud`] has recorded one.
    pub(crate) fn cloud(&self) -> Option<&str> {
        self.0.cloud.get().map(AsRef::as_ref)
    }
}

/// Returns at most the first `bytes_max` bytes of the text, cut between characters.
pub(crate) fn start_of(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Kind;
    use tonic::Code;

    #[test]
    fn a_message_that_would_not_fit_a_header_is_cut_between_characters() {
        let ascii: String = ('\0'..='\u{7f}').collect();
        let cases = [
            "x",
            " ",
            "%",
            "\u{e9}",
            "x\u{2603}",
            "a\u{1f4be} ",
            "\n",
            &ascii,
        ];
        for part in cases {
            let message = part.repeat(4097);
            for cut in [0, 1, 2, 3] {
                let message = &message[..message.len() - cut * part.len()];
                let failure = Failure::new(Kind::Range, message.to_owned());
                let status = status(Rpc::CreateVolume, &failure);
                assert_eq!(status.code(), Code::OutOfRange);
                assert!(message.starts_with(status.message()));
                // The length of the message as sent, percent-encoded. One more character of up to
                // 12 bytes would not fit.
                let sent = status.into_http::<()>().headers()["grpc-message"].len();
                assert!((4096 - 11..=4096).contains(&sent), "{part:?}: {sent}");
            }
        }
    }

    #[test]
    fn a_message_that_fits_a_header_is_whole() {
        for message in ["x".repeat(4096), " ".repeat(1365), "\u{e9}".repeat(682)] {
            assert_eq!(sendable(&message), message);
        }
    }

    #[test]
    fn the_first_subject_stays_and_is_cut_to_the_length_of_an_identifier() {
        let record = Record::default();
        assert_eq!(record.subject(), None);
        record.reached(&"v".repeat(1000));
        record.reached("another");
        assert_eq!(record.subject(), Some("v".repeat(128).as_str()));
    }
}
