//! A log that is not read: the collector hangs, or the disk does not respond. Calls succeed anyway,
//! and the log later reports how many lines are missing.

use std::fs::{self, File};
use std::io::{PipeReader, Read as _};
use std::net::SocketAddr;
use std::process::Stdio;

use belay_proto::csi::v1 as csi;
use tonic::Code;

use crate::rig::{
    ControllerCalls, Disk, Frozen, NodeCalls, Process, TestDir, free_port, get, refused, text,
    until,
};

/// The number of calls. Each causes a line of more than 100 bytes, and no pipe or queue holds more
/// than 64 KiB.
const CALLS: u32 = 1000;
const REPORT: &str = "log lines were dropped";

/// A program, with a call that fails and therefore is logged.
struct Program {
    process: Process,
    fail: Box<dyn Fn()>,
    pages: SocketAddr,
}

impl Program {
    fn start(test_dir: &TestDir, name: &str, stderr: Stdio) -> Self {
        let socket = test_dir.path().join(format!("{name}.sock"));
        let (directory, pages) = (test_dir.directory(name), free_port());
        let address = pages.to_string();
        let mut flags = vec!["--node-id", "node-1", "--http-endpoint", &address];
        let fail: Box<dyn Fn()> = if name == "belay-node" {
            flags.extend(["--loop-dir", text(&directory)]);
            let node = NodeCalls::new(socket.clone());
            Box::new(move || {
                let request = csi::NodeGetVolumeStatsRequest {
                    volume_id: "vol-none".to_owned(),
                    volume_path: "/nowhere".to_owned(),
                    ..Default::default()
                };
                refused(node.stats(request), Code::NotFound);
            })
        } else {
            flags.extend(["--backend", "local", "--state-dir", text(&directory)]);
            let controller = ControllerCalls::new(socket.clone());
            Box::new(move || {
                let request = csi::ControllerGetVolumeRequest {
                    volume_id: "vol-none".to_owned(),
                };
                refused(controller.get(request), Code::NotFound);
            })
        };
        let process = Process::start_with_log(stderr, test_dir, name, &socket, &flags);
        Program {
            process,
            fail,
            pages,
        }
    }

    /// Overfills the log: every call gets a response, and the loss is counted.
    fn fill_the_log(&self) {
        for _ in 0..CALLS {
            (self.fail)();
        }
        assert_eq!(get(self.pages, "/livez").as_deref(), Some("ok\n"));
        let page = get(self.pages, "/metrics").expect("a page");
        let mut lines = page.lines();
        let count = lines.find_map(|line| line.strip_prefix("belay_log_lines_dropped_total "));
        let count: u32 = count.expect("a count").parse().expect("a number");
        assert!(count > 0);
    }

    /// Reads the program's log until it reports the missing lines.
    fn expect_report(&self, mut take: impl FnMut() -> String) {
        let mut log = String::new();
        until("the log reports missing lines", || {
            (self.fail)();
            log += &take();
            log.contains(REPORT)
        });
        let is_torn = |line: &&str| !line.contains("Z ");
        let torn = log.lines().find(is_torn);
        assert_eq!(torn, None, "each line begins with its time");
    }
}

/// Returns the current content of the pipe, at least one line.
fn take(reader: &mut PipeReader) -> String {
    let mut bytes = vec![0; 1 << 20];
    let length = reader.read(&mut bytes).expect("read");
    String::from_utf8(bytes[..length].to_vec()).expect("UTF-8")
}

#[test]
#[ignore = "needs root: make test"]
fn a_log_that_is_not_read_stops_no_call() {
    let test_dir = TestDir::new();
    for name in ["belay-node", "belay-controller"] {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let program = Program::start(&test_dir, name, writer.into());
        program.fill_the_log();
        program.expect_report(|| take(&mut reader));
        program.process.terminate();
    }
    test_dir.expect_nothing_left();
}

#[test]
#[ignore = "needs root: make test"]
fn a_log_on_a_disk_that_does_not_answer_stops_no_call() {
    let test_dir = TestDir::new();
    let disk = Disk::new(&test_dir, "ext4", "logs");
    for name in ["belay-node", "belay-controller"] {
        let log = disk.path().join(name);
        let file = File::options().create(true).append(true).open(&log);
        let program = Program::start(&test_dir, name, file.expect("a log").into());
        let frozen = Frozen::at(disk.path());
        program.fill_the_log();
        drop(frozen);
        program.expect_report(|| fs::read_to_string(&log).expect("read"));
        program.process.terminate();
    }
    disk.unmount();
    test_dir.expect_nothing_left();
}
