//! Checks that the programs report each health reason that contract/src/reason.rs lists for them;
//! otherwise a reason without code would remain in the documentation. Reads the list as text, one
//! reason per line.

use crate::Finding;
use crate::mask::places_of;
use crate::tree::RustFile;

const LIST: &str = "contract/src/reason.rs";

/// The reporters' names in the list, and the directories of their code.
const TELLERS: [(&str, &str); 3] = [
    ("Node", "node-agent/src/"),
    ("Controller", "controller/src/"),
    ("Remote", "controller/src/"),
];

/// Returns a finding for each reason that one of its reporters does not use.
pub(crate) fn check(files: &[RustFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let list = files.iter().find(|file| file.path == LIST);
    let Some(list) = list else {
        return vec![Finding::new(
            LIST,
            0,
            "is missing: it lists the health reasons",
        )];
    };
    let (mut module, mut reasons) = ("", 0);
    for (at, line) in list.code.lines().enumerate() {
        if let Some(name) = line.strip_prefix("pub mod ") {
            module = name.trim_end_matches(" {");
        }
        let Some((constant, reporters)) = reason(line) else {
            continue;
        };
        reasons += 1;
        let path = format!("{module}::{constant}");
        for (teller, sources) in TELLERS {
            let mut theirs = files.iter().filter(|file| file.path.starts_with(sources));
            let is_used = theirs.any(|file| places_of(&file.product, &path).next().is_some());
            if places_of(reporters, teller).next().is_some() && !is_used {
                let rule = format!("{path} is used nowhere in {sources}: remove {teller} from it");
                findings.push(Finding::new(LIST, at + 1, rule));
            }
        }
    }
    if reasons == 0 {
        findings.push(Finding::new(
            LIST,
            0,
            "lists no reason: has its form changed?",
        ));
    }
    findings
}

/// Parses `CONSTANT =     , Severity, [Reporter];`, with the literal blanked; returns the constant
/// and the reporters.
fn reason(line: &str) -> Option<(&str, &str)> {
    let (constant, rest) = line.trim().split_once(" = ")?;
    let (_, reporters) = rest.split_once('[')?;
    let is_constant = |c: char| c.is_ascii_uppercase() || c == '_';
    let is_reason = constant.chars().all(is_constant) && rest.ends_with("];");
    is_reason.then_some((constant, reporters))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASONS: &str = "pub mod volume {\n    reasons! { Severity:\n        \
                           GONE = \"Gone\", DataLoss, [Node, Controller];\n    }\n}\n";

    fn lines(node: &str, controller: &str) -> Vec<usize> {
        let files = [
            RustFile::new(LIST, REASONS),
            RustFile::new("node-agent/src/a.rs", node),
            RustFile::new("controller/src/a.rs", controller),
        ];
        let findings = check(&files);
        findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_reason_is_used_by_each_that_it_names() {
        let used = "fn f() { add(volume::GONE) }";
        assert_eq!(lines(used, used), Vec::<usize>::new());
        assert_eq!(lines(used, "// volume::GONE"), [3]);
        assert_eq!(lines("add(storage::GONE)", "add(volume::GONE_BY)"), [3, 3]);
        assert_eq!(check(&[RustFile::new(LIST, "")])[0].line, 0);
        assert_eq!(check(&[]).len(), 1);
    }
}
