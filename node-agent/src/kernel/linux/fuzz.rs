//! Entry points for fuzzing the parsers of the kernel's messages and tables.

use super::{mountinfo as table, uevent as events};

/// Fuzzes the filter for messages of the kernel's uevent socket.
pub(crate) fn uevent(data: &[u8]) {
    let is_one = events::is_of_disk(data);
    let words = |word: &[u8]| data.windows(word.len()).any(|window| window == word);
    assert!(
        !is_one || words(b"SUBSYSTEM=block") && words(b"@"),
        "another event"
    );
}

/// Fuzzes the parser of mountinfo.
pub(crate) fn mountinfo(data: &[u8]) {
    let lines = data.split(|byte| *byte == b'\n');
    let count = lines.filter(|line| !line.is_empty()).count();
    if let Ok(mounts) = table::parse(data) {
        assert_eq!(mounts.len(), count, "a mount is left out");
    }
    table::label(data);
}
