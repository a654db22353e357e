//! Rules for pages: the words of the glossary, and the README's promises. Parses Markdown only as
//! far as these rules need it.

use crate::Finding;
use crate::glossary::{self, Glossary, without};
use crate::tree::Text;

/// The pages that keep to the glossary; a `/` at the end stands for all pages in that directory.
const PAGES: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "benches/",
    "controller/src/backend/local/README.md",
    "deploy/chart/README.md",
    "docs/",
    "docs/adr/",
    "proto/README.md",
    "udev-rules/README.md",
];

const README_WORDS_MAX: usize = 400;
/// The last line, counted from 1, on which the README's first command may be.
const FIRST_COMMAND_LINE_MAX: usize = 14;

/// Returns all findings about these pages.
pub(crate) fn check(texts: &[Text]) -> Vec<Finding> {
    let page = |path: &str| texts.iter().find(|text| text.path == path);
    let Some(glossary) = Glossary::of(texts) else {
        return Vec::new();
    };
    let mut findings: Vec<Finding> = PAGES
        .iter()
        .flat_map(|entry| {
            let mut pages = texts.iter().filter(|text| covers(entry, text)).peekable();
            let missing = pages.peek().is_none();
            let rule = "missing: the rules of prose name it";
            let missing = missing.then(|| Finding::new(entry, 0, rule));
            pages
                .flat_map(|text| glossary.check(&text.path, &prose_of(&text.content)))
                .chain(missing)
        })
        .collect();
    if glossary.is_empty() {
        let rule = "no rows under `## Glossary`: no word would be checked";
        findings.push(Finding::new("CONTRIBUTING.md", 0, rule));
    }
    if let Some(readme) = page("README.md") {
        findings.extend(is_short(readme));
        findings.extend(cites_tests_that_exist(readme, texts));
    }
    findings
}

fn covers(entry: &str, text: &Text) -> bool {
    if !entry.ends_with('/') {
        return text.path == entry;
    }
    let name = text.path.strip_prefix(entry);
    name.is_some_and(|name| !name.contains('/') && text.extension() == "md")
}

/// Returns the text with blank lines in place of code blocks and of the glossary, and without
/// `code` and link targets. Line numbers stay the same.
fn prose_of(content: &str) -> String {
    let (mut is_code, mut is_glossary) = (false, false);
    let mut kept = String::new();
    for line in content.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if line.starts_with("## ") && !is_code {
            is_glossary = line == glossary::HEADING;
        }
        if !is_code && !is_fence && !is_glossary {
            kept.push_str(line);
        }
        kept.push('\n');
    }
    without(&without(&kept, "`", "`"), "](", ")")
}

/// Checks the number of words outside of code and tables, and the line of the first command.
fn is_short(readme: &Text) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = prose_lines(&readme.content);
    let words: usize = lines.map(|line| line.split_whitespace().count()).sum();
    if words > README_WORDS_MAX {
        let rule = format!("{words} words, over {README_WORDS_MAX}: move the rest to docs");
        findings.push(Finding::new(&readme.path, 0, rule));
    }
    let fence = readme.content.lines().position(|l| l.starts_with("```sh"));
    // The command is on the line after the fence, and lines are counted from 1.
    if fence.is_none_or(|at| at + 2 > FIRST_COMMAND_LINE_MAX) {
        let rule = format!("no command up to line {FIRST_COMMAND_LINE_MAX}: begin with one");
        findings.push(Finding::new(&readme.path, 0, rule));
    }
    findings
}

fn prose_lines(content: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    content.lines().filter(move |line| {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence && !line.starts_with('|')
    })
}

