//! The end of the screen: what is left on the machine, as seen from outside the demo's namespaces,
//! and what to run next.

use std::path::Path;

use belay_bed::mounts::mounts_of;

use crate::failure::Failure;

/// Commands for the directory in which `make demo` was run, and what they do.
const NEXT: [(&str, &str); 4] = [
    (
        "make demo ROUNDS=50",
        "quieter times; VERBOSE=1 prints every step",
    ),
    (
        "make demo KEEP=1",
        "keep both programs running, to call them",
    ),
    ("make cluster", "a single-node Kubernetes with Belay in it"),
    ("less docs/quickstart.md", "install Belay in a cluster"),
];

/// Searches for leftovers of a demo that ended. `cleared` is the report of its reaper.
///
/// # Errors
/// Something is left; the text names it.
pub(crate) fn left(demo_dir: &Path, cleared: &str) -> Result<Vec<String>, Failure> {
    let name = demo_dir.to_string_lossy();
    let mut found = Vec::new();
    if demo_dir.symlink_metadata().is_ok() {
        found.push(format!("directory {name}"));
    }
    let mounts = mounts_of("self")?;
    let ours = mounts.iter().filter(|m| m.point.starts_with(demo_dir));
    found.extend(ours.map(|mount| format!("mount {}", mount.point.display())));
    for process in std::fs::read_dir("/proc")? {
        // A process that ends meanwhile has no command line.
        let line = std::fs::read(process?.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&*name) {
            found.push(format!("process {line}"));
        }
    }
    if found.is_empty() {
        return Ok(vec![
            "0 mounts, 0 loop devices, 0 processes, 0 files".to_owned(),
            cleared.to_owned(),
        ]);
    }
    Err(Failure::Demo(format!("left behind: {}", found.join(", "))))
}

/// The commands, one per line.
pub(crate) fn next_steps() -> Vec<String> {
    let line = |(command, what)| format!("{command:<24} {what}");
    NEXT.map(line).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_steps_exist_and_fit_the_screen() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let makefile = std::fs::read_to_string(root.join("Makefile")).unwrap();
        for (command, _) in NEXT {
            let mut words = command.split(' ');
            let (tool, name) = (words.next().unwrap(), words.next().unwrap());
            match tool {
                "make" => assert!(makefile.contains(&format!("\n{name}: ")), "{command}"),
                _ => assert!(root.join(name).exists(), "{command}"),
            }
        }
    }

    #[test]
    fn a_directory_that_is_left_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = left(directory.path(), "").unwrap_err().to_string();
        assert!(error.contains("left behind: directory"), "{error}");
        let path = directory.path().to_owned();
        drop(directory);
        assert_eq!(left(&path, "x").unwrap().len(), 2);
    }
}
