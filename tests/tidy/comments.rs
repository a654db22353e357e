//! The words of the glossary in comments and messages, and comments that are fragments. In Rust,
//! comments and string literals are checked; in scripts and manifests, the whole text. Names in
//! backticks or braces and identifiers are not prose.

use crate::Finding;
use crate::glossary::{Glossary, without};
use crate::mask;
use crate::tree::Text;

/// Files and directories that keep to the glossary. Add one once it complies.
const CHECKED: &[&str] = &[
    ".ci/",
    "Makefile",
    "benches/",
    "contract/",
    "controller/",
    "ctl/",
    "demo/",
    "deploy/",
    "node-agent/",
    "proto/",
    "server/",
    "tests/",
];

/// Files that are not checked: the tests of the first two quote the glossary; the third creates the
/// user `nobody`.
const EXEMPT: &[&str] = &[
    "tests/tidy/prose.rs",
    "tests/tidy/comments.rs",
    "tests/beds/kubernetes/image.sh",
];

const SCRIPTS: &[&str] = &[
    "Makefile", "awk", "c", "go", "proto", "py", "run", "sh", "toml", "tpl", "yaml",
];

/// Words with which a comment begins if it is a fragment, such as "What it needs".
const FRAGMENTS: [&str; 16] = [
    "And", "As", "None", "Nor", "Of", "So", "Such", "That", "Those", "What", "Where", "Which",
    "Who", "Whole", "Whom", "Whose",
];

/// Returns a finding for every word of the glossary in these files, and for every fragment.
pub(crate) fn check(texts: &[Text]) -> Vec<Finding> {
    let Some(glossary) = Glossary::of(texts) else {
        return Vec::new();
    };
    let files: Vec<&Text> = texts.iter().filter(|it| is_checked(&it.path)).collect();
    let prose = files.iter().filter_map(|it| Some((it, prose_of(it)?)));
    let banned = prose.flat_map(|(text, prose)| glossary.check(&text.path, &prose));
    let rust = files.iter().filter(|text| text.extension() == "rs");
    banned
        .chain(rust.flat_map(|text| fragments(text)))
        .collect()
}

/// Returns a finding for every paragraph of a comment that begins like a fragment.
fn fragments(text: &Text) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_first = true;
    for (at, line) in text.content.lines().enumerate() {
        let comment = line.trim_start().strip_prefix("//");
        let comment = comment.map(|it| it.trim_start_matches(['/', '!']).trim());
        let word = comment.and_then(|it| it.split([' ', ',']).next());
        if let Some(word) = word.filter(|word| is_first && FRAGMENTS.contains(word)) {
            let rule = format!("begins with {word}: write a sentence, or begin with a noun");
            findings.push(Finding::new(&text.path, at + 1, rule));
        }
        is_first = comment.is_none_or(str::is_empty);
    }
    findings
}

fn is_checked(path: &str) -> bool {
    let covers = |entry: &&str| match entry.ends_with('/') {
        true => path.starts_with(*entry),
        false => path == *entry,
    };
    CHECKED.iter().any(covers) && !EXEMPT.contains(&path)
}

/// Returns the lines of a file with everything but prose blanked; `None` for a file without prose.
fn prose_of(text: &Text) -> Option<String> {
    let prose = match text.extension() {
        "rs" => comments_and_messages(&text.content),
        extension if SCRIPTS.contains(&extension) => text.content.clone(),
        _ => return None,
    };
    // Treat each line separately: an unpaired backtick must not hide the rest of the file.
    let prose_line = |line| without(&without(line, "`", "`"), "{", "}");
    let lines: Vec<String> = prose.lines().map(prose_line).collect();
    Some(lines.join("\n"))
}

/// Returns Rust source without its code and its one-word literals, which are names and values.
fn comments_and_messages(content: &str) -> String {
    let code = mask::code_of(content);
    let mut prose = String::new();
    let mut chars = content.chars().zip(code.chars()).peekable();
    while let Some((c, shown)) = chars.next() {
        let is_code = shown == c;
        if is_code {
            prose.push(if c == '\n' { '\n' } else { ' ' });
            continue;
        }
        let mut piece = String::from(c);
        while let Some((next, _)) = chars.next_if(|(next, shown)| shown != next || *next == ' ') {
            piece.push(next);
        }
        let is_name = !piece.starts_with('/') && !piece.trim().contains(' ');
        match is_name {
            true => prose.extend(piece.chars().map(|_| ' ')),
            false => prose.push_str(&piece),
        }
    }
    prose
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTRIBUTING: &str = "## Glossary\n\n| not | but |\n|---|---|\n\
        | unwell, any more | unhealthy |\n";

    #[track_caller]
    fn expect(path: &str, content: &str, lines: &[usize]) {
        let contributing = Text::new("CONTRIBUTING.md", CONTRIBUTING);
        let found = check(&[contributing, Text::new(path, content)]);
        assert_eq!(
            found.iter().map(|f| f.line).collect::<Vec<_>>(),
            lines,
            "{found:?}"
        );
    }

    #[test]
    fn a_banned_word_in_a_comment_or_a_message_is_found() {
        expect("server/src/a.rs", "/// Unwell.\nfn f() {}\n", &[1]);
        expect("ctl/src/a.rs", "f();\nlog(\"it is unwell\");\n", &[2]);
        expect("tests/a/b.rs", "let a = 1; // Unwell.\n", &[1]);
        expect("demo/src/a.rs", "// Not any\n// more.\nf();\n", &[1]);
        expect("tests/a.sh", "f\necho \"$1: unwell\"\n", &[2]);
        expect("deploy/a.yaml", "# Not any\n# more.\n", &[1]);
        expect("Makefile", "# unwell\n", &[1]);
        expect(".ci/run", "# unwell\n", &[1]);
    }

    #[test]
    fn a_comment_that_begins_like_a_fragment_is_found() {
        expect("server/src/a.rs", "/// What it is.\nfn f() {}\n", &[1]);
        expect("server/src/a.rs", "//! A.\n//!\n//! Of volumes.\n", &[3]);
        expect("tests/a/b.rs", "f();\n    // As above.\n", &[2]);
        expect(
            "server/src/a.rs",
            "/// Tells\n/// what it is.\n/// Whoso.\n",
            &[],
        );
        expect("server/src/a.rs", "/// A. That\n/// That is it.\n", &[]);
        expect("server/a.sh", "# What\n", &[]);
    }

    #[test]
    fn names_and_code_and_other_directories_pass() {
        expect("server/src/a.rs", "fn unwell(unwell: u8) {}\n", &[]);
        expect("server/src/a.rs", "f(\"unwell\", 'u');\n// `unwell`\n", &[]);
        expect(
            "server/src/a.rs",
            "// unwell_pages\nf(\"is {unwell}\");\n",
            &[],
        );
        expect("server/src/a.rs", "any(); // more\n", &[]);
        expect("udev-rules/src/a.rs", "// unwell\n", &[]);
        expect("tests/a.json", "\"unwell one\"\n", &[]);
    }
}
