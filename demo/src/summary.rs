//! The end of the demo: the table of times compared with the kernel's, the programs' own metrics,
//! and the commands for programs that are kept.

use std::time::Duration;

use belay_bed::scrape::status;
use serde_json::{Value, json};

use crate::agents::{Agent, Agents};
use crate::demo_dir::{CONTROLLER, DemoDir, NODE};
use crate::kind::{Scene, StateFs};
use crate::progress::Progress;
use crate::samples::{KernelsPart, Samples, Step, Who, show};
use crate::scrape;
use crate::trouble::Trouble;
use belay_ctl::table::align;

/// Width of the bar that shows the kernel's share.
const BAR: usize = 16;

/// Limit of the node agent's resident memory, in KiB (benches/BUDGET.md).
const NODE_RESIDENT_KIB_MAX: u64 = 5 * 1024;

/// How many phases of an operation are shown, the longest ones.
const PHASES_MAX: usize = 4;

const HOW_MEASURED: [&str; 6] = [
    "Belay: the caller's time for one call. Every node call opens a new connection, as the kubelet",
    "does, and that is in the time; the controller is called on one connection, as by a sidecar.",
    "Kernel: bare system calls (and mkfs) on a similar device in the same rounds, without checks",
    "and without the ioctls that bind and release its loop device, which are in Belay's time.",
    "Bar: the kernel's part (█) of Belay's time. Below 1x, the kernel's own call took longer in",
    "these rounds, e.g. on a noisy disk; the bar is full then.",
];

/// The table of times, one section per kind.
pub(crate) fn times(progress: &Progress, samples: &Samples, rounds: u32, repeated: u32) {
    progress.heading(&format!("What it costs: p50 of {rounds} rounds"));
    for line in HOW_MEASURED {
        progress.line(&format!("  {line}"));
    }
    if let Some(empty) = samples.empty_call_p50() {
        let cost = show(empty);
        let text =
            format!("  A node call that does nothing (Probe) takes {cost}: this part of every");
        progress.line(&text);
        progress.line("  node call is connecting and gRPC, at both ends.");
    }
    if repeated > 0 {
        let text = format!("  {repeated} node calls were ABORTED at first and retried, as ");
        progress.line(&format!("{text}the kubelet does."));
    }
    for scene in samples.scenes() {
        progress.line("");
        for line in table(samples, scene).lines() {
            progress.line(&format!("  {line}"));
        }
    }
}

fn table(samples: &Samples, scene: Scene) -> String {
    let title = format!("{:<18}", scene.name());
    let mut lines = vec![
        [
            &title,
            "    belay",
            "   kernel",
            "  ratio",
            "share",
            "the kernel's own",
        ]
        .map(ToOwned::to_owned)
        .to_vec(),
    ];
    for &step in Step::of(scene) {
        let Some(belay) = samples.p50(scene, step, Who::Belay) else {
            continue;
        };
        let kind = scene.kind();
        let mut line = vec![step.label(kind).to_owned(), format!("{:>9}", show(belay))];
        let kernel = samples.p50(scene, step, Who::Kernel);
        line.extend(match (step.kernels_part(kind), kernel) {
            (KernelsPart::Measured(what), Some(kernel)) => [
                format!("{:>9}", show(kernel)),
                format!("{:>7}", ratio(belay, kernel)),
                bar(belay, kernel),
                what.to_owned(),
            ],
            (KernelsPart::Measured(_), None) => {
                ["        -", "", "", "not measured without shared blocks"].map(ToOwned::to_owned)
            }
            (KernelsPart::IoctlsOnly, _) => {
                ["        -", "", "", "ioctls, not measured bare"].map(ToOwned::to_owned)
            }
        });
        lines.push(line);
    }
    align(&lines)
}

