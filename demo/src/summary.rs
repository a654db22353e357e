//! The end of the demo: weight and metrics of the programs, and the commands for programs that are
//! kept.

use std::path::Path;

use belay_bed::scrape::{self, status};

use crate::agents::{Agent, Agents};
use crate::demo_dir::{CONTROLLER, DemoDir, NODE};
use crate::progress::Progress;
use crate::report::{Report, Topic};
use crate::screen;
use crate::trouble::Trouble;
use belay_ctl::size;

/// Limit of the node agent's resident memory, in KiB (benches/BUDGET.md).
const NODE_RESIDENT_KIB_MAX: u64 = 5 * 1024;
/// The metric for the node agent's child processes: one mkfs each.
const FORMATS: &str = "belay_formats_total";

/// Records memory, threads and child processes of both programs.
///
/// # Errors
/// A program does not answer, the node agent exceeds its memory limit, or it formatted more often
/// than a volume was blank.
pub(crate) fn weigh(
    progress: &mut Progress,
    agents: &Agents,
    report: &mut Report,
) -> Result<(), Trouble> {
    let mut weights = Vec::new();
    let (mut kib, mut formats) = (0, 0.0);
    for (name, agent) in [(NODE, &agents.node), (CONTROLLER, &agents.controller)] {
        let ended = || Trouble::Ended("a program exited during the demo".to_owned());
        let pid = agent.pid().ok_or_else(ended)?;
        let (resident, threads) = (status(pid, "VmRSS")?, status(pid, "Threads")?);
        let threads = match threads {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        weights.push(format!("{name} {}, {threads}", size::show(resident << 10)));
        kib = kib.max(if name == NODE { resident } else { 0 });
        formats += metrics(progress, name, agent)?;
    }
    report.fact(Topic::Weight, weights.join("; "));
    let blank = report.blank_stages;
    if formats > f64::from(blank) || formats < f64::from(blank) {
        let text = format!("{blank} volumes were blank, and {NODE} formatted {formats}");
        return Err(Trouble::Untrue(text));
    }
    let text = format!("processes started: {blank} mkfs, one for each blank filesystem");
    report.fact(Topic::Weight, text);
    // Programs built for debugging are several times as large.
    if cfg!(debug_assertions) || kib <= NODE_RESIDENT_KIB_MAX {
        return Ok(());
    }
    Err(Trouble::Untrue(format!(
        "{NODE} has {kib} KiB resident, over its limit of {NODE_RESIDENT_KIB_MAX}; see \
         benches/BUDGET.md"
    )))
}

/// Prints a program's metrics with `--verbose`. Returns how many filesystems it made.
fn metrics(progress: &mut Progress, name: &str, agent: &Agent) -> Result<f64, Trouble> {
    let what = format!("http://{}/metrics", agent.http);
    progress.heading(&format!("Metrics of {name}, {what}"));
    let page = match scrape::get(agent.http, "/metrics") {
        Ok((200, page)) => page,
        Ok((status, _)) => return Err(Trouble::Untrue(format!("{what} answered {status}"))),
        Err(error) => return Err(Trouble::own(what, error)),
    };
    let mut formats = 0.0;
    for line in page.lines().filter(|line| line.starts_with("belay_")) {
        match scrape::sample(line) {
            Some((name, _, value)) if name == FORMATS => formats += value,
            Some((name, ..)) if name.ends_with("_bucket") => continue,
            _ => {}
        }
        progress.detail(&format!("  {line}"));
    }
    Ok(formats)
}

/// Prints the commands for the programs that are kept.
pub(crate) fn kept(progress: &mut Progress, bin_dir: &Path, demo_dir: &DemoDir, outer: u32) {
    let lines = [
        "both programs run until Ctrl-C; in another shell:".to_owned(),
        format!("PATH=$PATH:{}", bin_dir.display()),
        format!("cd {}", demo_dir.path().display()),
        format!("controller=$PWD/{CONTROLLER}.sock node=$PWD/{NODE}.sock"),
        "belayctl --endpoint $controller volume create mine --size 1GiB".to_owned(),
        "belayctl --endpoint $controller volume list".to_owned(),
        "belayctl --endpoint $node node info".to_owned(),
        "tail *.log".to_owned(),
        "their namespaces:".to_owned(),
        "nsenter --mount --pid --target \\".to_owned(),
        format!("    $(pgrep --parent $(pgrep --parent {outer} unshare))"),
        format!("to stop: Ctrl-C here, or kill {outer}"),
    ];
    // Not cut, whatever the length of the paths.
    for line in screen::section("Kept", &lines) {
        progress.line(&line);
    }
}