/// Checks that each [`name`](path.rs) names a function in that file.
fn cites_tests_that_exist(readme: &Text, texts: &[Text]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in readme.content.lines().enumerate() {
        for link in line.split("[`").skip(1) {
            let Some((name, behind)) = link.split_once("`](") else {
                continue;
            };
            let path = behind.split(')').next().unwrap_or_default();
            if !path.ends_with(".rs") {
                continue;
            }
            let function = format!("fn {name}(");
            let exists = texts
                .iter()
                .any(|text| text.path == path && text.content.contains(&function));
            if !exists {
                let rule = format!("{path} has no test {name}: a promise without its proof");
                findings.push(Finding::new(&readme.path, at + 1, rule));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTRIBUTING: &str = "# C\n\n## Glossary\n\n| not | but |\n|---|---|\n\
        | unwell, any more | unhealthy |\n\n## Commits\n\nOne.\n";
    const README: &str = "# B\n\n```sh\nmake demo\n```\n\n\
        | [`it_holds`](tests/a.rs) | [ADR](docs/adr/x.md) |\n";

    fn pages(path: &str, content: &str) -> Vec<Text> {
        let page = |entry: &&str| match entry.strip_suffix('/') {
            Some(directory) => Text::new(&format!("{directory}/A.md"), "A.\n"),
            None => Text::new(entry, "A.\n"),
        };
        let mut texts: Vec<Text> = PAGES.iter().map(page).collect();
        texts.push(Text::new("benches/pairs/B.md", "Unwell.\n"));
        texts.push(Text::new("tests/a.rs", "fn it_holds() {}\n"));
        for text in &mut texts {
            match text.path.as_str() {
                "CONTRIBUTING.md" => text.content = CONTRIBUTING.to_owned(),
                "README.md" => text.content = README.to_owned(),
                _ => {}
            }
            if text.path == path {
                text.content = content.to_owned();
            }
        }
        texts
    }

    #[track_caller]
    fn expect(path: &str, content: &str, lines: &[usize]) {
        let found = check(&pages(path, content));
        assert_eq!(
            found.iter().map(|f| f.line).collect::<Vec<_>>(),
            lines,
            "{found:?}"
        );
    }

    #[test]
    fn pages_in_the_words_of_the_house_pass() {
        expect("README.md", README, &[]);
        expect("CHANGELOG.md", "Any. More words; `unwell`.\n", &[]);
        expect("CHANGELOG.md", "```\nunwell\n```\n[a](unwell.md)\n", &[]);
        expect("CHANGELOG.md", "Unwellness, many more.\n", &[]);
    }

    #[test]
    fn a_banned_word_is_found_with_its_line_in_any_case_and_across_lines() {
        expect("CHANGELOG.md", "A\n`b\nc` Unwell.\n", &[3]);
        expect("SECURITY.md", "Not any\nmore.\n", &[1]);
        expect("benches/A.md", "Unwell.\n", &[1]);
        expect("docs/A.md", "```sh\nx\n```\n| unwell |\n", &[4]);
        expect(
            "CONTRIBUTING.md",
            &format!("{CONTRIBUTING}Unwell.\n"),
            &[12],
        );
    }

    #[test]
    fn a_glossary_without_rows_and_an_absent_page_are_found() {
        expect("CONTRIBUTING.md", "# C\n", &[0]);
        let mut texts = pages("", "");
        texts.retain(|text| text.path != "SECURITY.md" && text.path != "benches/A.md");
        assert_eq!(check(&texts).len(), 2);
    }

    #[test]
    fn a_long_readme_and_one_without_an_early_command_are_found() {
        let long = format!("{README}{}\n", "word ".repeat(README_WORDS_MAX));
        expect("README.md", &long, &[0]);
        let table = format!("{README}| {} |\n", "word ".repeat(README_WORDS_MAX));
        expect("README.md", &table, &[]);
        expect("README.md", &format!("{}{README}", "\n".repeat(10)), &[]);
        expect("README.md", &format!("{}{README}", "\n".repeat(11)), &[0]);
    }

    #[test]
    fn a_promise_whose_test_does_not_exist_is_found() {
        expect("README.md", &README.replace("it_holds", "it_hold"), &[7]);
        expect(
            "README.md",
            &README.replace("tests/a.rs", "tests/b.rs"),
            &[7],
        );
    }
}
