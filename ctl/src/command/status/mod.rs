//! `belayctl status` and `belayctl top`: the drivers of this node on one screen, by their sockets,
//! their metrics and the mounts.

mod screen;
mod view;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::ls::{Found, Search};
use crate::failure::Failure;
use crate::machine::pages::{self, Page};
use crate::machine::{mounts, process};
use crate::render::{self, Answer, Output, Rows};
use crate::target::Target;
use view::{Driver, History};

#[derive(Args, Clone)]
pub(crate) struct Status {
    #[command(flatten)]
    search: Search,
    /// Metrics page (--http-endpoint) of a program; may be repeated [default: found by its socket]
    #[arg(long = "metrics", value_name = "ADDRESS:PORT")]
    metrics: Vec<SocketAddr>,
}

#[derive(Args)]
pub(crate) struct Top {
    #[command(flatten)]
    status: Status,
    /// Seconds between two screens
    #[arg(long, short = 'd', default_value_t = 2, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    delay: u64,
    /// Number of screens [default: until interrupted]
    #[arg(long, short = 'n', value_name = "COUNT")]
    count: Option<u32>,
}

impl Status {
    /// Reads everything once.
    ///
    /// # Errors
    /// /proc is not readable.
    pub(crate) async fn run(&self) -> Result<Answer, Failure> {
        let drivers = self.drivers(&mut History::default()).await?;
        let good = drivers.iter().all(Driver::is_good);
        Ok(answer(&drivers).verdict(good))
    }

    async fn drivers(&self, history: &mut History) -> Result<Vec<Driver>, Failure> {
        let mounts = mounts::all()?;
        let mut pages = Vec::new();
        for address in &self.metrics {
            let page = pages::metrics(*address);
            pages.push(
                page.map_err(|error| Failure::Usage(format!("--metrics {address}: {error}")))?,
            );
        }
        let mut of_process: BTreeMap<u32, Page> = BTreeMap::new();
        let mut drivers = Vec::new();
        for found in self.search.look().await {
            // The kubelet's side of a driver is on the line of its CSI socket.
            if found.serves.iter().any(|name| name == "registration") {
                continue;
            }
            let own = |pid| {
                of_process
                    .entry(pid)
                    .or_insert_with(|| page_of(pid))
                    .clone()
            };
            let own = found.pid.map(own).filter(|page| *page != Page::default());
            let page = own.unwrap_or_else(|| named(&pages, &found));
            drivers.push(Driver::new(found, &page, &mounts, history));
        }
        Ok(drivers)
    }
}

/// The metrics of a process; empty if it has none.
fn page_of(pid: u32) -> Page {
    let listens = process::listens(pid).into_iter();
    let mut pages = listens.filter_map(|address| pages::metrics(address).ok());
    pages.next().unwrap_or_default()
}

/// Of the pages that the user has named, the one with this driver.
fn named(pages: &[Page], found: &Found) -> Page {
    let label = Some(("driver", found.driver.as_str()));
    let mut pages = pages.iter();
    let page = pages.find(|page| page.of("belay_build_info", label).next().is_some());
    page.cloned().unwrap_or_default()
}

impl Top {
    /// Draws until interrupted; in place on a terminal, screen after screen elsewhere.
    ///
    /// # Errors
    /// As [`Status::run`].
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let in_place = target.is_table() && std::io::stdout().is_terminal();
        let mut history = History::default();
        let mut left = self.count;
        while left != Some(0) {
            let drivers = self.status.drivers(&mut history).await?;
            let screen = match target.output {
                Output::Table | Output::Wide => screen::draw(&drivers, in_place),
                _ => answer(&drivers).text(target.output),
            };
            render::write(&screen)?;
            left = left.map(|left| left - 1);
            if left != Some(0) {
                tokio::time::sleep(Duration::from_secs(self.delay)).await;
            }
        }
        Ok(Answer::Printed)
    }
}

fn answer(drivers: &[Driver]) -> Answer {
    let rows = drivers.iter().map(Driver::cells);
    Answer::Rows(Rows {
        narrow: view::NARROW,
        ..Rows::new("drivers", &view::COLUMNS, rows)
    })
}
