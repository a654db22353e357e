//! A controller with its own state directory.

use std::path::{Path, PathBuf};

use super::calls::ControllerCalls;
use super::process::Process;
use super::test_dir::TestDir;

/// A running controller of node `node-1`.
pub(crate) struct Controller {
    process: Process,
    socket: PathBuf,
}

impl Controller {
    /// Starts a controller with its state in a directory of the test directory.
    pub(crate) fn start(test_dir: &TestDir) -> Self {
        Self::start_by(&[], test_dir)
    }

    /// Starts a controller through a command that executes it.
    pub(crate) fn start_by(command: &[String], test_dir: &TestDir) -> Self {
        let socket = test_dir.path().join("controller.sock");
        let state = test_dir.path().join("state");
        std::fs::create_dir_all(&state).expect("state directory");
        let state = state.to_str().expect("UTF-8");
        let flags = [
            "--backend",
            "local",
            "--node-id",
            "node-1",
            "--state-dir",
            state,
        ];
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let process = Process::start_by(&command, test_dir, "belay-controller", &socket, &flags);
        Controller { process, socket }
    }

    /// Returns the controller's RPCs.
    pub(crate) fn calls(&self) -> ControllerCalls {
        ControllerCalls::new(self.socket.clone())
    }

    /// Returns the path of the socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the PID.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the end of the log.
    pub(crate) fn last_words(&self) -> String {
        self.process.last_words()
    }

    /// Returns the log.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// Asks the controller to exit.
    pub(crate) fn terminate(self) {
        self.process.terminate();
    }
}
