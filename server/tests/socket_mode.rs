//! The mode of the socket file. Alone in its process, because the umask is one a process.

use belay_server::endpoint::Endpoint;
use belay_server::socket::Socket;
use rustix::fs::Mode;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn only_the_owner_reaches_the_socket_even_without_a_umask() {
    let folder = tempfile::TempDir::new().unwrap();
    for (umask, file) in [(0, "open.sock"), (0o022, "usual.sock")] {
        rustix::process::umask(Mode::from_raw_mode(umask));
        let endpoint = Endpoint {
            path: folder.path().join(file),
        };
        let socket = Socket::bind(&endpoint).unwrap();
        let mode = std::fs::symlink_metadata(socket.path())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "umask {umask:o}");
    }
}
