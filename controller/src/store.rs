//! `belay-controller store`: executes the objects of Kubernetes for the disks of a node.

use crate::backend::local::orders::{Config, Orders};
use crate::backend::local::{self, Overcommit};
use crate::heap;
use crate::kubernetes::{ACCOUNT_DIR, Access, Client};
use belay_contract::drivers::local::disk_name;
use belay_server::call::Callers;
use belay_server::config::{ProcessArgs, parse_command};
use belay_server::readiness::{Readiness, State};
use belay_server::serve::{ServeConfig, listen, serve, terminations};
use belay_server::{log, memory, metrics};
use clap::Parser;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The first argument, which selects the command.
const COMMAND: &str = "store";
/// The maximum time between two reports of a disk. The controller regards a store as silent after
/// three minutes.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Deadline for running work at shutdown. Work that is not done then is continued after the next
/// start.
const DRAIN: Duration = Duration::from_secs(1);
/// Each disk also needs threads on which it is opened.
const OPENING_THREADS: usize = 2;
/// The number of the runtime's threads, which only dispatch work.
const WORKERS: usize = 1;

/// Executes the objects of Kubernetes for the disks of this node.
///
/// The controller (--backend nodes) writes LocalVolume and LocalSnapshot objects. This store
/// creates, expands and deletes their files, and reports each disk in a LocalDisk.
#[derive(Debug, Parser)]
#[command(name = "belay-controller store", version)]
struct Flags {
    /// Name of this Node in Kubernetes
    #[arg(long, env = "BELAY_NODE_NAME", value_name = "NAME")]
    node: String,

    /// Name and directory of a disk of this node; several times, or with commas, for several disks
    #[arg(
        long = "disk",
        env = "BELAY_DISKS",
        value_name = "NAME=DIR",
        value_delimiter = ',',
        value_parser = disk,
        required = true
    )]
    disks: Vec<(String, PathBuf)>,

    /// Maximum ratio of provisioned to actual space of each disk
    #[arg(
        long,
        env = "BELAY_OVERCOMMIT",
        value_name = "FACTOR",
        default_value = "1"
    )]
    overcommit: Overcommit,

    /// Directory with token and authority of the service account
    #[arg(long, value_name = "DIR", default_value = ACCOUNT_DIR)]
    account_dir: PathBuf,

    /// The server.
    #[command(flatten)]
    process: ProcessArgs,
}

/// Parses the name and the directory of a disk.
fn disk(text: &str) -> Result<(String, PathBuf), String> {
    let (name, dir) = text
        .split_once('=')
        .ok_or("expected NAME=DIR, such as default=/var/lib/belay/default")?;
    let (name, dir) = (disk_name(name)?, PathBuf::from(dir));
    match dir.is_absolute() {
        true => Ok((name, dir)),
        false => Err(format!(
            "disk {name}: {}: not an absolute path",
            dir.display()
        )),
    }
}

/// Runs the command if it is the first argument; returns `None` otherwise.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let flags = match parse_command::<Flags>(COMMAND, arguments)? {
        Ok(flags) => flags,
        Err(code) => return Some(code),
    };
    let _log = match log::init(flags.process.log_level, flags.process.log_format) {
        Ok(log) => log,
        Err(error) => {
            log::write(&format!("belay-controller: {error}\n"));
            return Some(ExitCode::FAILURE);
        }
    };
    Some(match flags.serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    })
}

impl Flags {
    fn serve(&self) -> Result<(), Box<dyn Error>> {
        self.refuse_shared_disks()?;
        heap::begin();
        metrics::begin(&self.process, [], env!("CARGO_PKG_VERSION"))?;
        let access = Access::of_pod(&self.account_dir, |name| std::env::var(name).ok())?;
        let client = Arc::new(Client::new(access)?);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads((local::THREADS_MAX + OPENING_THREADS) * self.disks.len())
            .thread_keep_alive(heap::KEEP_ALIVE)
            .on_thread_park(heap::park)
            .enable_all()
            .build()?;
        let readiness = Readiness::new(State::Ready);
        let config = Config {
            node: self.node.clone(),
            disks: self.disks.clone(),
            overcommit: self.overcommit,
            report_interval: REPORT_INTERVAL,
        };
        let served = runtime.block_on(async {
            let shutdown = terminations()?;
            let pages = listen(self.process.http_endpoint).await?;
            let orders = Orders::new(client, config, &readiness);
            let worked = orders.worked();
            tokio::spawn(orders.run());
            let serving = ServeConfig {
                program: concat!("belay-controller store ", env!("CARGO_PKG_VERSION")),
                pages,
                drain: DRAIN,
                readiness,
                callers: Callers::Any,
                rest: heap::rest,
                worked: Some(worked),
            };
            memory::give_back();
            Ok(serve(serving, Vec::new(), shutdown).await?)
        });
        runtime.shutdown_background();
        served
    }
}

impl Flags {
    /// Refuses two disks with one name or one directory.
    fn refuse_shared_disks(&self) -> Result<(), String> {
        for (at, (name, dir)) in self.disks.iter().enumerate() {
            let mut others = self.disks.iter().take(at);
            if let Some((other, _)) = others.find(|(of, at)| of == name || at == dir) {
                return Err(format!(
                    "--disk {name}={}: disk {other} has the same name or directory; give each \
                     disk its own",
                    dir.display()
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_a_name_and_an_absolute_directory() {
        let expected = ("fast-1".to_owned(), PathBuf::from("/srv/fast"));
        assert_eq!(disk("fast-1=/srv/fast"), Ok(expected));
        for (text, why) in [
            ("/srv/fast", "NAME=DIR"),
            ("=/srv/fast", "disk name \"\""),
            ("Fast=/srv/fast", "lowercase"),
            ("-a=/srv/fast", "inner hyphens"),
            ("fast=srv", "not an absolute path"),
        ] {
            let refused = disk(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
