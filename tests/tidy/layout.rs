//! Checks the layout of the repository: required files and directories, and no vendored ones.

use crate::Finding;
use crate::tree::Text;

/// The required files, and directories, which end in `/`. A directory exists if it contains a file.
const STANDING: &[&str] = &[
    ".github/ISSUE_TEMPLATE/",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "benches/",
    "clippy.toml",
    "contract/src/drivers/",
    "controller/src/backend/local/",
    "controller/src/operation/",
    "controller/src/rpc/",
    "ctl/src/",
    "deny.toml",
    "deploy/",
    "docs/adr/",
    "node-agent/src/device/",
    "node-agent/src/filesystem/",
    "node-agent/src/kernel/linux/",
    "node-agent/src/mounts/",
    "node-agent/src/operation/",
    "node-agent/src/rpc/",
    "proto/csi.proto",
    "proto/pluginregistration.proto",
    "rustfmt.toml",
    "server/src/",
    "tests/bed/",
    "tests/sanity/",
    "tests/wire/",
    "udev-rules/",
];

const VENDORED: [&str; 4] = ["vendor", "third_party", "node_modules", "external"];

/// Names of modules without a role, which would attract unrelated code.
const DRAWERS: [&str; 5] = ["utils", "util", "common", "helpers", "misc"];

/// Returns all findings about the repository as a whole.
pub(crate) fn check(texts: &[Text]) -> Vec<Finding> {
    let mut findings = missing(texts);
    for text in texts {
        findings.extend(misplaced(&text.path));
    }
    findings.extend(changelog(texts));
    findings
}

fn missing(texts: &[Text]) -> Vec<Finding> {
    let stands = |name: &str| {
        texts.iter().any(|text| match name.strip_suffix('/') {
            Some(_) => text.path.starts_with(name),
            None => text.path == name,
        })
    };
    let absent = STANDING.iter().filter(|name| !stands(name));
    absent
        .map(|name| Finding::new(name, 0, "missing: the layout promises it"))
        .collect()
}

fn misplaced(path: &str) -> Option<Finding> {
    let mut parts = path
        .split('/')
        .map(|part| part.strip_suffix(".rs").unwrap_or(part));
    parts.find_map(|part| {
        if VENDORED.contains(&part) {
            Some(Finding::new(
                path,
                0,
                "looks vendored: dependencies come from the package index",
            ))
        } else if DRAWERS.contains(&part) {
            Some(Finding::new(
                path,
                0,
                format!("{part}: name it by its role"),
            ))
        } else {
            None
        }
    })
}

fn changelog(texts: &[Text]) -> Option<Finding> {
    let log = texts.iter().find(|text| text.path == "CHANGELOG.md")?;
    let heads = |line: &str| line.starts_with("## ") && line.contains("Unreleased");
    let rule = "no heading `## Unreleased`: a change is written down when it is made";
    (!log.content.lines().any(heads)).then(|| Finding::new(&log.path, 1, rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Vec<Text> {
        let content = "# Changes\n\n## Unreleased\n";
        let file = |name: &&str| match name.strip_suffix('/') {
            Some(directory) => Text::new(&format!("{directory}/a.rs"), content),
            None => Text::new(name, content),
        };
        STANDING.iter().map(file).collect()
    }

    #[test]
    fn the_whole_layout_passes() {
        assert_eq!(check(&whole()), []);
    }

    #[test]
    fn each_absent_part_is_found() {
        for absent in STANDING {
            let mut texts = whole();
            texts.retain(|text| !text.path.starts_with(absent));
            let found = check(&texts);
            assert!(
                found
                    .iter()
                    .any(|f| f.path == *absent && f.rule.contains("missing")),
                "{absent}"
            );
        }
    }

    #[test]
    fn foreign_code_and_drawers_are_found() {
        for (path, word) in [
            ("vendor/x/lib.rs", "vendored"),
            ("server/src/utils.rs", "role"),
            ("ctl/src/common/mod.rs", "role"),
        ] {
            let mut texts = whole();
            texts.push(Text::new(path, "//! x\n"));
            let found = check(&texts);
            assert!(
                found.len() == 1 && found[0].rule.contains(word),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_changelog_without_a_place_for_news_is_found() {
        let mut texts = whole();
        for text in &mut texts {
            text.content = "# Changes\n\n## 0.1.0\n".to_owned();
        }
        assert!(check(&texts).iter().any(|f| f.rule.contains("Unreleased")));
    }
}
