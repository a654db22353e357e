//! The names of gRPC codes.

use tonic::{Code, Status};

/// Returns the name of a code as the specifications spell it, e.g. `INVALID_ARGUMENT`.
#[must_use]
pub const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Returns the code and message of a status, for users.
#[must_use]
pub fn describe(status: &Status) -> String {
    match status.message() {
        "" => format!("{}, without a message", name(status.code())),
        message => format!("{}: {message}", name(status.code())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_described_by_code_and_message() {
        let status = Status::not_found("volume v-1 does not exist");
        assert_eq!(describe(&status), "NOT_FOUND: volume v-1 does not exist");
        let silent = Status::unimplemented("");
        assert_eq!(describe(&silent), "UNIMPLEMENTED, without a message");
    }
}
