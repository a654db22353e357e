//! Finds the sockets of drivers in their usual directories.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Directories in which Belay's programs listen, outside of pods or in containers. In addition,
/// belayctl searches the kubelet's directory.
const DIRECTORIES: [&str; 4] = ["/run/belay", "/run/csi", "/csi", "/var/run/csi"];

/// Maximum depth of a socket below a searched directory; 1 means that the socket is in the
/// directory itself.
const DEPTH: usize = 3;

/// Returns the sockets in these directories, sorted by path. Searches the default directories if
/// `directories` is empty.
pub(crate) fn find(directories: &[PathBuf], kubelet: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if directories.is_empty() {
        let usual = DIRECTORIES.iter().map(PathBuf::from);
        let registered = ["plugins", "plugins_registry"].map(|name| kubelet.join(name));
        for directory in usual.chain(registered) {
            walk(&directory, DEPTH, &mut found);
        }
    }
    for directory in directories {
        walk(directory, DEPTH, &mut found);
    }
    // Remove duplicates, since /var/run is a link to /run. Keep the shortest path.
    found.sort_by_key(|path| path.as_os_str().len());
    let mut files = Vec::new();
    found.retain(|path| {
        let file = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let is_new = !files.contains(&file);
        files.push(file);
        is_new
    });
    found.sort();
    found
}

/// Adds the sockets in a directory. Skips the kubelet's directories for staging and publishing,
/// since a volume mounted there may hang.
fn walk(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_socket() {
            found.push(entry.path());
        } else if kind.is_dir() && depth > 1 && entry.file_name() != "kubernetes.io" {
            walk(&entry.path(), depth - 1, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_sockets_are_found_and_volumes_are_not_entered() {
        let dir = tempfile::tempdir().unwrap();
        let plugins = dir.path().join("plugins");
        let listen = |path: &str| {
            let path = plugins.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            UnixListener::bind(&path).unwrap();
            path
        };
        let driver = listen("d.example.com/csi.sock");
        listen("kubernetes.io/csi/x.sock");
        fs::write(plugins.join("a.sock"), "").unwrap();
        assert_eq!(find(&[plugins], Path::new("/nonexistent")), [driver]);
    }
}
