//! Rules for every text: white space, and forbidden words. Checks lines only.

use crate::Finding;
use crate::mask::{is_word, places_of};
use crate::tree::Text;

// Each word is written in two halves, so that this file passes its own rules.
const UNFINISHED: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
];
const MACHINE_FOLDERS: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/home", "/"),
];
const INDEX_HOSTS: [&str; 9] = [
    concat!("crates", ".io"),
    concat!("proxy.", "golang.org"),
    concat!("sum.", "golang.org"),
    concat!("pypi", ".org"),
    concat!("files.python", "hosted.org"),
    concat!("registry.", "npmjs.org"),
    concat!("deb.", "debian.org"),
    concat!("security.", "debian.org"),
    concat!("archive.", "ubuntu.com"),
];

/// Returns all findings about a text.
pub(crate) fn check(text: &Text) -> Vec<Finding> {
    if is_not_written_by_us(&text.path) {
        return Vec::new();
    }
    // `lines()` would hide a carriage return.
    let lines = text.content.split('\n').enumerate();
    let mut findings: Vec<Finding> = lines
        .flat_map(|(at, line)| {
            rules_broken(text, line).map(move |rule| Finding::new(&text.path, at + 1, rule))
        })
        .collect();
    if !text.content.is_empty() && !text.content.ends_with('\n') {
        let rule = "does not end with a line end: tools would join what comes next";
        findings.push(Finding::new(&text.path, text.content.lines().count(), rule));
    }
    findings
}

fn is_not_written_by_us(path: &str) -> bool {
    let is_list = path.ends_with("Cargo.lock") || path.ends_with("/go.sum");
    is_list || path == "LICENSE" || path.starts_with("tests/fuzz/corpus/")
}

fn rules_broken<'a>(text: &'a Text, line: &'a str) -> impl Iterator<Item = String> + 'a {
    let tab = line.contains('\t') && !wants_tabs(text);
    let blank_end = line.ends_with([' ', '\t', '\r']);
    let unfinished = UNFINISHED
        .iter()
        .filter(|word| places_of(line, word).next().is_some());
    let directories = MACHINE_FOLDERS
        .iter()
        .filter(|directory| is_rooted(line, directory));
    let hosts = INDEX_HOSTS.iter().filter(|host| line.contains(**host));
    tab.then(|| "a tab: columns differ from editor to editor".to_owned())
        .into_iter()
        .chain(blank_end.then(|| "white space at the end: it makes diffs that say nothing".into()))
        .chain(unfinished.map(|word| format!("{word}: finish it, or leave it out")))
        .chain(
            directories
                .map(|directory| format!("{directory}: other machines do not have this directory")),
        )
        .chain(
            hosts.map(|host| format!("{host}: which package index is used is the user's choice")),
        )
}

/// Whether the file must be indented with tabs, as Make and Go require.
fn wants_tabs(text: &Text) -> bool {
    matches!(text.extension(), "Makefile" | "go" | "mod")
}

/// Whether a path begins with this directory, rather than containing a directory of the same name.
fn is_rooted(line: &str, directory: &str) -> bool {
    line.match_indices(directory).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| is_word(c) || matches!(c, '.' | '-' | '}' | ')' | '>' | '*' | '~'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn expect(path: &str, content: &str, lines: &[usize]) {
        let found = check(&Text::new(path, content));
        assert_eq!(
            found.iter().map(|f| f.line).collect::<Vec<_>>(),
            lines,
            "{found:?}"
        );
    }

    #[test]
    fn clean_text_passes_whoever_reads_it() {
        expect(
            "docs/a.md",
            "Mounts, mounts.\n\n`mktemp belay.XXXXXX`\n",
            &[],
        );
        expect("tests/wire/a.go", "func f() {\n\treturn\n}\n", &[]);
        expect("Makefile", "a:\n\techo\n", &[]);
    }

    #[test]
    fn white_space_that_nobody_sees_is_found() {
        expect("a.rs", "a\tb\nc \nd\r\n", &[1, 2, 3]);
        expect("a.rs", "a\nb", &[2]);
    }

    #[test]
    fn unfinished_work_is_found() {
        for word in UNFINISHED {
            expect("a.sh", &format!("x\n# {word}: later\n"), &[2]);
        }
    }

    #[test]
    fn a_directory_of_one_machine_is_found_but_not_one_of_that_name_below_another() {
        for directory in MACHINE_FOLDERS {
            expect("a.md", &format!("see {directory}x\n"), &[1]);
            expect("a.md", &format!("see /proc/1{directory}x\n"), &[]);
            expect("a.md", &format!("see {{}}{directory}x\n"), &[]);
        }
    }

    #[test]
    fn a_package_index_is_found_unless_cargo_names_it() {
        for host in INDEX_HOSTS {
            expect("a.toml", &format!("url = \"https://{host}/x\"\n"), &[1]);
        }
        expect(
            "Cargo.lock",
            &format!("source = \"https://{}\"\n", INDEX_HOSTS[0]),
            &[],
        );
    }
}
