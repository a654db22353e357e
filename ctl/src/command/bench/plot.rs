//! The times of a run as a picture (SVG): for each socket, how long the fastest share of the calls
//! took at most. The axis of shares is logarithmic towards the slowest calls.

use std::fmt;
use std::time::Duration;

use super::quantile;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 310.0;
const COLOURS: [&str; 6] = [
    "#d97706", "#2563eb", "#059669", "#7c3aed", "#dc2626", "#475569",
];
/// Shares with a label, in percent.
const SHARES: [f64; 5] = [0.0, 50.0, 90.0, 99.0, 99.9];
/// Points of a line.
const POINTS: u32 = 200;

/// The times of one socket's calls, sorted.
pub(super) struct Line<'a> {
    /// What the legend calls it.
    pub(super) name: &'a str,
    pub(super) times: &'a [Duration],
}

/// The picture; displayed, it is SVG.
pub(super) struct Plot<'a> {
    pub(super) method: &'a str,
    pub(super) lines: &'a [Line<'a>],
}

impl fmt::Display for Plot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slowest = self.lines.iter().filter_map(|line| line.times.last()).max();
        let top = rounded_up(slowest.map_or(1.0, |time| time.as_secs_f64() * 1e6));
        let method = escaped(self.method);
        writeln!(
            f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"13\" fill=\"#22303c\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
             <text x=\"20\" y=\"24\" font-weight=\"bold\">{method}: the longest time of each \
             share of the calls</text>"
        )?;
        axes(f, top)?;
        for (n, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let (y, name) = (44 + 16 * n, escaped(line.name));
            writeln!(
                f,
                "<text x=\"{LEFT}\" y=\"{y}\" fill=\"{colour}\" font-weight=\"bold\">{name}</text>"
            )?;
            curve(f, line.times, colour, top)?;
        }
        writeln!(f, "</svg>")
    }
}

fn axes(f: &mut fmt::Formatter<'_>, top: f64) -> fmt::Result {
    for share in SHARES {
        let x = across(share);
        writeln!(
            f,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{BOTTOM}\" stroke=\"#e2e8f0\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{share} %</text>",
            BOTTOM + 20.0
        )?;
    }
    for quarter in 0..=4 {
        let time = top * f64::from(quarter) / 4.0;
        let y = up(time, top);
        writeln!(
            f,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\" stroke=\"#e2e8f0\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{time:.0} µs</text>",
            LEFT - 6.0,
            y + 4.0
        )?;
    }
    Ok(())
}

fn curve(f: &mut fmt::Formatter<'_>, times: &[Duration], colour: &str, top: f64) -> fmt::Result {
    write!(
        f,
        "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"{colour}\" points=\""
    )?;
    for point in 0..=POINTS {
        let x = LEFT + (RIGHT - LEFT) * f64::from(point) / f64::from(POINTS);
        let time = quantile(times, share_at(x)).as_secs_f64() * 1e6;
        write!(f, "{x:.1},{:.1} ", up(time, top))?;
    }
    writeln!(f, "\"/>")
}

/// Three decades: 0, 90, 99 and 99.9 percent are equally far apart.
const DECADES: f64 = 3.0;

fn across(share: f64) -> f64 {
    let decades = -(1.0 - share / 100.0).log10();
    LEFT + (RIGHT - LEFT) * decades / DECADES
}

fn share_at(x: f64) -> f64 {
    let decades = (x - LEFT) / (RIGHT - LEFT) * DECADES;
    100.0 * (1.0 - 10f64.powf(-decades))
}

fn up(time: f64, top: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * time / top
}

/// The next 1, 2, 4 or 8 times a power of ten: a quarter of it is a short number.
fn rounded_up(time: f64) -> f64 {
    let power = 10f64.powf(time.max(1.0).log10().floor());
    let steps = [1.0, 2.0, 4.0, 8.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= time).unwrap_or(time)
}

/// Names of drivers and sockets come from others.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_places_are_inverse_and_the_decades_equally_wide() {
        for share in SHARES {
            assert!((share_at(across(share)) - share).abs() < 1e-9, "{share}");
        }
        let third = (RIGHT - LEFT) / 3.0;
        assert!((across(90.0) - LEFT - third).abs() < 1e-6);
        assert!((across(99.9) - RIGHT).abs() < 1e-6);
    }

    #[test]
    fn the_scale_ends_at_a_short_number_above_the_slowest_call() {
        for (time, expected) in [(0.2, 1.0), (1.0, 1.0), (130.0, 200.0), (801.0, 1000.0)] {
            assert!((rounded_up(time) - expected).abs() < 1e-6, "{time}");
        }
    }

    #[test]
    fn a_line_ends_at_its_slowest_call_and_names_are_text() {
        let times: Vec<_> = (1..=100).map(Duration::from_micros).collect();
        let line = Line {
            name: "<a & b>",
            times: &times,
        };
        let lines = [line];
        let method = "Probe";
        let svg = Plot {
            method,
            lines: &lines,
        }
        .to_string();
        assert!(
            svg.contains("&lt;a &amp; b&gt;") && !svg.contains("<a "),
            "{svg}"
        );
        assert!(svg.contains(&format!("{RIGHT:.1},{TOP:.1} \"")), "{svg}");
    }
}
