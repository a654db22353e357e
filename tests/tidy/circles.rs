//! Checks that no two modules of one parent depend on each other, directly or through a third.
//! Reads imports as text; a name that is reached through a re-export of the parent is not seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::layers::first_names;
use crate::mask::{line_of, places_of};
use crate::rust::is_product;
use crate::tree::RustFile;

/// The path of a module from its crate's root, as in `a::b`; the root itself is empty.
type Module = Vec<String>;

/// The first line on which a module names a sibling.
struct Use<'a> {
    path: &'a str,
    line: usize,
}

/// For each module, the siblings that it or its children name.
type Uses<'a> = BTreeMap<(Module, String), BTreeMap<String, Use<'a>>>;

/// Returns one finding for each cycle of modules in the products' crates.
pub(crate) fn check(files: &[RustFile]) -> Vec<Finding> {
    let crates: BTreeSet<&str> = files
        .iter()
        .filter_map(|file| sources_of(&file.path))
        .collect();
    crates
        .into_iter()
        .flat_map(|sources| circles(sources, files))
        .collect()
}

/// Returns the `src/` directory of the product's crate that contains a file.
fn sources_of(path: &str) -> Option<&str> {
    let end = path.find("/src/")? + "/src/".len();
    is_product(path).then(|| &path[..end])
}

fn circles(sources: &str, files: &[RustFile]) -> Vec<Finding> {
    let files: Vec<(Module, &RustFile)> = files
        .iter()
        .filter(|file| sources_of(&file.path) == Some(sources))
        .map(|file| (module_of(&file.path[sources.len()..]), file))
        .collect();
    let modules: BTreeSet<&Module> = files.iter().map(|(module, _)| module).collect();
    let mut uses = Uses::new();
    for (module, file) in &files {
        for (named, at) in paths_named(&file.product, module) {
            let Some((parent, from, to)) = siblings(module, &named, &modules) else {
                continue;
            };
            let line = line_of(&file.product, at);
            let path = &file.path;
            let of_module = uses.entry((parent, from)).or_default();
            of_module.entry(to).or_insert(Use { path, line });
        }
    }
    findings(&uses)
}

/// Returns a finding for each use that leads back to the module where it starts.
fn findings(uses: &Uses<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ((parent, from), siblings) in uses {
        for (to, Use { path, line }) in siblings {
            if reaches(uses, parent, to, from) {
                let rule = format!(
                    "{from} uses {to}, which needs {from}: move what both need to a third module"
                );
                findings.push(Finding::new(path, *line, rule));
            }
        }
    }
    findings
}

/// Whether the module `from` depends on its sibling `to`, directly or through others.
fn reaches(uses: &Uses<'_>, parent: &Module, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(module) = next.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module.clone()) {
            let used = uses.get(&(parent.clone(), module));
            next.extend(used.into_iter().flat_map(BTreeMap::keys).cloned());
        }
    }
    false
}

/// Returns the module of a file: `a/b.rs` and `a/b/mod.rs` are both `a::b`.
fn module_of(path: &str) -> Module {
    let mut parts: Module = path
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    if parts
        .last()
        .is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main"))
    {
        parts.pop();
    }
    parts
}

/// Returns the common parent of two modules, and the parent's children that contain them; `None` if
/// one module contains the other.
fn siblings(
    here: &Module,
    named: &Module,
    modules: &BTreeSet<&Module>,
) -> Option<(Module, String, String)> {
    let there = (1..=named.len())
        .rev()
        .map(|length| named[..length].to_vec());
    let there = there.into_iter().find(|prefix| modules.contains(prefix))?;
    let common = here.iter().zip(&there).take_while(|(a, b)| a == b).count();
    let (from, to) = (here.get(common)?, there.get(common)?);
    Some((here[..common].to_vec(), from.clone(), to.clone()))
}

/// Returns every path that begins with `crate` or `super`, resolved from the module `here`, with
/// its position.
fn paths_named(code: &str, here: &Module) -> Vec<(Module, usize)> {
    let mut paths = Vec::new();
    for at in places_of(code, "crate") {
        expand(code, at + "crate".len(), Vec::new(), &mut paths);
    }
    for at in places_of(code, "super") {
        // The later words of `super::super` are read with the first.
        if !code[..at].ends_with("super::") {
            climb(code, at, here, &mut paths);
        }
    }
    paths
}

fn climb(code: &str, at: usize, here: &Module, paths: &mut Vec<(Module, usize)>) {
    let (mut at, mut base) = (at + "super".len(), here.clone());
    base.pop();
    while code[at..].starts_with("::super") {
        at += "::super".len();
        base.pop();
    }
    expand(code, at, base, paths);
}

/// Adds the paths that follow `base` at `at`, where `::` begins: a single path, or all paths of a
/// group.
fn expand(code: &str, at: usize, base: Module, paths: &mut Vec<(Module, usize)>) {
    let Some(rest) = code[at..].strip_prefix("::") else {
        return paths.push((base, at));
    };
    let names = first_names(rest);
    if names.is_empty() {
        // The path ends in `*`, all names of a module.
        return paths.push((base, at));
    }
    for (name, offset) in names {
        let end = code.len() - rest.len() + offset + name.len();
        expand(code, end, [base.clone(), vec![name]].concat(), paths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<RustFile> = files
            .iter()
            .map(|(path, content)| RustFile::new(path, content))
            .collect();
        check(&files)
            .iter()
            .map(|finding| format!("{}:{}", finding.path, finding.line))
            .collect()
    }

    #[test]
    fn modules_that_name_each_other_are_found_in_every_way_of_writing_it() {
        for (there, back) in [
            ("use crate::b::B;", "use crate::a::A;"),
            ("use super::b;", "fn f() { super::a::g() }"),
            ("use crate::{b::{B, C}, c};", "use crate::a;"),
            ("use crate::b::*;", "use super::super::a::{*};"),
        ] {
            let files = [("ctl/src/a.rs", there), ("ctl/src/b/mod.rs", back)];
            assert_eq!(
                found(&files),
                ["ctl/src/a.rs:1", "ctl/src/b/mod.rs:1"],
                "{there} {back}"
            );
        }
    }

    #[test]
    fn a_circle_of_three_and_one_below_a_parent_are_found() {
        let three = [
            ("ctl/src/x/a.rs", "//! x\nuse super::b::B;\n"),
            ("ctl/src/x/b.rs", "use crate::x::c::C;"),
            ("ctl/src/x/c/deep.rs", "use super::super::a::A;"),
            ("ctl/src/x/c.rs", ""),
        ];
        assert_eq!(
            found(&three),
            [
                "ctl/src/x/a.rs:2",
                "ctl/src/x/b.rs:1",
                "ctl/src/x/c/deep.rs:1"
            ]
        );
    }

    #[test]
    fn one_way_parents_children_and_tests_pass() {
        let files = [
            ("ctl/src/a.rs", "use crate::b::B;\nuse crate::a::inner::C;"),
            ("ctl/src/a/inner.rs", "use super::A;\nuse crate::b::B;"),
            (
                "ctl/src/b.rs",
                "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
            ),
            ("ctl/src/b/tests.rs", "use crate::a::A;"),
            ("server/src/b.rs", "use crate::a::A;"),
        ];
        assert_eq!(found(&files), [] as [&str; 0]);
    }
}
