//! `belayctl status`: shows the drivers of this node, from their sockets, their metrics and the
//! mount table.

mod view;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use clap::Args;

use crate::drivers::{DriverSocket, Search};
use crate::failure::Failure;
use crate::flags;
use crate::machine::pages::{self, Page};
use crate::machine::{device, mounts, process};
use crate::render::{Answer, Rows};
use view::Driver;

#[derive(Args, Clone)]
pub(crate) struct Status {
    #[command(flatten)]
    search: Search,
    /// Metrics page (--http-endpoint) of a program; may be repeated [default: found by its socket]
    #[arg(long = "metrics", value_name = "ADDRESS:PORT", value_parser = flags::address)]
    metrics: Vec<SocketAddr>,
}

impl Status {
    /// Reads the state of all drivers once.
    ///
    /// # Errors
    /// Fails if /proc cannot be read.
    pub(crate) async fn run(&self) -> Result<Answer, Failure> {
        let drivers = self.drivers().await?;
        let good = drivers.iter().all(|driver| driver.is_good);
        let notes = drivers.iter().filter_map(|driver| driver.note.clone());
        let notes = notes.collect();
        let rows = drivers.into_iter().map(|driver| driver.cells);
        let answer = Answer::Rows(Rows {
            narrow: view::NARROW,
            notes,
            ..Rows::new("drivers", &view::COLUMNS, rows)
        });
        Ok(answer.verdict(good))
    }

    async fn drivers(&self) -> Result<Vec<Driver>, Failure> {
        let devices = device::all();
        let mut pages = Vec::new();
        for address in &self.metrics {
            let page = pages::metrics(*address);
            let wrong = |error| {
                Failure::Usage(format!(
                    "--metrics {address}: {error}; name the --http-endpoint of a Belay program"
                ))
            };
            pages.push(page.map_err(wrong)?);
        }
        let mut of_process: BTreeMap<u32, Page> = BTreeMap::new();
        let mut drivers = Vec::new();
        for mut found in self.search.look().await {
            // Skip the registration socket: the driver already has a row, for its CSI socket.
            if found.has("registration") {
                continue;
            }
            if found.ready == Some(false) && found.trouble.is_empty() {
                let pages = found.pid.map(process::listens).unwrap_or_default();
                let why = pages.into_iter().find_map(pages::not_ready);
                found.trouble = why.unwrap_or_else(|| "not ready; its log has the reason".into());
            }
            let own = |pid| {
                of_process
                    .entry(pid)
                    .or_insert_with(|| page_of(pid))
                    .clone()
            };
            let own = found.pid.map(own).filter(|page| *page != Page::default());
            let page = own.unwrap_or_else(|| named(&pages, &found));
            // Use the mount table of the driver's mount namespace if /proc shows the driver's
            // process and allows reading its mounts.
            let mounts = found.pid.and_then(|pid| mounts::of(pid).ok());
            let mounts = mounts.map_or_else(mounts::all, Ok)?;
            let is_node = found.has("node");
            let staged = is_node.then(|| view::staged(&found, &mounts, &devices));
            drivers.push(Driver::new(&found, &page, staged));
        }
        Ok(drivers)
    }
}

/// Returns the metrics of a process; an empty page if the process serves none.
fn page_of(pid: u32) -> Page {
    let listens = process::listens(pid).into_iter();
    let mut pages = listens.filter_map(|address| pages::metrics(address).ok());
    pages.next().unwrap_or_default()
}

/// Returns the page with metrics of this driver, among the pages that `--metrics` names.
fn named(pages: &[Page], found: &DriverSocket) -> Page {
    let label = Some(("driver", found.driver.as_str()));
    let mut pages = pages.iter();
    let page = pages.find(|page| page.of("belay_build_info", label).next().is_some());
    page.cloned().unwrap_or_default()
}
