//! Checks which team a token belongs to. With the token of another team, all volumes would be
//! missing: DeleteVolume would succeed, and CreateVolume would create a second volume. So every
//! replica reads the first token's team at the start, even if it never makes a call, and a token
//! that replaces a refused one is used only if it belongs to the same team. A token may lack the
//! scope for this (`account:read`), which no other call requires.

use super::{Client, Request, wire};
use belay_server::call::{Failure, Kind};
use belay_server::lock::Lock;
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::Instant;

/// The deadline of the query, which the first call waits for.
const DEADLINE: Duration = Duration::from_secs(10);
/// The interval between two attempts to read the team.
const INTERVAL: Duration = Duration::from_secs(60);

/// The team of the controller's volumes.
#[derive(Default)]
pub(super) struct Team(Lock<State>);

#[derive(Default)]
struct State {
    known: Option<Owner>,
    /// The time of the last query.
    asked: Option<Instant>,
    /// Whether the missing scope has been logged.
    is_hidden: bool,
}

/// The owner of a token: a team, or the user of an account without teams.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    Team(String),
    User(String),
}

/// The cloud's response about a token.
enum Said {
    Owner(Owner),
    /// The token lacks the scope for the query.
    Hidden,
    /// The token is refused.
    Refused,
}

#[derive(Deserialize)]
struct OneAccount {
    account: Account,
}

#[derive(Deserialize)]
struct Account {
    uuid: String,
    #[serde(default)]
    team: Option<TeamId>,
}

#[derive(Deserialize)]
struct TeamId {
    #[serde(default)]
    uuid: Option<String>,
}

impl Account {
    fn owner(self) -> Owner {
        let team = self.team.and_then(|team| team.uuid);
        team.map_or(Owner::User(self.uuid), Owner::Team)
    }
}

impl Team {
    /// Whether this call must query the team.
    fn is_to_ask(&self) -> bool {
        let mut state = self.0.lock();
        let is_recent = |asked: Instant| asked.elapsed() < INTERVAL;
        if state.known.is_some() || state.is_hidden || state.asked.is_some_and(is_recent) {
            return false;
        }
        state.asked = Some(Instant::now());
        true
    }

    /// Whether the team is unknown, and may still become known.
    fn is_open(&self) -> bool {
        let state = self.0.lock();
        state.known.is_none() && !state.is_hidden
    }

    /// Records the team if it is unknown, and returns the known one.
    fn learned(&self, owner: Owner) -> Owner {
        self.0.lock().known.get_or_insert(owner).clone()
    }

    fn hidden(&self) {
        if !std::mem::replace(&mut self.0.lock().is_hidden, true) {
            tracing::warn!(
                "the token has no scope account:read, so a later token of another team would not \
                 be noticed: with it, all volumes would seem to be missing"
            );
        }
    }
}

impl Client {
    /// Queries the team at the start, which does not wait for the response.
    ///
    /// # Errors
    /// Returns `Unauthenticated` if the token is refused, and the errors of the query.
    pub(in super::super) async fn inspect_team(&self) -> Result<(), Failure> {
        if !self.team.is_open() {
            return Ok(());
        }
        self.team.0.lock().asked = Some(Instant::now());
        let token = self.token.header();
        if self.learn_of(&token).await? {
            return Ok(());
        }
        match self.token.newer(&token).await {
            Some(newer) if self.takes(&newer).await? => Ok(()),
            _ => {
                let message = "--token-file: DigitalOcean refuses the token";
                Err(Failure::new(Kind::Unauthenticated, message))
            }
        }
    }

    /// Queries the team before a call, if it is unknown. A failure does not delay other calls.
    pub(super) async fn learn_team(&self, token: &HeaderValue) {
        if !self.team.is_to_ask() {
            return;
        }
        // If the token is refused, the call itself reports that.
        if let Err(failure) = self.learn_of(token).await {
            tracing::debug!(%failure, "the team of the token is not known yet");
        }
    }

    /// Reads the team of a token in use; returns false if the cloud refuses the token.
    async fn learn_of(&self, token: &HeaderValue) -> Result<bool, Failure> {
        match self.owner(token).await? {
            Said::Owner(owner) => drop(self.team.learned(owner)),
            Said::Hidden => self.team.hidden(),
            Said::Refused => return Ok(false),
        }
        Ok(true)
    }

    /// Uses the new token from now on if it belongs to the same team; returns false if the cloud
    /// refuses it. If the team of no earlier token is known, the new token is used without a
    /// comparison.
    ///
    /// # Errors
    /// Returns `Precondition` if the token belongs to another team or hides its team, and the
    /// errors of the query.
    pub(super) async fn takes(&self, newer: &HeaderValue) -> Result<bool, Failure> {
        let older = self.token.header();
        if older == *newer {
            return Ok(true);
        }
        // The query may fail, since the older token may already be invalid.
        if self.team.is_open() {
            self.learn_of(&older).await?;
        }
        let known = self.team.0.lock().known.clone();
        match self.owner(newer).await? {
            Said::Refused => return Ok(false),
            Said::Hidden => match known {
                None => self.team.hidden(),
                Some(known) => {
                    return Err(Failure::precondition(format!(
                        "--token-file: the new token has no scope account:read, so that its team \
                         is unknown, and is not used: this controller has the volumes of {known}; \
                         give it that scope, or restart the controller if it is of {known}"
                    )));
                }
            },
            Said::Owner(owner) => {
                let first = self.team.learned(owner.clone());
                if owner != first {
                    return Err(Failure::precondition(format!(
                        "--token-file: the new token is of {owner}, and is not used: this \
                         controller has the volumes of {first}; restart it after a change of team"
                    )));
                }
                if known.is_none() {
                    tracing::warn!(
                        "--token-file: the new token is of {owner}, which could not be compared: \
                         the token before is refused, and has never shown its team; make sure \
                         that the driver's volumes are in {owner}"
                    );
                }
            }
        }
        self.token.replace(newer.clone());
        Ok(true)
    }

    async fn owner(&self, token: &HeaderValue) -> Result<Said, Failure> {
        let request = Request {
            verb: "get_account",
            method: Method::GET,
            path: "account".to_owned(),
            body: Bytes::new(),
            deadline: DEADLINE,
        };
        let answer = self.answer_with(token, &request).await?;
        match answer.status {
            StatusCode::OK => Ok(Said::Owner(answer.json::<OneAccount>()?.account.owner())),
            // A proxy's response says nothing about the token.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if !wire::is_own(&answer) => {
                Err(answer.foreign("DigitalOcean"))
            }
            StatusCode::UNAUTHORIZED => Ok(Said::Refused),
            StatusCode::FORBIDDEN => Ok(Said::Hidden),
            _ => Err(wire::refused(&answer)),
        }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Team(uuid) => write!(f, "team {uuid}"),
            Self::User(uuid) => write!(f, "user {uuid}"),
        }
    }
}
