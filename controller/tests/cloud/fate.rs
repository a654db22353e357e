//! The fates of requests to the simulated cloud: chosen for one request, or random.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The one-way latency of a good cloud.
const WAY: Duration = Duration::from_millis(5);

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    Create,
    Claim,
    /// An attach or detach. No driver can detect one that takes effect after the response to the
    /// next one, so none is delayed that much here.
    Plug,
    Change,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    /// The request has no effect, and returns 503 or 429.
    Refused,
    Throttled,
    /// The request takes effect, perhaps later, and the response is lost.
    Lost,
    Late(Duration),
    /// A proxy repeats the request.
    Twice,
    /// The request takes effect, and a creation returns another object.
    Strange,
    /// The controller crashes before the effect, or after it.
    DeadBefore,
    DeadAfter,
}

impl Fate {
    /// Every bad fate; the delay is the longest one for [`Verb::Claim`].
    pub(crate) const BAD: [Fate; 8] = [
        Fate::Refused,
        Fate::Throttled,
        Fate::Lost,
        Fate::Late(Duration::from_secs(14)),
        Fate::Twice,
        Fate::Strange,
        Fate::DeadBefore,
        Fate::DeadAfter,
    ];
}

/// The fates of all requests to a cloud, and its other random choices.
pub(crate) struct Fates(Mutex<State>);

struct State {
    random: Option<Random>,
    /// The number of requests in a thousand that have a bad fate.
    bad: u64,
    /// Half of the maximum duration of a request.
    slow: Duration,
    /// The fate of a single request, given by its number.
    chosen: Option<(usize, Fate)>,
    /// The fate of claims, if it is always the same; of a delay, the maximum.
    claims: Option<Fate>,
    requests: usize,
    deaths: usize,
    lost: usize,
}

impl Fates {
    fn new(random: Option<Random>, bad: u64, chosen: Option<(usize, Fate)>) -> Self {
        Self(Mutex::new(State {
            random,
            bad,
            slow: WAY,
            chosen,
            claims: None,
            requests: 0,
            deaths: 0,
            lost: 0,
        }))
    }

    /// Returns fates in which every request gets a response.
    pub(crate) fn good() -> Self {
        Self::new(None, 0, None)
    }

    /// Returns fates in which every request except one gets a response.
    pub(crate) fn chosen(request: usize, fate: Fate) -> Self {
        Self::new(None, 0, Some((request, fate)))
    }

    /// Returns fates in which `bad` of a thousand requests have a bad fate, and each request takes
    /// up to twice `slow`.
    pub(crate) fn random(seed: u64, bad: u64, slow: Duration) -> Self {
        let fates = Self::new(Some(Random(seed)), bad, None);
        fates.state().slow = slow.max(WAY);
        fates
    }

    /// Returns fates like [`Self::random`], except that the only bad fate is that claims are
    /// delayed and get no response.
    pub(crate) fn late_claims(seed: u64, slow: Duration) -> Self {
        let fates = Self::random(seed, 0, slow);
        fates.state().claims = Some(Fate::Late(Duration::from_secs(14)));
        fates
    }

    /// Returns fates in which every request except claims gets a response.
    pub(crate) fn refused_claims() -> Self {
        let fates = Self::good();
        fates.state().claims = Some(Fate::Refused);
        fates
    }

    /// Returns the latency of a request or response.
    pub(crate) fn way(&self) -> Duration {
        let mut state = self.state();
        let slow = u64::try_from(state.slow.as_millis()).unwrap();
        match &mut state.random {
            Some(random) => Duration::from_millis(1 + random.below(slow)),
            None => WAY,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn requests(&self) -> usize {
        self.state().requests
    }

    /// Returns the maximum number of surplus volumes: one for each creation that was repeated or
    /// got no response, and one per name for a crash.
    pub(crate) fn surplus_max(&self, names: usize) -> usize {
        let state = self.state();
        state.deaths * names + state.lost
    }

    /// Returns a number below `end`. Without a seed, the numbers descend from `end - 1`.
    pub(crate) fn below(&self, end: u32) -> u32 {
        let mut state = self.state();
        let falling = u32::try_from(state.requests).unwrap() + 1;
        match &mut state.random {
            Some(random) => u32::try_from(random.below(u64::from(end))).unwrap(),
            None => end.saturating_sub(falling),
        }
    }

    /// Whether the cloud drops an attachment that it has accepted.
    pub(crate) fn drops_an_attachment(&self) -> bool {
        let mut state = self.state();
        state.bad > 0
            && state
                .random
                .as_mut()
                .is_some_and(|random| random.below(10) == 0)
    }

    pub(crate) fn next(&self, verb: Verb) -> Fate {
        let mut state = self.state();
        let request = state.requests;
        state.requests += 1;
        let fate = match state.chosen {
            Some((chosen, Fate::Late(_))) if chosen == request && verb == Verb::Plug => Fate::Lost,
            Some((chosen, fate)) if chosen == request => fate,
            _ => state.drawn(verb),
        };
        let is_dead = matches!(fate, Fate::DeadBefore | Fate::DeadAfter);
        state.deaths += usize::from(is_dead);
        let is_lost = matches!(fate, Fate::Lost | Fate::Late(_) | Fate::Twice);
        state.lost += usize::from(is_lost && verb == Verb::Create);
        fate
    }
}

impl State {
    fn drawn(&mut self, verb: Verb) -> Fate {
        let fate = self.claims.filter(|_| verb == Verb::Claim);
        let Some(random) = &mut self.random else {
            return fate.unwrap_or(Fate::Answered);
        };
        if let Some(Fate::Late(most)) = fate {
            let most = u64::try_from(most.as_millis()).unwrap();
            return Fate::Late(Duration::from_millis(random.below(most)));
        }
        if random.below(1000) >= self.bad {
            return Fate::Answered;
        }
        let late = match verb {
            // `CLAIMS_SETTLE` is the time for which a controller waits for this.
            Verb::Read | Verb::Claim => 14_000,
            Verb::Plug => 1,
            Verb::Change => 20_000,
            Verb::Create => 150_000,
        };
        match random.below(16) {
            0..3 => Fate::Refused,
            3..6 => Fate::Throttled,
            6..8 => Fate::Lost,
            8..10 => Fate::Late(Duration::from_millis(random.below(late))),
            10..12 => Fate::Twice,
            12 => Fate::DeadBefore,
            13 => Fate::DeadAfter,
            _ => Fate::Strange,
        }
    }
}

/// A small random number generator (splitmix64); its seed repeats a run.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a random index below `end`.
    pub(crate) fn index(&mut self, end: u64) -> usize {
        usize::try_from(self.below(end)).unwrap()
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}
