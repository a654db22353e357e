//! Checks that code that uses the programs from outside shares `tests/bed/`: a name that belongs to
//! one of its modules is used nowhere else; otherwise each new harness would begin with a copy.

use crate::Finding;
use crate::mask::{line_of, places_of};
use crate::tree::RustFile;

const OUTSIDE: [&str; 4] = ["benches/", "controller/tests/", "demo/", "tests/blackbox/"];

/// A name, and the file that may use it.
const PIECES: [(&str, &str); 5] = [
    ("BlockVolume", "requests::capability"),
    ("MountVolume", "requests::capability"),
    ("TcpListener", "scrape::free_port"),
    ("fsopen", "mounts::mount"),
    ("open_tree", "mounts::bind"),
];

/// Returns a finding for each line of a file that duplicates a part of the bed.
pub(crate) fn check(file: &RustFile) -> Vec<Finding> {
    if !OUTSIDE
        .iter()
        .any(|directory| file.path.starts_with(directory))
    {
        return Vec::new();
    }
    let found = |&(name, piece): &(&str, &str)| -> Vec<Finding> {
        let rule = format!("{name}: tests/bed/ has {piece} for that");
        places_of(&file.code, name)
            .map(|at| Finding::new(&file.path, line_of(&file.code, at), rule.clone()))
            .collect()
    };
    PIECES.iter().flat_map(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twin_is_found_outside_and_the_original_is_not() {
        let content = "//! x\nfn f() {\n    TcpListener::bind(a)\n}\n// fsopen\n";
        let lines = |path| -> Vec<usize> {
            let found = check(&RustFile::new(path, content));
            found.iter().map(|finding| finding.line).collect()
        };
        for path in ["demo/src/inner.rs", "tests/blackbox/rig/prometheus.rs"] {
            assert_eq!(lines(path), [3], "{path}");
        }
        for path in ["tests/bed/scrape.rs", "server/tests/serving.rs"] {
            assert_eq!(lines(path), [] as [usize; 0], "{path}");
        }
    }
}
