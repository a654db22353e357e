//! Rules for pages and their pictures: links and anchors that lead somewhere, lengths that a person
//! reads, and text that a browser shows as it is written. Does not judge words.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::tree::Text;

/// The directories and pages with a maximum number of lines for each page.
const LINES_MAX: &[(&str, usize)] = &[("docs/adr/0", 40), ("CHANGELOG.md", 100)];
/// The maximum number of words of all pages in `docs/`.
const DOC_WORDS_MAX: usize = 44_800;

/// Returns all findings about the pages.
pub(crate) fn check(texts: &[Text]) -> Vec<Finding> {
    let pages: Vec<_> = texts.iter().filter(|it| it.extension() == "md").collect();
    let anchors: BTreeMap<&str, BTreeSet<String>> = pages
        .iter()
        .map(|page| (page.path.as_str(), anchors_of(&page.content)))
        .collect();
    let exists = |path: &str| {
        let below = format!("{}/", path.trim_end_matches('/'));
        texts.iter().any(|it| it.path == path || it.path.starts_with(&below))
            // A picture is no text.
            || path.ends_with(".png")
    };
    let mut findings: Vec<Finding> = pages.iter().filter_map(|page| too_long(page)).collect();
    for page in &pages {
        for (line, target) in links_of(&page.content) {
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = resolved(&page.path, path);
            let rule = if !exists(&path) {
                format!("the link to {target} is dead: no {path}")
            } else if !anchor.is_empty()
                && anchors
                    .get(path.as_str())
                    .is_some_and(|it| !it.contains(anchor))
            {
                format!("the link to {target} is dead: {path} has no such heading")
            } else {
                continue;
            };
            findings.push(Finding::new(&page.path, line, rule));
        }
    }
    let pictures = texts.iter().filter(|it| it.extension() == "svg");
    findings.extend(pictures.flat_map(shifted_text));
    let words = |page: &&&Text| page.content.split_whitespace().count();
    let of_docs = pages.iter().filter(|page| page.path.starts_with("docs/"));
    let words: usize = of_docs.map(|page| words(&page)).sum();
    if words > DOC_WORDS_MAX {
        let rule = format!("{words} words, over {DOC_WORDS_MAX}: cut or merge pages");
        findings.push(Finding::new("docs", 0, rule));
    }
    findings
}

fn too_long(page: &Text) -> Option<Finding> {
    let (_, max) = LINES_MAX
        .iter()
        .find(|(path, _)| page.path.starts_with(path))?;
    let lines = page.content.lines().count();
    let rule = || format!("{lines} lines, over {max}: cut what is not needed");
    (lines > *max).then(|| Finding::new(&page.path, 0, rule()))
}

/// Finds text of a picture that a browser shows elsewhere: it drops leading spaces, and all but one
/// of several.
fn shifted_text(picture: &Text) -> impl Iterator<Item = Finding> {
    let lines = picture.content.lines().enumerate();
    lines.filter_map(|(at, line)| {
        let (_, text) = line.split_once("<text")?.1.split_once('>')?;
        let (text, _) = text.split_once("</text>")?;
        let is_shifted = text != text.trim() || text.contains("  ");
        let rule = "spaces that a browser drops: place each word by its x";
        is_shifted.then(|| Finding::new(&picture.path, at + 1, rule.to_owned()))
    })
}

/// Returns the line and target of each link to a file or heading of the repository.
fn links_of(content: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    let mut is_code = false;
    for (at, line) in content.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code ^= true;
        }
        if is_code {
            continue;
        }
        // A link may be split after its opening bracket only: its target has no spaces.
        for behind in line.split("](").skip(1) {
            let target = behind.split([')', ' ']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                links.push((at + 1, target.to_owned()));
            }
        }
    }
    links
}

/// Returns the path of a link's target, from the top of the repository.
fn resolved(page: &str, target: &str) -> String {
    if target.is_empty() {
        return page.to_owned();
    }
    let mut path: Vec<&str> = page.split('/').collect();
    path.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.join("/")
}

/// Returns the anchors of the headings, as GitHub makes them: lower case, without punctuation, with
/// dashes for spaces, and numbered if they are repeated. Also those that HTML names.
fn anchors_of(content: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut is_code = false;
    for line in content.lines() {
        if line.trim_start().starts_with("```") {
            is_code ^= true;
        }
        if is_code {
            continue;
        }
        for named in line.split("id=\"").skip(1) {
            anchors.insert(named.split('"').next().unwrap_or_default().to_owned());
        }
        let Some((hashes, heading)) = line.split_once(' ') else {
            continue;
        };
        if hashes.is_empty() || !hashes.chars().all(|c| c == '#') {
            continue;
        }
        let anchor = anchor_of(heading);
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(numbered);
        if let Some(free) = names.find(|name| !anchors.contains(name)) {
            anchors.insert(free);
        }
    }
    anchors
}

fn anchor_of(heading: &str) -> String {
    let text = text_of_links(heading.trim());
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| {
        if c == ' ' {
            '-'
        } else {
            c.to_ascii_lowercase()
        }
    })
    .collect()
}

/// Returns the heading with the text of its links only.
fn text_of_links(heading: &str) -> String {
    let mut parts = heading.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once(')').map_or("", |(_, behind)| behind));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pages: &[(&str, &str)]) -> Vec<String> {
        let texts: Vec<_> = pages.iter().map(|(path, it)| Text::new(path, it)).collect();
        let findings = check(&texts).into_iter();
        findings.map(|it| it.to_string()).collect()
    }

    #[test]
    fn a_link_to_a_file_or_heading_that_does_not_exist_is_found() {
        let other = (
            "docs/b.md",
            "# B\n\n## A `thing`, twice\n## A `thing`, twice\n",
        );
        for good in [
            "b.md",
            "b.md#a-thing-twice-1",
            "../docs/b.md#b",
            "#a",
            "https://x/y",
            "",
        ] {
            let page = format!("# A\n\nSee [it]({good}).\n");
            assert_eq!(found(&[("docs/a.md", &page), other]), [""; 0], "{good}");
        }
        for bad in [
            "c.md",
            "b.md#a-thing",
            "b.md#a-thing-twice-2",
            "../b.md",
            "#b",
        ] {
            let page = format!("# A\n\nSee [it]({bad}).\n");
            let found = found(&[("docs/a.md", &page), other]);
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
            assert!(found[0].starts_with("docs/a.md:3: "), "{found:?}");
        }
    }

    #[test]
    fn a_link_in_code_is_none() {
        assert_eq!(found(&[("a.md", "```\n[it](c.md)\n```\n")]), [""; 0]);
    }

    #[test]
    fn text_of_a_picture_that_a_browser_would_shift_is_found() {
        let text = |words: &str| format!("<svg>\n<text x=\"8\">{words}</text>\n</svg>\n");
        assert_eq!(found(&[("a.svg", &text("stage ext4"))]), [""; 0]);
        for bad in [" stage", "stage ", "stage  ext4"] {
            let found = found(&[("a.svg", &text(bad))]);
            assert!(found[0].starts_with("a.svg:2: "), "{found:?}");
        }
    }

    #[test]
    fn a_page_that_nobody_reads_to_its_end_is_found() {
        let page = "line\n".repeat(41);
        assert_eq!(found(&[("docs/adr/0001-x.md", &page)]).len(), 1);
        assert_eq!(found(&[("docs/adr/README.md", &page)]), [""; 0]);
        let words = "word ".repeat(DOC_WORDS_MAX + 1);
        assert_eq!(found(&[("docs/a.md", &words)]).len(), 1);
    }
}
