//! `belayctl node jobs`: the operations in progress of a Belay program, from its HTTP page /jobs.

use std::net::SocketAddr;

use clap::Args;

use crate::failure::Failure;
use crate::flags;
use crate::machine::{pages, process};
use crate::render::{Answer, Cell, Rows};
use crate::target::Target;

#[derive(Args)]
pub(crate) struct Jobs {
    /// HTTP port of the program (--http-endpoint) [default: found by the socket]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = flags::address)]
    http: Option<SocketAddr>,
}

impl Jobs {
    /// Fetches the page, and returns its operations.
    ///
    /// # Errors
    /// Fails if the program has no such page, or if its port cannot be reached.
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let addresses = match self.http {
            Some(address) => vec![address],
            None => {
                let pid = process::of(&target.socket("node").await?).await;
                pid.map(process::listens).unwrap_or_default()
            }
        };
        let mut why = "no page /jobs found".to_owned();
        let mut found = addresses.iter().filter_map(|address| {
            let page = pages::get(*address, "/jobs");
            page.map_err(|error| why = format!("http://{address}/jobs: {error}"))
                .ok()
        });
        let page = found.next();
        let page = page.ok_or_else(|| {
            let cure = "start the program with --http-endpoint, and name that address by --http if \
                        belayctl is in another network namespace";
            Failure::Machine(format!("{why}; {cure}"))
        })?;
        let columns = ["volume_id", "call", "state", "phase", "age_us"];
        Ok(Answer::Rows(Rows::new(
            "jobs",
            &columns,
            page.lines().filter_map(row),
        )))
    }
}

/// Parses a line of the page: age in seconds, state, call, volume and phase, separated by tabs.
/// Returns `None` for a line with a different format.
fn row(line: &str) -> Option<Vec<Cell>> {
    let (age, rest) = line.split_once('\t')?;
    let age = Cell::Micros(pages::whole(age.parse::<f64>().ok()? * 1e6));
    let mut fields = rest.split('\t').map(|field| Cell::Text(field.to_owned()));
    let (state, call) = (fields.next()?, fields.next()?);
    let (volume, work) = (fields.next()?, fields.next()?);
    Some(vec![volume, call, state, work, age])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_another_form_is_left_out() {
        let cells = row("1.5\thung\tNodeStageVolume\tvol-1\tmount").unwrap();
        let shown: Vec<_> = cells.iter().map(|cell| cell.shown(false)).collect();
        assert_eq!(shown, ["vol-1", "NodeStageVolume", "hung", "mount", "1.5s"]);
        assert_eq!(row("ok"), None);
    }
}
