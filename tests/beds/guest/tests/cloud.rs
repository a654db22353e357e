//! The cloud of guests, from outside: its volumes are disks of a real guest, which is turned on and
//! off under them. Proves the bed.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use belay_bed::programs::{Running, program};
use belay_bed::{patience, scrape};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rig::until;

const PROGRAM: &str = env!("CARGO_BIN_EXE_belay-guest-cloud");

/// A cloud with one server, which is off.
struct Cloud {
    address: SocketAddr,
    socket: PathBuf,
    _running: Running,
    _directory: TempDir,
}

impl Cloud {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let address = scrape::free_port().expect("a port");
        let socket = directory.path().join("operator");
        let mut serve = program([PROGRAM, "serve"]);
        serve
            .arg(&socket)
            .arg(address.to_string())
            .arg(directory.path())
            .args(["2", "512", "guest=127.0.0.1=belay.name=one"])
            .env("TMPDIR", directory.path());
        let running = Running::start(&mut serve).expect("the cloud");
        patience::until("the cloud is served", || socket.exists());
        Cloud {
            address,
            socket,
            _running: running,
            _directory: directory,
        }
    }

    /// A verb of the operator; the exit code and the output.
    fn operate(&self, verb: &str, more: &[&str], script: &str) -> (Option<i32>, String) {
        let mut command = Command::new(PROGRAM);
        command.arg(verb).arg(&self.socket).arg("guest").args(more);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        let input = child.stdin.take().expect("a pipe");
        { input }.write_all(script.as_bytes()).expect("a script");
        let output = child.wait_with_output().expect("an end");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output.status.code(), text)
    }

    #[track_caller]
    fn run(&self, script: &str) -> String {
        let (code, text) = self.operate("run", &["100"], script);
        assert_eq!(code, Some(0), "{script}\n{text}");
        text
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let mut stream = TcpStream::connect(self.address).expect("the cloud");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nx-auth-token: token-of-the-bed\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("a request");
        stream
            .shutdown(std::net::Shutdown::Write)
            .expect("the end of it");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 20"), "{response}");
        serde_json::from_str(body).unwrap_or_default()
    }

    fn has_status(&self, id: &str, status: &str) {
        patience::until(status, || {
            let seen = self.call("GET", &format!("/volume/v3/volumes/{id}"), &json!({}));
            seen["volume"]["status"] == status
        });
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn volumes_of_the_cloud_are_disks_that_outlive_the_power_of_their_server() {
    let cloud = Cloud::start();
    assert_eq!(
        cloud.operate("run", &["9"], "true").0,
        Some(125),
        "it is off"
    );
    let document = "/openstack/latest/meta_data.json";
    let server = cloud.call("GET", document, &json!({}))["uuid"].clone();
    let server = server.as_str().expect("an ID");
    let attachments = format!("/compute/v2.1/servers/{server}/os-volume_attachments");
    let [first, second] = ["pvc-1", "pvc-2"].map(|name| {
        let asked = json!({ "volume": { "name": name, "size": 1 } });
        let made = cloud.call("POST", "/volume/v3/volumes", &asked);
        made["volume"]["id"].as_str().expect("an ID").to_owned()
    });
    let attach = |id: &str| {
        let asked = json!({ "volumeAttachment": { "volumeId": id } });
        cloud.call("POST", &attachments, &asked);
        cloud.has_status(id, "in-use");
    };
    let link = |id: &str| format!("/dev/disk/by-id/virtio-{}", &id[..20]);

    // Before the boot, and while it runs.
    attach(&first);
    assert_eq!(cloud.operate("boot", &[], "").0, Some(0));
    assert_eq!(cloud.run("uname -n"), "one");
    cloud.run(&until(&format!("[ -b {} ]", link(&first))));
    attach(&second);
    cloud.run(&until(&format!("[ -b {} ]", link(&second))));

    let grow = json!({ "os-extend": { "new_size": 2 } });
    cloud.call(
        "POST",
        &format!("/volume/v3/volumes/{second}/action"),
        &grow,
    );
    let size = format!(
        "[ $(blockdev --getsize64 {}) = {} ]",
        link(&second),
        2_u64 << 30
    );
    cloud.run(&until(&size));

    // One block is flushed, the other is in the cache of the disk.
    let write = |flag: &str, at: u32| {
        let disk = link(&second);
        let dd = "dd of=$disk bs=4096 count=1 status=none";
        cloud.run(&format!(
            "disk={disk}; tr '\\0' x </dev/zero | head -c 4096 | {dd} seek={at} {flag}"
        ));
    };
    write("oflag=direct conv=fsync", 1);
    write("oflag=direct", 2);
    assert_eq!(cloud.operate("cut", &[], "").0, Some(0));
    assert_eq!(cloud.operate("boot", &[], "").0, Some(0));
    cloud.run(&until(&format!("[ -b {} ]", link(&second))));
    let read = |at: u32| {
        let disk = link(&second);
        cloud.run(&format!(
            "dd if={disk} bs=4096 count=1 skip={at} iflag=direct status=none |
                 tr '\\0' - | head -c 3"
        ))
    };
    assert_eq!([read(1), read(2)], ["xxx", "---"]);

    cloud.call("DELETE", &format!("{attachments}/{second}"), &json!({}));
    cloud.has_status(&second, "available");
    cloud.run(&until(&format!("[ ! -e {} ]", link(&second))));
    assert_eq!(cloud.operate("cut", &[], "").0, Some(0));
    assert_eq!(cloud.operate("run", &["9"], "true").0, Some(125));
}
