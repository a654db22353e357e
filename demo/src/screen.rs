//! The screen of the demo, as lines of text for a given width. The lines do not depend on the
//! terminal; only `paint` adds colours.

use std::time::Duration;

use crate::demo_dir::STATE_FS;
use crate::report::{
    Kind, NODE_EXPAND, PROBE, PUBLISH, READ, READ_ONLY, Report, STAGE_AGAIN, STAGE_FIRST, Side,
    Step, UNPUBLISH, UNSTAGE, WRITE, show, show_short,
};

/// The minimum and maximum width of the screen, in columns.
pub(crate) const WIDTHS: (usize, usize) = (80, 120);

/// The columns of the matrix of volume kinds and steps, in the order of a lifecycle, with the steps
/// of each column.
const COLUMNS: [(&str, Step); 12] = [
    ("create", "create"),
    ("stage", STAGE_FIRST),
    ("publish", PUBLISH),
    ("write", WRITE),
    ("stats", "stats"),
    ("read-only", READ_ONLY),
    ("grow", NODE_EXPAND),
    ("unpublish", UNPUBLISH),
    ("unstage", UNSTAGE),
    ("restage", STAGE_AGAIN),
    ("compare", READ),
    ("delete", "delete"),
];
/// The width of the section names at the left, in columns.
const LABEL: usize = 9;
/// The width of a column of the matrix, without times and with times.
const COLUMN: (usize, usize) = (5, 8);

/// The calls that the screen shows as bars, for a volume that is already formatted.
const BARS: [(&str, Step); 4] = [
    ("stage", STAGE_AGAIN),
    ("publish", PUBLISH),
    ("unpublish", UNPUBLISH),
    ("unstage", UNSTAGE),
];
/// The characters of a bar: for the time of the direct system calls, for the time of a Probe call
/// (the cost of gRPC), and for the rest of the time.
const MARKS: [char; 3] = ['█', '▒', '░'];

/// The characters with a colour, and the SGR code of each colour (ECMA-48).
const COLOURS: [(char, u8); 4] = [('✓', 32), ('█', 34), ('▒', 36), ('░', 33)];

/// Renders the whole screen.
pub(crate) fn render(report: &Report, width: usize) -> Vec<String> {
    let width = width.clamp(WIDTHS.0, WIDTHS.1);
    let mut lines = vec![format!(
        "Belay {}: volumes on loop devices, state directory on {STATE_FS}, rounds: {}",
        env!("CARGO_PKG_VERSION"),
        report.rounds
    )];
    lines.extend(matrix(report, width));
    for topic in ["Copies", "Refused", "Killed"] {
        // Each fact is the result of a check. Its line has a tick, unless the line continues the
        // previous one.
        let facts = report.facts(topic).into_iter();
        let ticked = facts.map(|text| match text.strip_prefix(' ') {
            Some(more) => format!("  {more}"),
            None => format!("✓ {text}"),
        });
        lines.extend(section(topic, &ticked.collect::<Vec<_>>()));
    }
    lines.extend(bars(report, width));
    lines.extend(section("Memory", &report.facts("Memory")));
    lines.iter().map(|line| fit(line, width)).collect()
}

/// Returns an empty line and then the given lines. The first of these has the name of the section
/// at the left. Returns nothing if there are no lines.
pub(crate) fn section(label: &str, lines: &[String]) -> Vec<String> {
    let names = std::iter::once(label).chain(std::iter::repeat(""));
    let named = names.zip(lines);
    let named = named.map(|(name, line)| format!("{name:<LABEL$}{line}"));
    let empty = (!lines.is_empty()).then(String::new);
    empty.into_iter().chain(named).collect()
}

