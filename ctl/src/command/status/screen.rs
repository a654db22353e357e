//! The screen of `belayctl top`: 80 columns, two lines per driver.

use super::view::{Driver, milliseconds};
use crate::size;

const WIDTH: usize = 80;
/// Cursor home, and clear from there (ECMA-48): less flicker than clearing first.
const HOME: &str = "\u{1b}[H";
const CLEAR: &str = "\u{1b}[J";

/// All drivers, and a summary.
pub(super) fn draw(drivers: &[Driver], in_place: bool) -> String {
    let hung: i64 = drivers.iter().filter_map(|driver| driver.hung).sum();
    let wrong = drivers.iter().filter(|driver| !driver.is_good()).count();
    let mut lines = vec![
        format!(
            "{} drivers, {wrong} with trouble, {hung} operations hung",
            drivers.len()
        ),
        format!(
            "{:<34}{:>6}{:>7}{:>6}{:>6}{:>7}{:>7}{:>7}",
            "DRIVER", "READY", "STAGED", "HUNG", "SICK", "P50/MS", "P99/MS", "CALLS"
        ),
    ];
    let number = |number: Option<i64>| number.map_or("-".to_owned(), |number| number.to_string());
    let time = |time: Option<f64>| time.map_or("-".to_owned(), milliseconds);
    for driver in drivers {
        let name = format!("{} {}", driver.found.driver, driver.found.serves.join(","));
        lines.push(format!(
            "{:<34}{:>6}{:>7}{:>6}{:>6}{:>7}{:>7}{:>7}",
            cut(&name, 33),
            cut(&driver.ready(), 5),
            driver.staged,
            number(driver.hung),
            number(driver.unhealthy),
            time(driver.p50),
            time(driver.p99),
            driver.calls
        ));
        lines.push(format!("  {}", details(driver)));
    }
    let body: String = lines
        .iter()
        .map(|line| cut(line, WIDTH).trim_end().to_owned() + "\n")
        .collect();
    match in_place {
        // Each line is cleared to its end, since the previous one may have been longer.
        true => format!("{HOME}{}{CLEAR}", body.replace('\n', "\u{1b}[K\n")),
        false => body,
    }
}

/// What is only there for some drivers.
fn details(driver: &Driver) -> String {
    let mut parts = vec![driver.found.socket.display().to_string()];
    let bytes = |bytes: i64| size::show(u64::try_from(bytes).unwrap_or(0));
    if let (Some(free), Some(all)) = (driver.free, driver.size) {
        parts.push(format!("{} of {} free", bytes(free), bytes(all)));
    }
    match (driver.running, driver.oldest) {
        (Some(running), Some(oldest)) if running > 0 => {
            parts.push(format!("{running} running, oldest {oldest} s"));
        }
        _ => {}
    }
    if driver.registered == Some(false) {
        parts.push("not registered".to_owned());
    }
    parts.join("; ")
}

/// The first characters of a text, without what commands a terminal.
fn cut(text: &str, width: usize) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(width)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::view::History;
    use super::*;
    use crate::command::ls::Found;
    use crate::machine::pages::Page;

    #[test]
    fn no_line_is_wider_than_the_screen_and_nothing_commands_the_terminal() {
        let found = Found {
            socket: format!("/{}", "long/".repeat(30)).into(),
            driver: format!("{}\u{1b}[2J", "d".repeat(63)),
            serves: vec!["controller".to_owned(), "node".to_owned()],
            ready: Some(true),
            ..Found::default()
        };
        let driver = Driver::new(found, &Page::default(), &[], &mut History::default());
        let plain = draw(std::slice::from_ref(&driver), false);
        assert!(
            plain.lines().all(|line| line.chars().count() <= WIDTH),
            "{plain}"
        );
        assert!(!plain.contains('\u{1b}'), "{plain}");
        assert!(draw(&[driver], true).starts_with(HOME));
    }
}
