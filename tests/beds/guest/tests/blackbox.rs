//! Parts of the black box, run in guests: on a kernel without statmount(2), and with control groups
//! of version 2.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use belay_guest::{Guest, Kernel};

use crate::rig::{boot, machine_with_state, newest_kernel, seen, test_directory};

/// On an idle machine it is a quarter of a minute.
const LIFE_MAX: Duration = Duration::from_secs(600);

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn the_life_of_a_volume_is_the_same_on_the_oldest_kernel() {
    run_in(Kernel::of_distribution(), "lifecycle::", &[]);
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_program_killed_for_memory_by_control_groups_of_version_2_loses_nothing() {
    let part = ("BELAY_ACCIDENTS", "killed for memory/published/filesystem");
    run_in(newest_kernel(), "accidents::no_accident", &[part]);
}

fn run_in(kernel: Kernel, tests: &str, variables: &[(&str, &str)]) {
    let (machine, _) = machine_with_state(kernel, "ext4");
    let mut guest = boot(&machine);
    guest.run("echo +memory >/sys/fs/cgroup/cgroup.subtree_control");
    let ran = run(&mut guest, tests, variables);
    eprintln!("{ran}");
    assert!(ran.contains("test result: ok"), "{ran}");
    assert!(!ran.contains(" 0 passed"), "{tests} is the name of no test");
}

fn run(guest: &mut Guest<'_>, tests: &str, variables: &[(&str, &str)]) -> String {
    let variables = variables
        .iter()
        .map(|(name, value)| format!("export {name}='{value}'\n"));
    let script = format!(
        "{}export BELAY_BIN_DIR=/belay TMPDIR=/state
         unshare --mount --propagation private \
             {} --ignored --nocapture --test-threads=1 {tests} 2>&1",
        variables.collect::<String>(),
        seen(&blackbox()),
    );
    guest.run_within(LIFE_MAX, &script)
}

/// The newest that was built, next to this test.
fn blackbox() -> PathBuf {
    let built = |path: &PathBuf| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    let files = fs::read_dir(test_directory()).expect("readdir").flatten();
    let programs = files.map(|file| file.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("blackbox-") && !name.contains('.'))
    });
    let newest = programs.max_by_key(built);
    newest.expect("the black box: `cargo test --workspace --test blackbox --no-run` builds it")
}
