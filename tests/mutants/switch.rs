//! The switch of the mutants: the variable BELAY_MUTANT has the number of the active one. This file
//! is written into the crates under test.

use std::fs::File;
use std::io::Write as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The largest number, and one.
const NUMBERS: usize = 20_000;

static ACTIVE: LazyLock<u32> = LazyLock::new(|| {
    let given = std::env::var("BELAY_MUTANT").ok();
    given.and_then(|id| id.parse().ok()).unwrap_or(0)
});

/// The file for the numbers of the mutants whose code ran, if they are recorded.
static REACHED: LazyLock<Option<File>> = LazyLock::new(|| {
    let path = std::env::var_os("BELAY_MUTANTS_REACHED")?;
    File::options().create(true).append(true).open(path).ok()
});

static SEEN: [AtomicBool; NUMBERS] = [const { AtomicBool::new(false) }; NUMBERS];

/// Whether the mutant is active.
pub(crate) fn on(id: u32) -> bool {
    if let Some(mut file) = REACHED.as_ref()
        && !SEEN[id as usize].swap(true, Ordering::Relaxed)
    {
        // A test may have filled the disk; then the mutant counts as not reached.
        drop(file.write_all(format!("{id}\n").as_bytes()));
    }
    *ACTIVE == id
}
