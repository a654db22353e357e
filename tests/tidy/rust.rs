//! The measures of a Rust file: length, width, its first lines, and where `unsafe` is allowed.
//! Checks each file separately.

use crate::Finding;
use crate::mask::{line_of, places_of};
use crate::tree::RustFile;

const FILE_LINES_MAX: usize = 400;
/// Minimum number of lines of a file, without comments, blank lines and unit tests.
const CODE_LINES_MIN: usize = 40;
const COLUMNS_MAX: usize = 100;
/// Files that may be shorter: formats, unsafe code, fuzz targets, and code that many files use.
const SMALL: [&str; 15] = [
    "controller/src/backend/cloud/time.rs",
    "controller/src/backend/local/files/lease.rs",
    "controller/src/backend/local/id.rs",
    "controller/src/backend/local/ledger/alone.rs",
    "controller/src/backend/local/snapshot/filesystem.rs",
    "controller/src/backend/openstack/id.rs",
    "controller/src/heap.rs",
    "controller/src/operation/engine/queue.rs",
    "node-agent/src/device/disks/fuzz.rs",
    "node-agent/src/fuzz.rs",
    "node-agent/src/kernel/linux/fuzz.rs",
    "proto/src/code.rs",
    "server/src/call/callers.rs",
    "server/src/lock.rs",
    "server/src/size.rs",
];
/// The directory and the three files in which `unsafe` is allowed.
const UNSAFE: [&str; 4] = [
    "node-agent/src/kernel/linux",
    "controller/src/heap.rs",
    "controller/src/backend/local/files/lease.rs",
    "server/src/memory.rs",
];

/// Returns all findings about a single file.
pub(crate) fn check(file: &RustFile) -> Vec<Finding> {
    [opening, file_length, code_length, line_length, unsafe_code]
        .iter()
        .flat_map(|rule| rule(file))
        .collect()
}

fn opening(file: &RustFile) -> Vec<Finding> {
    if file.content.starts_with("//!") {
        return Vec::new();
    }
    let rule = "opens without `//!`: a file first says what it is for and what it must not know";
    vec![Finding::new(&file.path, 1, rule)]
}

/// Checks the length of a file. A file of tests has no limit, since a table of cases may be long.
fn file_length(file: &RustFile) -> Vec<Finding> {
    let length = file.product.trim_end().lines().count();
    if is_all_test(&file.path) || length <= FILE_LINES_MAX {
        return Vec::new();
    }
    let rule = format!("{length} lines, of {FILE_LINES_MAX}: split it by verb, not by half");
    vec![Finding::new(&file.path, FILE_LINES_MAX + 1, rule)]
}

/// Checks that a file has more than one small function. `mod.rs` and similar files may be a list.
fn code_length(file: &RustFile) -> Vec<Finding> {
    let name = file.path.rsplit('/').next().unwrap_or(&file.path);
    let is_list = matches!(name, "lib.rs" | "main.rs" | "mod.rs");
    if is_list || !is_product(&file.path) || SMALL.contains(&file.path.as_str()) {
        return Vec::new();
    }
    let code = file.product.lines().filter(|line| !line.trim().is_empty());
    let length = code.count();
    if length >= CODE_LINES_MIN {
        return Vec::new();
    }
    let rule = format!("{length} lines of code, of {CODE_LINES_MIN}: merge it into its user");
    vec![Finding::new(&file.path, 0, rule)]
}

/// Whether the file is compiled into a program, and not only for tests.
pub(crate) fn is_product(path: &str) -> bool {
    let mut parts = path.split(['/', '.']);
    let is_test = |part| matches!(part, "tests" | "real" | "fake" | "simulated");
    path.contains("/src/") && !parts.any(|part| is_test(part) || part.ends_with("_tests"))
}

fn is_all_test(path: &str) -> bool {
    path.split('/')
        .any(|part| part == "tests" || part == "tests.rs")
}

fn line_length(file: &RustFile) -> Vec<Finding> {
    let wide = file
        .content
        .lines()
        .enumerate()
        .filter(|(_, l)| l.chars().count() > COLUMNS_MAX);
    let rule = format!("wider than {COLUMNS_MAX} columns: two files fit side by side");
    wide.map(|(at, _)| Finding::new(&file.path, at + 1, rule.clone()))
        .collect()
}

fn unsafe_code(file: &RustFile) -> Vec<Finding> {
    if UNSAFE.iter().any(|place| file.path.starts_with(place)) {
        return Vec::new();
    }
    let places = UNSAFE.join(", ");
    let rule = format!("unsafe code outside {places}: there it is read with care");
    places_of(&file.code, "unsafe")
        .map(|at| Finding::new(&file.path, line_of(&file.code, at), rule.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, content: &str) -> Vec<(usize, String)> {
        let found = check(&RustFile::new(path, content));
        found.into_iter().map(|f| (f.line, f.rule)).collect()
    }

    #[track_caller]
    fn expect_one(path: &str, content: &str, line: usize, rule: &str) {
        let found = findings(path, content);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].0 == line && found[0].1.contains(rule), "{found:?}");
    }

    #[test]
    fn a_tidy_file_passes() {
        let content = "//! Says so.\n\nfn f() -> &'static str {\n    \"unsafe\"\n}\n";
        assert_eq!(findings("server/tests/a.rs", content), []);
    }

    #[test]
    fn a_small_file_is_found_unless_it_is_a_list_or_a_test() {
        let lines = |n| format!("//! x\n{}", "// y\n\nuse z;\n".repeat(n));
        expect_one("server/src/a.rs", &lines(39), 0, "39 lines of code");
        for path in [
            "server/src/a/mod.rs",
            "server/src/a/tests.rs",
            "server/tests/a.rs",
        ] {
            assert_eq!(findings(path, &lines(39)), []);
        }
        assert_eq!(findings("server/src/a.rs", &lines(40)), []);
    }

    #[test]
    fn a_file_without_a_word_about_itself_is_found() {
        expect_one("server/tests/a.rs", "fn f() {}\n", 1, "opens without");
    }

    #[test]
    fn a_long_file_is_found_but_its_unit_tests_do_not_count() {
        let lines = |n| format!("//! x\n{}", "// y\nuse z;\n".repeat(n));
        expect_one("server/src/a.rs", &lines(200), 401, "401 lines");
        let tests = format!(
            "{}#[cfg(test)]\nmod tests {{\n{}}}\n",
            lines(199),
            "// y\n".repeat(99)
        );
        assert_eq!(findings("server/src/a.rs", &tests), []);
        assert_eq!(findings("tests/mounts.rs", &lines(200)), []);
    }

    #[test]
    fn a_wide_line_is_found_by_characters_not_bytes() {
        let line = |n| format!("//! x\n// {}\n", "é".repeat(n));
        expect_one("server/tests/a.rs", &line(98), 2, "wider than 100");
        assert_eq!(findings("server/tests/a.rs", &line(97)), []);
    }

    #[test]
    fn unsafe_code_is_found_outside_its_directory() {
        let content = "//! x\nfn f() {\n    unsafe { g() }\n}\n";
        expect_one("node-agent/src/kernel/mod.rs", content, 3, "unsafe code");
        assert_eq!(findings("node-agent/src/kernel/linux/mod.rs", content), []);
    }
}
