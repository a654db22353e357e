//! The demo's screen, as a terminal shows it: run by script(1) of util-linux, at two widths. Needs
//! root and the built programs, as `leftovers.rs` does.
//!
//! With `BELAY_PICTURES=DIRECTORY` (absolute), the final screens are written there as SVG, for
//! docs/images.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A character and its SGR code.
type Char = (char, usize);

#[test]
#[ignore = "needs root and built binaries: make test"]
fn the_screen_is_drawn_in_place_and_fits_a_terminal_of_80_or_120_columns() {
    // The second one is too low for the screen while the demo runs.
    for (width, rows) in [(80, 50), (120, 24)] {
        let raw = run_on_terminal((width, rows), "");
        assert!(raw.contains("\x1b[32m✓"), "no colours: {raw}");
        let lines = shown(&raw, (width, rows));
        is_whole(&lines);
        let text = text_of(&lines);
        // A frame that is not overwritten would show its status, or the matrix twice.
        assert!(raw.contains("Now") && !text.contains("Now"), "{text}");
        assert_eq!(
            text.matches("unpublish restage").count(),
            usize::from(width == 80),
            "{text}"
        );
        if let Some(directory) = std::env::var_os("BELAY_PICTURES") {
            let path = Path::new(&directory).join(format!("demo-{width}.svg"));
            std::fs::write(path, picture(&lines, width)).unwrap();
        }
    }
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn no_color_and_a_dumb_terminal_have_no_escapes_for_colours() {
    let raw = run_on_terminal((80, 50), "NO_COLOR=1");
    assert!(raw.contains("\x1b[2K") && !raw.contains("\x1b[0m"), "{raw}");
    is_whole(&shown(&raw, (80, 50)));
    let raw = run_on_terminal((80, 50), "TERM=dumb");
    assert!(!raw.contains('\x1b'), "{raw}");
    is_whole(&shown(&raw, (80, 50)));
}

/// The last forty lines have all sections.
fn is_whole(lines: &[Vec<Char>]) {
    let text = text_of(&lines[lines.len().saturating_sub(40)..]);
    for part in [
        "Belay ", "ext4 ", "xfs ", "btrfs ", "block ", "Copies", "Refused", "Killed", "Time",
        "Memory", "Left", "Next",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(part)),
            "{part}: {text}"
        );
    }
}

fn text_of(lines: &[Vec<Char>]) -> String {
    let text = |line: &Vec<Char>| {
        line.iter()
            .map(|(c, _)| *c)
            .chain(['\n'])
            .collect::<String>()
    };
    lines.iter().map(text).collect()
}

/// Everything that three rounds write to a terminal of that size.
fn run_on_terminal((width, rows): (usize, usize), environment: &str) -> String {
    let directory = std::env::var_os("BELAY_BIN_DIR").map(PathBuf::from);
    let directory = directory.expect("BELAY_BIN_DIR must be the directory of the built programs");
    let demo = directory.join("belay-demo");
    let temporary = tempfile::tempdir().unwrap();
    let command = format!(
        "stty cols {width} rows {rows} && TERM=xterm {environment} exec env {} --rounds 3",
        demo.display()
    );
    let output = Command::new("timeout")
        .args([
            "120",
            "script",
            "--quiet",
            "--return",
            "--command",
            &command,
            "/dev/null",
        ])
        .env("TMPDIR", temporary.path())
        .env_remove("NO_COLOR")
        .env_remove("VERBOSE")
        .env_remove("KEEP")
        .output()
        .unwrap();
    let raw = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}: {raw}", output.status);
    raw
}

/// The lines that a terminal shows at the end, for the few escapes that the demo uses. Fails if a
/// line would ever be wrapped, or the cursor moved up beyond the top.
fn shown(raw: &str, (width, rows): (usize, usize)) -> Vec<Vec<Char>> {
    let mut lines: Vec<Vec<Char>> = vec![Vec::new()];
    let (mut row, mut column, mut colour) = (0, 0, 0);
    let mut rest = raw.chars();
    while let Some(c) = rest.next() {
        match c {
            '\r' => column = 0,
            '\n' => {
                row += 1;
                lines.resize(lines.len().max(row + 1), Vec::new());
            }
            '\x1b' => {
                assert_eq!(rest.next(), Some('['));
                let mut number = 0;
                let letter = loop {
                    match rest.next() {
                        Some(c @ '0'..='9') => number = number * 10 + (c as usize - '0' as usize),
                        other => break other,
                    }
                };
                match letter {
                    Some('A') if number < rows => row -= number,
                    Some('K') => lines[row].clear(),
                    Some('J') => lines.truncate(row + 1),
                    Some('m') => colour = number,
                    other => panic!("unknown escape: {other:?}"),
                }
            }
            c => {
                assert!(
                    column < width,
                    "wider than {width}: {}",
                    text_of(&lines[row..=row])
                );
                let line = &mut lines[row];
                line.resize(line.len().max(column + 1), (' ', 0));
                line[column] = (c, colour);
                column += 1;
            }
        }
    }
    lines.pop_if(|last| last.is_empty());
    lines
}

/// The screen as SVG. Each run of a colour has its length, so that any fixed-width font lines up.
fn picture(lines: &[Vec<Char>], width: usize) -> String {
    const CELL: (usize, usize) = (8, 18);
    let (wide, high) = ((width + 2) * CELL.0, (lines.len() + 1) * CELL.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {high}\" \
         font-family=\"monospace\" font-size=\"13\" xml:space=\"preserve\" \
         style=\"white-space:pre\">\n\
         <rect width=\"{wide}\" height=\"{high}\" fill=\"#16181d\"/>\n"
    );
    for (row, line) in lines.iter().enumerate() {
        let mut column = 0;
        for run in line.chunk_by(|(_, one), (_, other)| one == other) {
            let text: String = run.iter().map(|(c, _)| *c).collect();
            let (x, y) = ((column + 1) * CELL.0, (row + 1) * CELL.1);
            let length = run.len() * CELL.0;
            let fill = match run[0].1 {
                1 => "#ffffff\" font-weight=\"bold",
                32 => "#5fd38d",
                33 => "#e8b04b",
                34 => "#5b8dd6",
                36 => "#58c4c4",
                _ => "#c8ccd4",
            };
            column += run.len();
            if !text.trim().is_empty() {
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                let place = format!("x=\"{x}\" y=\"{y}\" textLength=\"{length}\"");
                writeln!(svg, "<text {place} fill=\"{fill}\">{text}</text>").unwrap();
            }
        }
    }
    svg + "</svg>\n"
}
