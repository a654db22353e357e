//! Reads the team to which a token belongs. The token may lack the required scope `account:read`,
//! which no other call requires.

use super::{Client, Request, wire};
use crate::backend::cloud::account::{Identity, Login};
use crate::http::Answer;
use belay_server::call::{Failure, Kind};
use http::{HeaderValue, Method, StatusCode};
use std::time::Duration;

/// Maximum duration of the query.
const DEADLINE: Duration = Duration::from_secs(10);

/// Returns the team that owns the token, or the user if the account has no team.
fn identity(answer: &Answer) -> Result<Identity, Failure> {
    let user: String = answer.member("/account/uuid")?;
    Ok(Identity::Known(
        match answer.member::<Option<String>>("/account/team/uuid")? {
            Some(team) => format!("team {team}"),
            None => format!("user {user}"),
        },
    ))
}

impl Client {
    /// Checks that the cloud accepts the token, and records the team of the token.
    ///
    /// # Errors
    /// Returns the errors of [`Account::confirm`](super::Account::confirm).
    pub(in super::super) async fn log_in(&self) -> Result<(), Failure> {
        self.account.confirm(self).await
    }
}

impl Login for Client {
    type Key = HeaderValue;

    async fn identity(&self, token: &HeaderValue) -> Result<Result<Identity, Failure>, Failure> {
        let request = Request {
            verb: "get_account",
            method: Method::GET,
            path: "account".to_owned(),
            body: None,
            deadline: DEADLINE,
        };
        let answer = self.answer_with(token, &request).await?;
        match answer.status {
            StatusCode::OK => identity(&answer).map(Ok),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if !wire::is_own(&answer) => {
                Err(answer.foreign("DigitalOcean"))
            }
            StatusCode::UNAUTHORIZED => {
                let message = format!("GET /v2/account: {}", wire::TOKEN_REFUSED);
                Ok(Err(Failure::new(Kind::Unauthenticated, message)))
            }
            StatusCode::FORBIDDEN => Ok(Ok(Identity::Hidden(
                "an unknown team (no scope account:read)",
            ))),
            _ => Err(wire::refused(&answer)),
        }
    }
}
