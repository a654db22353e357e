//! The agent's registration with the kubelet, which must persist whatever happens to its socket.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::rig::{Change, Kubelet, Pages, Process, TestDir, call_by_path, probe, until};

/// The name that node-driver-registrar uses for the driver `local.csi.belay.dev`.
const SOCKET: &str = "local.csi.belay.dev-reg.sock";

/// An agent that registers, and the relevant paths.
struct Bed {
    agent: Option<Process>,
    /// The pages of the agent.
    pages: Option<Pages>,
    test_dir: TestDir,
}

impl Bed {
    fn new() -> (Self, Kubelet) {
        let test_dir = TestDir::new();
        test_dir.directory("volumes");
        let kubelet = Kubelet::start(&test_dir.path().join("plugins_registry"));
        let mut bed = Bed {
            agent: None,
            pages: None,
            test_dir,
        };
        bed.start();
        (bed, kubelet)
    }

    fn start(&mut self) {
        let flags = self.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let agent = Process::start(&self.test_dir, "belay-node", &self.endpoint(), &flags);
        self.pages = Some(Pages::of(&agent));
        self.agent = Some(agent);
    }

    fn flags(&self) -> Vec<String> {
        let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        [
            ["--node-id", "node-1"].map(str::to_owned),
            ["--http-endpoint", "127.0.0.1:0"].map(str::to_owned),
            [
                "--loop-dir".to_owned(),
                path(&self.test_dir.path().join("volumes")),
            ],
            ["--registration-dir".to_owned(), path(&self.directory())],
            [
                "--kubelet-registration-path".to_owned(),
                path(&self.endpoint()),
            ],
        ]
        .concat()
    }

    /// Returns the last log line of an agent that cannot start next to the others. It gets its own
    /// directory, since it would otherwise wait for the others'.
    fn refused(&self, endpoint: &Path) -> String {
        let directory = self.test_dir.directory("others");
        let mut flags = self.flags();
        flags[5] = directory.to_str().expect("UTF-8").to_owned();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Process::refused(&self.test_dir, "belay-node", endpoint, &flags)
    }

    fn endpoint(&self) -> PathBuf {
        self.test_dir.path().join("node.sock")
    }

    fn directory(&self) -> PathBuf {
        self.test_dir.path().join("plugins_registry")
    }

    fn socket(&self) -> PathBuf {
        self.directory().join(SOCKET)
    }

    fn agent(&self) -> &Process {
        self.agent.as_ref().expect("the agent runs")
    }

    fn pages(&self) -> &Pages {
        self.pages.as_ref().expect("the agent runs")
    }

    /// Waits until all reports agree on whether the kubelet has registered the driver.
    #[track_caller]
    fn is_registered(&self, is_it: bool) {
        let (pages, metric) = (self.pages(), if is_it { "1" } else { "0" });
        let status = if is_it { 200 } else { 503 };
        until("readiness and metric match the kubelet's reply", || {
            pages.health().0 == status
                && pages.metric("belay_kubelet_registered{").as_deref() == Some(metric)
        });
        assert_eq!(pages.life(), (200, "ok\n".to_owned()));
        let probed = probe(&self.endpoint()).is_ok_and(|answer| answer.ready == Some(true));
        assert!(
            probed,
            "the program is healthy, whatever the kubelet replies"
        );
    }

