//! Callers of other users, whom the kernel identifies to the agent.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use belay_bed::programs::binary;

use crate::rig::{Launch, Pages, Rig, TestDir};

/// Starts an agent with HTTP pages and these flags.
fn rig(flags: &[&str]) -> Rig {
    let flags = flags.iter().chain(&["--http-endpoint=127.0.0.1:0"]);
    let launch = Launch {
        flags: flags.map(|&flag| flag.to_owned()).collect(),
        ..Launch::default()
    };
    let test_dir = TestDir::new();
    let volumes = test_dir.directory("volumes");
    Rig::launched(test_dir, volumes, launch)
}

/// Requests the node's info as a user without any privilege, with the `belayctl` and the socket in
/// a directory. It is the working directory, since its parents may be closed to that user.
fn ask(directory: &Path, socket: &Path) -> Output {
    let name = socket.file_name().expect("a name").display();
    let endpoint = format!("unix:///proc/self/cwd/{name}");
    let mut command = Command::new("setpriv");
    command
        .current_dir(directory)
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .args(["./belayctl", "node", "info", "--endpoint", &endpoint]);
    command.output().expect("setpriv of util-linux")
}

#[test]
#[ignore = "needs root: make test"]
fn a_user_whom_the_file_of_the_socket_lets_in_is_refused_unless_a_flag_allows_it() {
    for (flags, is_allowed) in [(&[][..], false), (&["--allow-uid=65534"], true)] {
        let rig = rig(flags);
        let directory = rig.test_dir().path();
        // Copy it where that user may execute it.
        let belayctl = directory.join("belayctl");
        fs::copy(binary("belayctl").expect("a program"), &belayctl).expect("copy");
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
        };
        chmod(directory, 0o755);
        let answer = ask(directory, &rig.socket());
        let words = String::from_utf8_lossy(&answer.stderr);
        assert!(words.contains("Permission denied"), "{words}");
        chmod(&rig.socket(), 0o666);
        let answer = ask(directory, &rig.socket());
        let words = String::from_utf8_lossy(&answer.stderr);
        assert_eq!(answer.status.success(), is_allowed, "{words}");
        let refused = "of user 65534 may not call; only root may, and the users of --allow-uid";
        assert_eq!(words.contains(refused), !is_allowed, "{words}");
        let pages = Pages::of(rig.agent());
        let code = if is_allowed {
            "OK"
        } else {
            "PERMISSION_DENIED"
        };
        let driver = "driver=\"local.csi.belay.dev\"";
        let counted = format!(
            "belay_rpc_duration_seconds_count{{{driver},rpc=\"NodeGetInfo\",code=\"{code}\"}}"
        );
        assert_eq!(pages.metric(&counted).as_deref(), Some("1"), "{counted}");
    }
}