/// The tables as JSON: times in microseconds, the median of all rounds.
pub(crate) fn json(samples: &Samples, rounds: u32, repeated: u32, state: StateFs) -> Value {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let scene = |scene: Scene| {
        let steps = Step::of(scene).iter().filter_map(|&step| {
            let belay = samples.p50(scene, step, Who::Belay)?;
            let (what, kernel) = match step.kernels_part(scene.kind()) {
                KernelsPart::Measured(what) => {
                    let kernel = samples.p50(scene, step, Who::Kernel);
                    (kernel.map(|_measured| what), kernel)
                }
                KernelsPart::IoctlsOnly => (None, None),
            };
            Some(json!({
                "step": step.label(scene.kind()),
                "belay_us": us(belay),
                "kernel_us": kernel.map(us),
                "kernel_calls": what,
            }))
        });
        json!({ "scene": scene.name(), "steps": steps.collect::<Vec<_>>() })
    };
    json!({
        "rounds": rounds,
        "state_filesystem": state.name(),
        "empty_call_us": samples.empty_call_p50().map(us),
        "repeated_calls": repeated,
        "scenes": samples.scenes().into_iter().map(scene).collect::<Vec<_>>(),
    })
}

/// `belay / kernel` with one decimal.
fn ratio(belay: Duration, kernel: Duration) -> String {
    let tenths = belay.as_nanos() * 10 / kernel.as_nanos().max(1);
    format!("{}.{}x", tenths / 10, tenths % 10)
}

/// The kernel's part of Belay's time; never more than all, never empty.
fn bar(belay: Duration, kernel: Duration) -> String {
    let cells = (0..BAR as u128)
        .take_while(|cell| cell * belay.as_nanos() < kernel.as_nanos() * BAR as u128)
        .count();
    format!("{}{}", "█".repeat(cells), "░".repeat(BAR - cells))
}

/// `/metrics` of both binaries, and their memory.
///
/// # Errors
/// A program does not answer, or the node agent exceeds its memory limit.
pub(crate) fn metrics(progress: &Progress, agents: &Agents) -> Result<(), Trouble> {
    let mut resident_kib = 0;
    for (name, agent) in [(CONTROLLER, &agents.controller), (NODE, &agents.node)] {
        progress.heading(&format!("Metrics of {name}, http://{}/metrics", agent.http));
        resident_kib = one_binary(progress, agent)?;
    }
    // Programs built for debugging are several times as large.
    if cfg!(debug_assertions) || resident_kib <= NODE_RESIDENT_KIB_MAX {
        return Ok(());
    }
    Err(Trouble::Untrue(format!(
        "{NODE} has {resident_kib} KiB resident, over its limit of {NODE_RESIDENT_KIB_MAX}; see \
         benches/BUDGET.md"
    )))
}

/// Returns the resident memory in KiB.
fn one_binary(progress: &Progress, agent: &Agent) -> Result<u64, Trouble> {
    let text = scrape::metrics(agent.http)?;
    let mut lines = vec![
        ["rpc", "calls", "mean inside"]
            .map(ToOwned::to_owned)
            .to_vec(),
    ];
    for (rpc, calls) in scrape::by_rpc(&text) {
        lines.push(vec![
            rpc,
            format!("{:>5}", calls.count),
            format!("{:>11}", show(calls.mean())),
        ]);
    }
    for line in align(&lines).lines() {
        progress.line(&format!("  {line}"));
    }
    let mut lines = Vec::new();
    for (operation, phases) in scrape::by_operation(&text) {
        let longest = phases.iter().take(PHASES_MAX);
        let reported = longest.map(|(phase, calls)| format!("{phase} {}", show(calls.mean())));
        lines.push(vec![operation, reported.collect::<Vec<_>>().join(", ")]);
    }
    if !lines.is_empty() {
        progress.line("  time by phase, mean:");
    }
    for line in align(&lines).lines() {
        progress.line(&format!("    {line}"));
    }
    for (name, value) in scrape::others(&text) {
        progress.line(&format!("  {name} {value}"));
    }
    let ended = || Trouble::Ended("a program exited during the demo".to_owned());
    let kb = status(agent.pid().ok_or_else(ended)?, "VmRSS")?;
    progress.line(&format!("  resident memory (VmRSS): {kb} kB"));
    Ok(kb)
}

