//! The glossary of CONTRIBUTING, and its search in a text. `prose` and `comments` select the parts
//! of a file that are prose.

use crate::Finding;
use crate::tree::Text;

pub(crate) const HEADING: &str = "## Glossary";

/// The words that must not be used.
pub(crate) struct Glossary(Vec<Phrase>);

/// A phrase as its words, in lower case.
type Phrase = Vec<String>;

impl Glossary {
    /// Reads the glossary; `None` if there is no CONTRIBUTING.md.
    pub(crate) fn of(texts: &[Text]) -> Option<Self> {
        let contributing = texts.iter().find(|text| text.path == "CONTRIBUTING.md")?;
        Some(Self(left_column(&contributing.content)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a finding for every phrase of the glossary in this prose of a file, with the line
    /// where the phrase starts.
    pub(crate) fn check(&self, path: &str, prose: &str) -> Vec<Finding> {
        let prose = prose.to_lowercase();
        let words = words_of(&prose);
        let mut findings = Vec::new();
        for at in 0..words.len() {
            for phrase in &self.0 {
                if starts_with(&prose, &words[at..], phrase) {
                    let line = prose[..words[at].0].matches('\n').count() + 1;
                    let rule = format!("`{}`: see the glossary in CONTRIBUTING", phrase.join(" "));
                    findings.push(Finding::new(path, line, rule));
                }
            }
        }
        findings
    }
}

/// Returns the left column of the table: phrases, separated by commas.
fn left_column(contributing: &str) -> Vec<Phrase> {
    let section = contributing.lines().skip_while(|line| *line != HEADING);
    let rows = section
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("| "))
        .filter(|row| !row.starts_with("not |"));
    rows.filter_map(|row| row.split(" | ").next())
        .flat_map(|cell| cell.split(", "))
        .map(|phrase| phrase.split(' ').map(str::to_lowercase).collect())
        .collect()
}

/// Whether the prose at these words is the phrase. Between its words, white space and comment
/// markers are allowed.
fn starts_with(prose: &str, words: &[(usize, &str)], phrase: &[String]) -> bool {
    let same = phrase
        .iter()
        .zip(words)
        .all(|(wanted, (_, word))| wanted == word);
    let adjacent = words.windows(2).take(phrase.len() - 1).all(|pair| {
        let gap = &prose[pair[0].0 + pair[0].1.len()..pair[1].0];
        let marks: &[char] = if gap.contains('\n') {
            &['/', '!', '#', '\\']
        } else {
            &[]
        };
        gap.chars().all(|c| c.is_whitespace() || marks.contains(&c))
    });
    same && adjacent && words.len() >= phrase.len()
}

/// Returns every word with its byte offset. An identifier is one word.
fn words_of(prose: &str) -> Vec<(usize, &str)> {
    let apart = |c: char| !c.is_alphanumeric() && c != '\'' && c != '_';
    let mut at = 0;
    let mut words = Vec::new();
    for piece in prose.split(apart) {
        if !piece.is_empty() {
            words.push((at, piece));
        }
        at += piece.len();
        at += prose[at..].chars().next().map_or(0, char::len_utf8);
    }
    words
}

/// Replaces everything between the marks with its line ends; after an unclosed mark, the text
/// stays.
pub(crate) fn without(text: &str, open: &str, close: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(open) {
        let Some((inside, behind)) = after.split_once(close) else {
            break;
        };
        kept.push_str(before);
        kept.push_str(open);
        kept.extend(inside.chars().filter(|c| *c == '\n'));
        kept.push_str(close);
        rest = behind;
    }
    kept.push_str(rest);
    kept
}
