//! Repeatable random choices: a seeded generator (splitmix64). The seed is printed, so the output
//! of a failed test contains it. For tests: it panics.

#![expect(
    clippy::expect_used,
    reason = "a test ends when its seed cannot be read"
)]

use std::time::{SystemTime, UNIX_EPOCH};

/// A random generator.
#[derive(Debug)]
pub struct Chance {
    state: u64,
}

impl Chance {
    /// Creates a generator, seeded by `BELAY_SEED` or else by the clock.
    ///
    /// # Panics
    /// Panics if `BELAY_SEED` is not a number.
    #[must_use]
    pub fn new(test: &str) -> Self {
        let given = std::env::var("BELAY_SEED").ok();
        let seed = given.map_or_else(clock, |seed| seed.parse().expect("BELAY_SEED: a number"));
        eprintln!("{test}: BELAY_SEED={seed} repeats this run");
        Chance { state: seed }
    }

    /// Creates a generator with a fixed seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Chance { state: seed }
    }

    /// Creates another generator, seeded by this one.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Chance { state: self.bits() }
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    ///
    /// # Panics
    /// Panics if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// Returns a random element.
    ///
    /// # Panics
    /// Panics if `choices` is empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let count = u64::try_from(choices.len()).expect("a short list");
        let at = usize::try_from(self.below(count)).expect("an index");
        &choices[at]
    }

    /// Returns `count` random bytes, none of which is zero.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count)
            .map(|_| self.bits().to_le_bytes()[0] | 1)
            .collect()
    }
}

fn clock() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    u64::from(since.subsec_nanos()) ^ since.as_secs()
}
