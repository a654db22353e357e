//! The users of a mount, as fuser(1) shows them: processes that have a file or directory in the
//! mount open or mapped (proc(5)), mounts below the mount, and other mount namespaces that contain
//! the mount. The search reads links and tables in /proc, but never accesses the mount itself,
//! which may hang.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::children;
use super::mounts::{self, Mount};

/// Maximum number of users in the result.
const USERS_MAX: usize = 8;
/// Maximum duration of the search, in case the machine has many processes.
const PATIENCE: Duration = Duration::from_secs(3);

/// Returns the users of the mount at a path, such as `17 (bash: cwd)`. If the mount has no users in
/// this mount namespace, returns processes of other mount namespaces that contain the mount. `own`
/// is the mount table of this process's own namespace.
pub(crate) fn of(path: &Path, own: &[Mount]) -> Vec<String> {
    let end = Instant::now() + PATIENCE;
    let mount = own.iter().rfind(|mount| mount.point == path);
    let below = own.iter().map(|mount| mount.point.as_path());
    let below = below.filter(|point| *point != path && point.starts_with(path));
    let mut users: Vec<_> = below.map(|it| format!("mount {}", it.display())).collect();
    let mut elsewhere = Vec::new();
    let mut namespaces = vec![namespace(Path::new("/proc/self"))];
    for process in children(Path::new("/proc")) {
        if users.len() >= USERS_MAX || Instant::now() > end {
            break;
        }
        let name = process.file_name().and_then(|name| name.to_str());
        let Some(pid) = name.and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let program = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let user = |what| format!("{pid} ({}: {what})", program.trim_end());
        users.extend(used(&process, path).map(user));
        let here = namespace(&process);
        if !namespaces.contains(&here) {
            let others = mounts::of(pid).unwrap_or_default();
            let is =
                |it: &Mount| mount.is_some_and(|own| (&it.dev, &it.root) == (&own.dev, &own.root));
            elsewhere.extend(others.iter().any(is).then(|| user("mount namespace")));
            namespaces.push(here);
        }
    }
    elsewhere.truncate(USERS_MAX);
    if users.is_empty() { elsewhere } else { users }
}

/// Returns how a process uses files at or below a path. Returns `None` if the process uses no such
/// file, or if the process is in a different mount namespace, where the path may refer to a
/// different mount.
fn used(process: &Path, path: &Path) -> Option<&'static str> {
    if namespace(process) != namespace(Path::new("/proc/self")) {
        return None;
    }
    let is_in = |link: PathBuf| fs::read_link(link).is_ok_and(|file| file.starts_with(path));
    if let Some(name) = ["cwd", "root"]
        .into_iter()
        .find(|it| is_in(process.join(it)))
    {
        return Some(name);
    }
    if children(&process.join("fd")).into_iter().any(is_in) {
        return Some("open file");
    }
    // Do not read `maps` of a process with a thread in uninterruptible sleep: the read waits for
    // the lock of the address space (mmap_lock), which the thread may hold.
    if children(&process.join("task"))
        .iter()
        .any(|thread| is_stuck(thread))
    {
        return None;
    }
    let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
    let mut files = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_mapped = files.any(|file| Path::new(file).starts_with(path));
    is_mapped.then_some("mapped file")
}

/// Whether a thread is in uninterruptible sleep, state D.
fn is_stuck(thread: &Path) -> bool {
    let stat = fs::read(thread.join("stat")).unwrap_or_default();
    // In the stat files of /proc, the program's name may contain any characters, and ends at the
    // last `)`.
    let state = stat.rsplit(|byte| *byte == b')').next();
    state.is_some_and(|state| state.starts_with(b" D"))
}

fn namespace(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/mnt")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn a_process_is_found_by_an_open_file_or_its_program() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let own = Path::new("/proc/self");
        assert_eq!(used(own, &dir), None);
        let file = fs::File::create(dir.join("file")).unwrap();
        assert_eq!(used(own, &dir), Some("open file"));
        let me = format!("{} (", std::process::id());
        assert!(of(&dir, &[]).iter().any(|user| user.starts_with(&me)));
        drop(file);
        let program = std::env::current_exe().unwrap();
        // A thread of another test may be in uninterruptible sleep for a moment.
        let end = Instant::now() + Duration::from_secs(30);
        while used(own, &program) != Some("mapped file") {
            assert!(Instant::now() < end, "not found");
            thread::yield_now();
        }
    }

    #[test]
    fn neither_paths_of_another_mount_namespace_nor_maps_of_a_stuck_process_are_read() {
        let process = tempfile::tempdir().unwrap();
        let process = process.path();
        for directory in ["ns", "task/1"] {
            fs::create_dir_all(process.join(directory)).unwrap();
        }
        fs::write(process.join("maps"), "0-1 r--p 0 0:1 2 /mnt/file\n").unwrap();
        let state = |state: &str| {
            let stat = format!("1 (a) b) {state} 0 1");
            fs::write(process.join("task/1/stat"), stat).unwrap();
        };
        let own = namespace(Path::new("/proc/self")).unwrap();
        let link = |to: &Path| {
            drop(fs::remove_file(process.join("ns/mnt")));
            std::os::unix::fs::symlink(to, process.join("ns/mnt")).unwrap();
        };
        let used = || used(process, Path::new("/mnt"));
        link(&own);
        state("S");
        assert_eq!(used(), Some("mapped file"));
        state("D");
        assert_eq!(used(), None);
        std::os::unix::fs::symlink("/mnt", process.join("cwd")).unwrap();
        assert_eq!(used(), Some("cwd"));
        link(Path::new("mnt:[1]"));
        assert_eq!(used(), None);
    }
}
