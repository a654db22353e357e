//! `belayctl ls`: the sockets of drivers on this node, and the services on each.

use crate::drivers::Search;
use crate::failure::Failure;
use crate::render::{Answer, Cell, Rows};

/// Lists the sockets.
///
/// # Errors
/// Never fails; a socket without an answer is listed with the reason.
pub(crate) async fn run(search: &Search) -> Result<Answer, Failure> {
    let rows = search.look().await.into_iter().map(|found| {
        let ready = found.ready.map(|ready| if ready { "yes" } else { "no" });
        let ready = if found.trouble.is_empty() {
            ready.unwrap_or_default().to_owned()
        } else {
            found.trouble
        };
        vec![
            Cell::Text(found.socket.display().to_string()),
            Cell::Text(found.driver),
            Cell::List(found.serves),
            Cell::Text(ready),
            Cell::Text(found.version),
            Cell::number(found.pid),
        ]
    });
    let columns = ["socket", "driver", "serves", "ready", "version", "pid"];
    Ok(Answer::Rows(Rows {
        narrow: 4,
        ..Rows::new("sockets", &columns, rows)
    }))
}
