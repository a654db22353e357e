//! Assertions about calls that must fail.

use std::fmt::Debug;

use tonic::Code;

use super::calls::Answer;

/// Fails unless the call was refused with that code.
#[track_caller]
pub(crate) fn refused<T: Debug>(answer: Answer<T>, code: Code) -> String {
    refused_with(answer, code, &[])
}

/// Fails unless the call was refused with that code and all of these words. Returns the message.
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
