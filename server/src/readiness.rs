//! Whether the driver can work, and if not, why: set by whoever knows, read by Probe and /healthz.

use std::sync::{Arc, PoisonError, RwLock};

/// One state, shared by all clones.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<RwLock<State>>);

/// How the driver is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Still on its way, and why it is not there yet.
    Starting(String),
    /// Fit to serve.
    Ready,
    /// Cannot work until somebody does something; a lowercase fragment that says what.
    Unhealthy(String),
}

impl Readiness {
    /// In this state for now.
    #[must_use]
    pub fn new(state: State) -> Self {
        Self(Arc::new(RwLock::new(state)))
    }

    /// Goes to this state.
    pub fn set(&self, state: State) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// The state now.
    #[must_use]
    pub fn state(&self) -> State {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
