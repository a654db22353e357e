//! Serves the twin of DigitalOcean to a program of another language: prints its URL, and serves
//! until its input ends.
//!
//! `belay-twins [--delay-ms N] [--calls-a-minute N] DROPLET...`

use belay_twins::Server;
use belay_twins::digitalocean::DigitalOcean;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

/// The regions of the cloud; the droplets are in the first.
const REGIONS: &[&str] = &["nyc1", "fra1"];

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("belay-twins: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let (mut delay, mut calls, mut droplets) = (0, None, Vec::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--delay-ms" => delay = number(words.next())?,
            "--calls-a-minute" => calls = Some(number(words.next())?),
            _ => droplets.push(number(Some(word))?),
        }
    }
    let cloud = DigitalOcean::new(REGIONS, &droplets);
    cloud.settings().delay = Duration::from_millis(delay);
    if let Some(calls) = calls.and_then(|calls| usize::try_from(calls).ok()) {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
        cloud.limit((calls, minute), (5000, hour));
    }
    let server = Server::start(cloud)?;
    let mut output = io::stdout();
    writeln!(output, "{}", server.url())?;
    output.flush()?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn number(word: Option<String>) -> io::Result<u64> {
    let word = word.unwrap_or_default();
    let parsed = word.parse();
    parsed.map_err(|error| io::Error::other(format!("{word:?}: must be a number: {error}")))
}
