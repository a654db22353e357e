//! House rules that a machine can check, each with its reason, since rules that nothing checks are
//! not kept. Reads the repository as text, and compiles nothing.

mod circles;
mod comments;
mod glossary;
mod layers;
mod layout;
mod mask;
mod messages;
mod pages;
mod prose;
mod reasons;
mod rust;
mod text;
mod tree;
mod twins;

use std::fmt;

/// A broken rule, with the position and the reason of the rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Path from the top of the repository.
    pub(crate) path: String,
    /// The line, from 1; 0 for the file or directory as a whole.
    pub(crate) line: usize,
    /// The fault, and the reason of the rule.
    pub(crate) rule: String,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, rule: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            rule: rule.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.rule)
    }
}

/// Passes if there are no findings; otherwise prints all of them, so that one run shows everything
/// to repair.
fn expect_none(findings: &[Finding]) {
    let list: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(
        list.is_empty(),
        "{} broken rules:\n{}",
        list.len(),
        list.join("\n")
    );
}

#[test]
fn every_text_is_clean() {
    expect_none(
        &tree::texts()
            .iter()
            .flat_map(text::check)
            .collect::<Vec<_>>(),
    );
}

#[test]
fn every_rust_file_keeps_its_measure() {
    expect_none(
        &tree::rust_files()
            .iter()
            .flat_map(rust::check)
            .collect::<Vec<_>>(),
    );
}

#[test]
fn every_directory_keeps_its_rank() {
    expect_none(
        &tree::rust_files()
            .iter()
            .flat_map(layers::check)
            .collect::<Vec<_>>(),
    );
}

#[test]
fn no_modules_need_each_other() {
    expect_none(&circles::check(tree::rust_files()));
}

#[test]
fn the_bed_has_no_twins() {
    expect_none(
        &tree::rust_files()
            .iter()
            .flat_map(twins::check)
            .collect::<Vec<_>>(),
    );
}

#[test]
fn the_layout_stands() {
    expect_none(&layout::check(tree::texts()));
}

#[test]
fn every_reason_is_complained_of() {
    expect_none(&reasons::check(tree::rust_files()));
}

#[test]
fn every_page_keeps_to_the_glossary() {
    expect_none(&prose::check(tree::texts()));
}

#[test]
fn every_link_leads_somewhere_and_no_page_is_too_long() {
    expect_none(&pages::check(tree::texts()));
}

#[test]
fn every_message_about_a_volume_begins_with_it() {
    let files = tree::rust_files();
    expect_none(&files.iter().flat_map(messages::check).collect::<Vec<_>>());
}

#[test]
fn every_comment_and_message_keeps_to_the_glossary() {
    expect_none(&comments::check(tree::texts()));
}
