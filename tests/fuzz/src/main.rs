//! Calls the parser that `BELAY_TARGET` names with inputs that libFuzzer generates.

#![no_main]

use std::sync::LazyLock;

use belay_node_agent::fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("BELAY_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("BELAY_TARGET {wanted:?} is no parser")).1
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
