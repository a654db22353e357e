//! The kernels that a guest can run, as `tests/setup/guest.sh` provides them. Only locates files.

use std::path::{Path, PathBuf};

/// A User-mode Linux kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(crate) program: PathBuf,
    /// The directory that contains `<release>/kernel/...`.
    pub(crate) modules: PathBuf,
    pub(crate) arguments: &'static [&'static str],
    /// A library to preload, described in `xsave.c`.
    pub(crate) preload: Option<PathBuf>,
}

impl Kernel {
    /// Returns the distribution's kernel: Linux 6.1 on Debian 12.
    ///
    /// # Panics
    /// Panics if the kernel is not installed.
    #[must_use]
    pub fn of_distribution() -> Self {
        let program = Path::new("/usr/bin/linux.uml");
        assert!(program.exists(), "no linux.uml: `make guest` installs it");
        let preload = cache().join("xsave.so");
        Kernel {
            program: program.to_owned(),
            modules: PathBuf::from("/usr/lib/uml/modules"),
            arguments: &[],
            preload: preload.exists().then_some(preload),
        }
    }

    /// Returns Linux 7, which has statmount(2); `None` if `tests/setup/guest.sh` could not provide
    /// it, which the script reports.
    #[must_use]
    pub fn newest() -> Option<Self> {
        let directory = cache().join("linux-7");
        let program = directory.join("linux.uml");
        program.exists().then(|| Kernel {
            program,
            modules: directory.join("modules"),
            arguments: &["seccomp=on"],
            preload: None,
        })
    }
}

/// Returns `$BELAY_CACHE/guest`, or the default if the variable is not set.
fn cache() -> PathBuf {
    let given = std::env::var_os("BELAY_CACHE").map(PathBuf::from);
    let home = || Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache/belay");
    given.unwrap_or_else(home).join("guest")
}