/// Renders the matrix of kinds of volumes and steps. The names of the columns are wider than the
/// columns, so the names alternate between two lines.
fn matrix(report: &Report, width: usize) -> Vec<String> {
    let has_times = LABEL + COLUMNS.len() * COLUMN.1 <= width + 1;
    let column = if has_times { COLUMN.1 } else { COLUMN.0 };
    let label = LABEL - 2;
    let mut lines = vec![String::new()];
    for first in [0, 1] {
        let offset = " ".repeat(label + first * column);
        let names = COLUMNS.iter().skip(first).step_by(2);
        let names = names.map(|(name, _)| format!("{name:<0$}", 2 * column));
        lines.push(format!("{offset}{}", names.collect::<String>()));
    }
    for &kind in &report.kinds {
        let cells = COLUMNS.iter().map(|&(_, step)| {
            let is_refused = report.cannot_grow_ext4 && kind == Kind::Ext4 && step == NODE_EXPAND;
            let mark = match report.rank(kind, step, Side::Belay, 2) {
                _ if is_refused => "-".to_owned(),
                Some(time) if has_times => format!("✓ {}", show_short(time)),
                Some(_) => "✓".to_owned(),
                None if kind.is_block() && step == READ_ONLY => String::new(),
                None => "·".to_owned(),
            };
            format!("{mark:<column$}")
        });
        let name = kind.name();
        lines.push(format!("{name:<label$}{}", cells.collect::<String>()));
    }
    if report.cannot_grow_ext4 {
        let why = "growing a mounted ext4 needs CAP_SYS_RESOURCE, not available here";
        lines.push(format!("{:label$}- {why}", ""));
    }
    lines
}

/// Renders the parts of the time of each call, and the ratio of this time to the floor: the
/// smallest possible time, which benches/BUDGET.md defines.
fn bars(report: &Report, width: usize) -> Vec<String> {
    let [kernel, grpc, belay] = MARKS;
    let legend = format!("{kernel} kernel  {grpc} gRPC, both ends (Probe)  {belay} Belay");
    let head = format!("p25, floor = {kernel} + {grpc}");
    let gap = width - LABEL - legend.chars().count() - head.chars().count();
    let mut lines = vec![format!("{legend}{:gap$}{head}", "")];
    let mut is_noisy = false;
    for kind in report.kinds_with_bars() {
        for (name, step) in BARS {
            let p25 = |step, side| report.rank(kind, step, side, 4);
            let whole = p25(step, Side::Belay).zip(p25(step, Side::Kernel));
            let Some(((belay, kernel), probe)) = whole.zip(p25(PROBE, Side::Belay)) else {
                continue;
            };
            let call = format!("{} {name}", kind.name());
            let left = format!("{call:<15} {:>9}  ", show(belay));
            let ratio = belay.div_duration_f64(kernel + probe);
            let right = format!("  {ratio:>5.1} × floor");
            is_noisy |= belay < kernel + probe;
            let cells = width - LABEL - left.chars().count() - right.chars().count();
            let bar = bar(belay, [kernel, probe], cells);
            lines.push(format!("{left}{bar}{right}"));
        }
    }
    if is_noisy {
        lines.push("below 1.0, the disk or other processes slowed the bare calls".to_owned());
    }
    match lines.len() {
        // Omit the explanation of the bars if there is no bar.
        1 => Vec::new(),
        _ => section("Time", &lines),
    }
}

/// Renders a time as a bar of `cells` characters: each part of the time with its own character, and
/// the rest with the last character.
fn bar(whole: Duration, parts: [Duration; 2], cells: usize) -> String {
    let whole = whole.as_nanos().max(1);
    let ends = [parts[0], parts[0] + parts[1]].map(|sum| {
        let end = (sum.as_nanos().min(whole) * cells as u128 + whole / 2) / whole;
        usize::try_from(end).unwrap_or(cells)
    });
    let mark = |cell| MARKS[ends.iter().filter(|end| cell >= **end).count()];
    (0..cells).map(mark).collect()
}

