//! Assertions about calls that must fail, at once or until a retry succeeds.

use std::fmt::Debug;

use belay_bed::patience::until;
use tonic::Code;

use super::calls::Answer;

/// Fails unless the call was refused with this code. Returns the message.
#[track_caller]
pub(crate) fn refused<T: Debug>(answer: Answer<T>, code: Code) -> String {
    refused_with(answer, code, &[])
}

/// Fails unless the call was refused with this code and all of these words. Returns the message.
#[track_caller]
pub(crate) fn refused_with<T: Debug>(answer: Answer<T>, code: Code, words: &[&str]) -> String {
    let status = answer.expect_err("the call should be refused");
    let message = status.message().to_owned();
    assert_eq!(status.code(), code, "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
    message
}

/// Repeats a call until it returns OK, as the sidecars and the kubelet do.
///
/// # Panics
/// Panics on a refusal other than ABORTED.
#[track_caller]
pub(crate) fn retried<T: Debug>(what: &str, mut call: impl FnMut() -> Answer<T>) {
    until(what, || match call() {
        Ok(_) => true,
        again => {
            refused(again, Code::Aborted);
            false
        }
    });
}
