//! Shared by the tests: machines with a disk for Belay's state, kernels, conditions in the shell.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belay_bed::tools;
use belay_guest::{Disk, Guest, Hardware, Kernel, Machine, Medium};

pub(crate) const MIB: u64 = 1 << 20;

/// Both kernels, or the only one.
pub(crate) fn kernels() -> Vec<Kernel> {
    let both = [Some(Kernel::of_distribution()), Kernel::newest()];
    both.into_iter().flatten().collect()
}

/// Both kernels in `make nightly`, else that one: where a test takes long.
pub(crate) fn kernels_or(one: Kernel) -> Vec<Kernel> {
    match std::env::var_os("BELAY_NIGHTLY") {
        Some(_) => kernels(),
        None => vec![one],
    }
}

/// The newest kernel there is.
pub(crate) fn newest_kernel() -> Kernel {
    Kernel::newest().unwrap_or_else(Kernel::of_distribution)
}

/// A disk of so many MiB in a file of the machine's directory.
pub(crate) fn medium(machine: &Machine, name: &str, mib: u64) -> Arc<Medium> {
    Arc::new(Medium::new(&machine.directory().join(name), mib * MIB))
}

/// Waits in the shell until a condition holds, at most half a minute.
pub(crate) fn until(condition: &str) -> String {
    format!("for _ in $(seq 300); do {condition} && break; sleep 0.1; done; {condition}")
}

/// A machine with a disk for Belay's state in its slot, formatted.
pub(crate) fn machine_with_state(kernel: Kernel, filesystem: &str) -> (Machine, Arc<Medium>) {
    let hardware = Hardware {
        memory: 768,
        ..Hardware::default()
    };
    let machine = Machine::new(kernel, hardware);
    let medium = medium(&machine, "state", 2048);
    format(&machine.directory().join("state"), filesystem);
    machine.slot(0).insert(Disk::block("state", &medium));
    (machine, medium)
}

/// Boots it, with that disk mounted at `/state`, and Belay's programs at `/belay`.
pub(crate) fn boot(machine: &Machine) -> Guest<'_> {
    let mut guest = machine.boot();
    eprintln!("Linux {}", guest.release());
    let programs = seen_programs();
    guest.run(&format!(
        "mkdir -p /state /belay
         mount /dev/disk/by-id/virtio-state /state && mount --bind {programs} /belay"
    ));
    guest
}

/// Returns the path of the programs in guests.
pub(crate) fn seen_programs() -> String {
    seen(&programs())
}

/// Returns the path in guests of a file of this machine.
pub(crate) fn seen(file: &Path) -> String {
    let file = file.canonicalize().expect("a file of this machine");
    format!("/machine{}", file.display())
}

fn format(file: &Path, filesystem: &str) {
    tools::run(&format!("mkfs.{filesystem}"), &["-q", tools::text(file)]);
}

/// The directory with the static programs: `BELAY_BIN_DIR`, else where make puts them.
fn programs() -> PathBuf {
    let directory = match std::env::var_os("BELAY_BIN_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => target().join("bin"),
    };
    let node = directory.join("belay-node");
    assert!(
        node.exists(),
        "no {}; run `make build` first",
        node.display()
    );
    directory
}

/// Returns the directory of this test, `<target>/<profile>/deps`.
pub(crate) fn test_directory() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    test.parent().expect("a directory").to_owned()
}

fn target() -> PathBuf {
    let directory = test_directory();
    directory
        .ancestors()
        .nth(2)
        .expect("a directory")
        .to_owned()
}