/// Cuts a line that is too long, so that a terminal does not wrap it.
pub(crate) fn fit(line: &str, width: usize) -> String {
    let line = line.trim_end();
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Adds colours: sections in bold, ticks in green, and the parts of bars.
pub(crate) fn paint(line: &str) -> String {
    let name = match line.find("  ") {
        _ if !line.starts_with(char::is_uppercase) => 0,
        end => end.unwrap_or(line.len()),
    };
    let (name, rest) = line.split_at(name);
    let mut text = match name {
        "" => String::new(),
        name => format!("\x1b[1m{name}\x1b[0m"),
    };
    for c in rest.chars() {
        match COLOURS.iter().find(|(mark, _)| *mark == c) {
            None => text.push(c),
            Some((_, code)) => text.push_str(&format!("\x1b[{code}m{c}\x1b[0m")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 4] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Block];

    /// Returns a report with everything that the screen can show, with long numbers.
    fn full() -> Report {
        let mut report = Report::new(1_000, &KINDS);
        let us = Duration::from_micros;
        for (kind, (_, step)) in KINDS.iter().flat_map(|k| COLUMNS.map(|c| (*k, c))) {
            report.add(kind, step, Side::Belay, us(999_999));
            let kernel = us(if step == UNSTAGE { 999_999 } else { 499_999 });
            report.add(kind, step, Side::Kernel, kernel);
        }
        report.cannot_grow_ext4 = true;
        for kind in KINDS {
            report.add(kind, PROBE, Side::Belay, us(250_000));
        }
        for topic in ["Copies", "Refused", "Killed", "Memory"] {
            report.fact(topic, "a fact");
            report.fact(topic, &format!(" {}", "long ".repeat(40)));
        }
        report
    }

    fn widest(lines: &[String]) -> usize {
        lines.iter().map(|l| l.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn no_line_is_wider_than_the_screen_and_the_bars_fill_it() {
        for width in [80, 81, 100, 119, 120] {
            let lines = render(&full(), width);
            assert_eq!(widest(&lines), width);
            let bar = lines.iter().find(|line| line.contains("ext4 stage"));
            assert_eq!(bar.unwrap().chars().count(), width);
        }
        assert_eq!(widest(&render(&full(), 40)), 80, "cut by `fit` later");
        assert_eq!(widest(&render(&full(), 300)), 120);
    }

    #[test]
    fn the_ticks_are_below_the_names_of_their_columns() {
        for width in [80, 120] {
            let lines = render(&full(), width);
            let heads: Vec<Vec<char>> = lines[2..4].iter().map(|l| l.chars().collect()).collect();
            let row = lines.iter().find(|line| line.starts_with("xfs")).unwrap();
            let marks = row.chars().enumerate().filter(|(_, c)| *c == '✓');
            let marks: Vec<usize> = marks.map(|(at, _)| at).collect();
            assert_eq!(marks.len(), COLUMNS.len());
            for (nth, (at, (name, _))) in marks.into_iter().zip(COLUMNS).enumerate() {
                let head: String = heads[nth % 2][at..].iter().collect();
                assert!(head.starts_with(name), "{name} at {at} of {width}: {head}");
            }
        }
    }

    #[test]
    fn the_matrix_shows_what_is_open_what_is_done_and_what_is_refused() {
        let report = Report::new(1, &[Kind::Block]);
        let open = render(&report, 80);
        assert_eq!(open.last().unwrap().matches('·').count(), COLUMNS.len() - 1);
        let lines = render(&full(), 120);
        assert!(
            lines[4].contains("✓ 999ms") && lines[4].contains("-  "),
            "{}",
            lines[4]
        );
        assert!(lines[8].contains("CAP_SYS_RESOURCE"), "{lines:?}");
    }

    #[test]
    fn the_summary_has_at_most_forty_lines() {
        let mut lines = render(&full(), 80);
        // The sections about leftovers and next steps follow below.
        let next = section("Next", &crate::outer::NEXT.map(str::to_owned));
        for line in &next {
            assert!(line.chars().count() <= 80, "{line}");
        }
        lines.extend(vec![String::new(); 3]);
        lines.extend(next);
        assert_eq!(lines.len(), 40, "{lines:#?}");
    }

    #[test]
    fn a_bar_shows_the_shares_and_is_always_full() {
        let ns = Duration::from_nanos;
        for (whole, parts, lengths) in [
            (240, [60, 60], [6, 6, 12]),
            (240, [0, 0], [0, 0, 24]),
            (240, [500, 100], [24, 0, 0]),
            (240, [120, 240], [12, 12, 0]),
            (0, [1, 1], [24, 0, 0]),
        ] {
            let text = bar(ns(whole), parts.map(ns), 24);
            let found = MARKS.map(|mark| text.chars().filter(|c| *c == mark).count());
            assert_eq!(found, lengths, "{text}");
        }
    }

    #[test]
    fn the_ratio_is_to_the_floor_of_the_budget() {
        // The times are 999,999, 499,999 and 250,000 us.
        let lines = render(&full(), 80);
        let bar = lines.iter().find(|line| line.contains("ext4 stage"));
        assert!(bar.unwrap().ends_with("1.3 × floor"), "{bar:?}");
    }

    #[test]
    fn colours_change_nothing_but_the_colour() {
        for line in render(&full(), 80) {
            let mut plain = String::new();
            for (nth, part) in paint(&line).split('\x1b').enumerate() {
                let text = part.split_once('m').filter(|_| nth > 0);
                plain.push_str(text.map_or(part, |(_, text)| text));
            }
            assert_eq!(plain, line);
        }
        assert!(paint("Time     x").starts_with("\x1b[1mTime\x1b[0m "));
        assert!(!paint("ext4   x").contains('\x1b'));
    }
}
