//! Draws the comparison as a picture (SVG): a bar for each call of a filesystem, divided as in the
//! table.

use std::fmt;

use crate::samples::micros;
use crate::table::Row;

const WIDTH: u32 = 720;
const ROW: u32 = 34;
/// The top of the first bar, in pixels.
const TOP: u32 = 78;
/// The left end of the bars, and the maximum of their right ends, in pixels.
const BARS: (u32, u32) = (110, 560);
/// The colours and names of a bar's parts: the bare calls, a Probe made in the same way, and the
/// rest.
const PARTS: [(&str, &str); 3] = [
    ("#8a99a8", "kernel: the bare system calls"),
    ("#c9d2da", "an empty gRPC call"),
    ("#f2b134", "Belay"),
];

/// The picture of one filesystem's rows; its `Display` output is SVG.
pub struct Plot<'a> {
    /// The rows of all filesystems.
    pub rows: &'a [Row],
    /// The filesystem type, with which the names of its rows begin.
    pub fs_type: &'a str,
}

impl Plot<'_> {
    /// Returns the filesystem's rows with the names of their calls.
    fn calls(&self) -> Vec<(&str, &Row)> {
        let calls = self.rows.iter().filter(|row| !row.empty_call.is_zero());
        calls
            .filter_map(|row| Some((row.name.strip_prefix(self.fs_type)?.trim_start(), row)))
            .collect()
    }
}

impl fmt::Display for Plot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (calls, fs_type) = (self.calls(), self.fs_type);
        let times = calls.iter().map(|(_, row)| micros(row.ours.p25()));
        let longest = times.fold(1.0, f64::max);
        let height = TOP + ROW * u32::try_from(calls.len()).unwrap_or(0) + 14;
        let title = format!("Time of each call on a formatted {fs_type} volume");
        writeln!(
            f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"14\" fill=\"#22303c\">\n\
             <title>{title}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"20\" y=\"28\" font-weight=\"bold\">{title}, with a new connection</text>"
        )?;
        let mut x = 20;
        for (colour, text) in PARTS {
            writeln!(
                f,
                "<rect x=\"{x}\" y=\"42\" width=\"14\" height=\"14\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"54\">{text}</text>",
                x + 20
            )?;
            x += 40 + 7 * u32::try_from(text.len()).unwrap_or(0);
        }
        for (n, (call, row)) in (0..).zip(&calls) {
            bar(f, TOP + ROW * n, call, row, longest)?;
        }
        writeln!(f, "</svg>")
    }
}

/// Draws a bar with its name and its time; a bar of `longest` microseconds fills the width.
fn bar(f: &mut fmt::Formatter<'_>, y: u32, call: &str, row: &Row, longest: f64) -> fmt::Result {
    let ours = micros(row.ours.p25());
    let ends = [
        micros(row.bare.p25()).min(ours),
        micros(row.bare.p25() + row.empty_call).min(ours),
        ours,
    ];
    let at = |time: f64| f64::from(BARS.0) + f64::from(BARS.1 - BARS.0) * time / longest;
    let middle = y + ROW / 2;
    writeln!(f, "<text x=\"20\" y=\"{middle}\">{call}</text>")?;
    let mut from = 0.0;
    for (end, (colour, _)) in ends.into_iter().zip(PARTS) {
        writeln!(
            f,
            "<rect x=\"{:.1}\" y=\"{}\" width=\"{:.1}\" height=\"20\" fill=\"{colour}\"/>",
            at(from),
            middle - 15,
            at(end) - at(from)
        )?;
        from = end;
    }
    let x = at(ours) + 8.0;
    writeln!(f, "<text x=\"{x:.1}\" y=\"{middle}\">{ours:.0} µs</text>")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_bars_of_a_filesystem_are_divided_as_the_times_are() {
        let row = |name: &str, ours, bare, empty| {
            let mut row = Row::new(name);
            row.ours.extend([Duration::from_micros(ours); 16]);
            row.bare.extend([Duration::from_micros(bare); 16]);
            row.empty_call = Duration::from_micros(empty);
            row
        };
        let rows = [
            row("ext4 stage", 900, 300, 100),
            row("ext4 probe", 100, 100, 0),
            row("xfs stage", 9_000, 300, 100),
        ];
        let (rows, fs_type) = (&rows, "ext4");
        let svg = Plot { rows, fs_type }.to_string();
        // 450 pixels stand for 900 microseconds.
        for part in [
            "x=\"110.0\" y=\"80\" width=\"150.0\"",
            "x=\"260.0\" y=\"80\" width=\"50.0\"",
            "x=\"310.0\" y=\"80\" width=\"250.0\"",
            ">stage<",
            ">900 µs<",
        ] {
            assert!(svg.contains(part), "no {part} in\n{svg}");
        }
        assert!(!svg.contains("probe<") && !svg.contains("9000"));
    }
}
