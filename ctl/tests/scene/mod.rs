//! Both programs in a directory, and belayctl to call them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use belay_bed::patience::until;
use belay_bed::programs::{Running, binary, program};
use std::os::unix::net::UnixStream;
use tempfile::TempDir;

/// A directory with running programs in it, killed when this is dropped.
pub struct Scene {
    dir: TempDir,
    programs: Vec<Running>,
}

/// The output and the exit code of belayctl.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Scene {
    /// A controller of `local` and the node agent on its volumes, both with pages on free ports.
    pub fn new() -> Self {
        // tmpfs has no room for volumes on many machines.
        let dir = tempfile::Builder::new()
            .prefix("belayctl-")
            .tempdir_in("/var/tmp");
        let mut scene = Self {
            dir: dir.expect("a directory"),
            programs: Vec::new(),
        };
        for name in ["state", "kubelet/plugins_registry", "staging", "pods"] {
            std::fs::create_dir_all(scene.path(name)).expect("mkdir");
        }
        let state = scene.text("state");
        let controller = ["--backend", "local", "--state-dir", &state];
        scene.start("belay-controller", "controller.sock", &controller);
        let volumes = scene.text("state/volumes");
        let (registry, node) = (
            scene.text("kubelet/plugins_registry"),
            scene.text("node.sock"),
        );
        let agent = [
            ["--loop-dir", &volumes],
            ["--registration-dir", &registry],
            ["--kubelet-registration-path", &node],
        ];
        scene.start("belay-node", "node.sock", agent.as_flattened());
        until("the agent asks to be registered", || {
            std::fs::read_dir(&registry).is_ok_and(|mut files| files.next().is_some())
        });
        scene
    }

    /// Starts a program, and returns when it listens.
    pub fn start(&mut self, name: &str, socket: &str, flags: &[&str]) {
        let path = self.path(socket);
        let log = std::fs::File::create(self.path(&format!("{socket}.log"))).expect("a log");
        let endpoint = format!("unix://{}", path.display());
        let words = ["--endpoint", &endpoint, "--node-id", "node-1"];
        let pages = ["--http-endpoint", "127.0.0.1:0"];
        let mut command = program([binary(name).expect("a built program")]);
        command.args(words).args(pages).args(flags);
        command.stdout(Stdio::null()).stderr(log);
        self.programs
            .push(Running::start(&mut command).expect("it starts"));
        until(&format!("{name} listens"), || {
            UnixStream::connect(&path).is_ok()
        });
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Calls the controller.
    #[track_caller]
    pub fn controller(&self, line: &str) -> Run {
        self.call("controller.sock", line)
    }

    /// Calls the node agent.
    #[track_caller]
    pub fn node(&self, line: &str) -> Run {
        self.call("node.sock", line)
    }

    /// Calls a socket; `%` in a word is this directory.
    #[track_caller]
    pub fn call(&self, socket: &str, line: &str) -> Run {
        let socket = self.text(socket);
        self.run(&format!("--endpoint {socket} {line}"), |command| command)
    }

    /// Runs belayctl.
    #[track_caller]
    pub fn run(&self, line: &str, with: impl FnOnce(&mut Command) -> &mut Command) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belayctl"));
        let words = line.split_whitespace();
        command.args(words.map(|word| word.replace('%', &self.text(""))));
        command.env_remove("CSI_ENDPOINT").stdin(Stdio::null());
        Run::of(with(&mut command).output().expect("belayctl runs"))
    }
}

impl Drop for Scene {
    /// A failed test leaves what its programs would have undone.
    fn drop(&mut self) {
        self.programs.clear();
        let directory = self.text("");
        for mount in mounts_in(&directory).iter().rev() {
            let point = mount.split(' ').nth(4).unwrap_or_default();
            drop(Command::new("umount").args(["--lazy", point]).output());
        }
        for entry in std::fs::read_dir("/sys/block")
            .into_iter()
            .flatten()
            .flatten()
        {
            let file = std::fs::read_to_string(entry.path().join("loop/backing_file"));
            if file.is_ok_and(|file| file.starts_with(&directory)) {
                let node = Path::new("/dev").join(entry.file_name());
                drop(Command::new("losetup").arg("--detach").arg(node).output());
            }
        }
    }
}

impl Run {
    pub fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Self {
            code: output.status.code().expect("it exits"),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Succeeded; its output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    /// Failed with this exit code and a message with this part.
    #[track_caller]
    pub fn fails(self, code: i32, part: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.contains(part), "{part} in {self:?}");
    }

    /// Answered, and said no.
    #[track_caller]
    pub fn says_no(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (2, ""), "{}", self.out);
        self.out
    }
}

/// Fails if something is mounted in this directory.
#[track_caller]
pub fn expect_nothing_left(directory: &Path) {
    let left = mounts_in(directory.to_str().expect("UTF-8"));
    assert!(left.is_empty(), "{left:#?}");
}

/// The lines of mountinfo with a mount of this directory or in it.
fn mounts_in(directory: &str) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let lines = mounts.lines().filter(|line| line.contains(directory));
    lines.map(str::to_owned).collect()
}