    fn terminate(&mut self) {
        self.agent.take().expect("the agent runs").terminate();
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(agent) = self.agent.as_ref().filter(|_| std::thread::panicking()) {
            eprintln!("the agent's last words:\n{}", agent.last_words());
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn the_kubelet_finds_a_driver_that_answers_and_sees_it_go() {
    let (mut bed, mut kubelet) = Bed::new();
    bed.is_registered(false);
    let info = kubelet.registers(&bed.socket());
    assert_eq!(info.r#type, "CSIPlugin");
    assert_eq!(info.name, "local.csi.belay.dev");
    assert_eq!(Path::new(&info.endpoint), bed.endpoint());
    assert_eq!(info.supported_versions, ["1.0.0"]);
    bed.is_registered(true);
    let mode = fs::symlink_metadata(bed.socket())
        .expect("stat")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // A kubelet that restarts also finds the socket.
    drop(kubelet);
    let mut kubelet = Kubelet::start(&bed.directory());
    kubelet.registers(&bed.socket());
    bed.is_registered(true);
    bed.terminate();
    assert_eq!(kubelet.sees(), Change::Removed(bed.socket()));
    assert_eq!(fs::read_dir(bed.directory()).expect("readdir").count(), 0);
}

/// node-driver-registrar connects to the bare path of the socket, reads the driver's name, and then
/// serves the kubelet itself.
#[test]
#[ignore = "needs root: make test"]
fn an_agent_behind_node_driver_registrar_serves_its_call_and_the_kubelets_and_is_ready() {
    let (mut bed, kubelet) = Bed::new();
    bed.terminate();
    drop(kubelet);
    let mut flags = bed.flags();
    let at = flags.iter().position(|flag| flag == "--registration-dir");
    flags.truncate(at.expect("a flag of the bed"));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let agent = Process::start(&bed.test_dir, "belay-node", &bed.endpoint(), &flags);
    let pages = Pages::of(&agent);
    for method in ["Identity/GetPluginInfo", "Node/NodeGetInfo"] {
        call_by_path(&bed.endpoint(), &format!("/csi.v1.{method}"));
    }
    until("no registration is awaited", || pages.health().0 == 200);
    assert_eq!(fs::read_dir(bed.directory()).expect("readdir").count(), 0);
    agent.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn a_driver_that_the_kubelet_refuses_says_so_and_is_offered_again() {
    let (mut bed, mut kubelet) = Bed::new();
    for error in ["CSINode cannot be read", "it still cannot"] {
        kubelet.refuses(&bed.socket(), error);
        let (status, why) = bed.pages().health();
        assert_eq!(status, 503);
        assert!(why.contains(error), "{why}");
        let is_told = |line: &str| line.contains("ERROR") && line.contains(error);
        // No call waits for the log, so poll it.
        until("it is logged", || {
            bed.agent().last_words().lines().any(is_told)
        });
        assert_eq!(kubelet.sees(), Change::Removed(bed.socket()));
        bed.is_registered(false);
    }
    kubelet.registers(&bed.socket());
    bed.is_registered(true);
    bed.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn a_socket_that_is_removed_or_replaced_is_made_again() {
    let (mut bed, mut kubelet) = Bed::new();
    kubelet.registers(&bed.socket());
    for _ in 0..3 {
        fs::remove_file(bed.socket()).expect("unlink");
        assert_eq!(kubelet.sees(), Change::Removed(bed.socket()));
        kubelet.registers(&bed.socket());
    }
    // A foreign file is left alone and reported, and the agent waits until it is removed.
    let aside = bed.test_dir.path().join("aside");
    fs::write(&aside, "precious").expect("write");
    fs::rename(&aside, bed.socket()).expect("rename");
    let pages = bed.pages();
    until("the foreign file is reported", || {
        pages.health().1.contains("another kind of file")
    });
    bed.is_registered(false);
    assert_eq!(fs::read(bed.socket()).expect("read"), b"precious");
    fs::remove_file(bed.socket()).expect("unlink");
    assert_eq!(kubelet.sees(), Change::Removed(bed.socket()));
    kubelet.registers(&bed.socket());
    bed.is_registered(true);
    bed.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn a_directory_that_is_removed_or_moved_away_is_found_again_when_it_is_made() {
    let (mut bed, mut kubelet) = Bed::new();
    kubelet.registers(&bed.socket());
    bed.is_registered(true);
    let gone = |bed: &Bed| {
        let pages = bed.pages();
        until("the directory is missed", || {
            pages.health().1.contains("create the directory first")
        });
        bed.is_registered(false);
    };
    let mut kubelet = {
        // The agent may create its socket again between the unlink and the rmdir.
        until("rm -r has succeeded", || {
            fs::remove_dir_all(bed.directory()).is_ok()
        });
        gone(&bed);
        Kubelet::start(&bed.directory())
    };
    kubelet.registers(&bed.socket());
    bed.is_registered(true);
    fs::rename(bed.directory(), bed.test_dir.path().join("moved")).expect("rename");
    gone(&bed);
    let mut kubelet = Kubelet::start(&bed.directory());
    kubelet.registers(&bed.socket());
    bed.is_registered(true);
    bed.terminate();
    assert!(!bed.socket().exists());
}

#[test]
#[ignore = "needs root: make test"]
fn the_socket_of_a_killed_agent_is_replaced() {
    let (mut bed, mut kubelet) = Bed::new();
    kubelet.registers(&bed.socket());
    drop(bed.agent.take());
    until("no process has the socket", || {
        UnixStream::connect(bed.endpoint()).is_err()
    });
    assert!(bed.socket().exists(), "a killed agent removes nothing");
    bed.start();
    assert_eq!(kubelet.sees(), Change::Removed(bed.socket()));
    kubelet.registers(&bed.socket());
    bed.is_registered(true);
    bed.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_does_not_start_where_something_foreign_or_another_agent_is() {
    let (mut bed, mut kubelet) = Bed::new();
    kubelet.registers(&bed.socket());
    let second = bed.test_dir.path().join("second.sock");
    let line = bed.refused(&second);
    let name = bed.socket().display().to_string();
    assert!(
        line.contains(&name) && line.contains("another process serves it"),
        "{line}"
    );
    assert!(!second.exists(), "the second agent left its CSI socket");
    kubelet.asks(&bed.socket());
    bed.is_registered(true);
    bed.terminate();

    File::create_new(bed.socket()).expect("a foreign file");
    let line = bed.refused(&second);
    assert!(
        line.contains(&name) && line.contains("another kind of file"),
        "{line}"
    );
    assert!(bed.socket().is_file(), "the foreign file was removed");
    fs::remove_file(bed.socket()).expect("unlink");

    fs::remove_dir(bed.directory()).expect("rmdir");
    let line = bed.refused(&second);
    assert!(line.contains("create the directory first"), "{line}");
}