/// Prints the commands for the programs that are kept.
pub(crate) fn kept(progress: &Progress, demo_dir: &DemoDir, outer: u32) {
    let (node, controller) = (demo_dir.socket(NODE), demo_dir.socket(CONTROLLER));
    let (node, controller) = (node.display(), controller.display());
    progress.heading("Kept running (KEEP)");
    progress.line(&format!(
        "  belayctl --endpoint {controller} controller create mine --size 1GiB\n  \
         belayctl --endpoint {controller} controller list\n  \
         belayctl --endpoint {node} node info\n  \
         logs: {}, {}\n  \
         its namespaces: nsenter --mount --pid \\\n  \
         \x20   --target $(pgrep --parent $(pgrep --parent {outer} unshare))\n  \
         to stop: Ctrl-C here, or kill {outer}",
        demo_dir.log(CONTROLLER).display(),
        demo_dir.log(NODE).display(),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn the_ratio_has_one_decimal_and_survives_a_zero() {
        for (belay, kernel, text) in [(15, 10, "1.5x"), (5, 10, "0.5x"), (200, 1, "200.0x")] {
            assert_eq!(ratio(us(belay), us(kernel)), text);
        }
        assert_eq!(ratio(us(1), us(0)), "1000.0x");
    }

    #[test]
    fn the_bar_shows_the_kernels_share() {
        for (belay, kernel, full) in [(16, 8, 8), (16, 16, 16), (16, 99, 16), (1_000, 1, 1)] {
            let bar = bar(us(belay), us(kernel));
            assert_eq!(
                bar.chars().filter(|c| *c == '█').count(),
                full,
                "{belay} {kernel}"
            );
            assert_eq!(bar.chars().count(), BAR);
        }
    }

    #[test]
    fn a_step_of_ioctls_has_no_ratio_and_one_never_done_has_no_line() {
        let xfs = Scene::Life(Kind::Xfs);
        let mut samples = Samples::default();
        samples.add(xfs, Step::NodeExpand, Who::Belay, us(3_000));
        samples.add(xfs, Step::Stats, Who::Belay, us(200));
        samples.add(xfs, Step::Stats, Who::Kernel, us(100));
        let text = table(&samples, xfs);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[1].starts_with("stats") && lines[1].ends_with("statfs"),
            "{text}"
        );
        assert!(lines[1].contains("2.0x"), "{text}");
        assert!(lines[2].contains("3.00 ms"), "{text}");
        assert!(lines[2].ends_with("ioctls, not measured bare"), "{text}");
    }

    #[test]
    fn copies_have_a_table_that_lines_up_and_are_in_the_json() {
        let scene = Scene::Copies(Kind::Ext4);
        let mut samples = Samples::default();
        samples.add(scene, Step::Snapshot, Who::Belay, us(1_500));
        samples.add(scene, Step::Clone, Who::Belay, us(800));
        samples.add(scene, Step::Clone, Who::Kernel, us(400));
        // Shown, but not in the table.
        samples.add(scene, Step::Overwrite, Who::Belay, us(9));
        let text = table(&samples, scene);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let times = [lines[1].find(" ms"), lines[2].find(" µs")];
        assert_eq!(times[0], times[1], "{text}");
        assert!(
            lines[1].ends_with("not measured without shared blocks"),
            "{text}"
        );
        let reported = json(&samples, 5, 0, StateFs::Ext4);
        assert_eq!(reported["scenes"][0]["scene"], "copies of ext4");
        let steps = &reported["scenes"][0]["steps"];
        assert_eq!(steps[0]["step"], "snapshot");
        assert_eq!(steps[0]["belay_us"], 1_500);
        assert_eq!(steps[0]["kernel_us"], Value::Null);
        assert_eq!(steps[1]["kernel_us"], 400);
        assert_eq!(steps[2], Value::Null);
    }
}
