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

/// A cloud whose servers are off.
pub(crate) struct Cloud {
    address: SocketAddr,
    pub(crate) socket: PathBuf,
    _running: Running,
    _directory: TempDir,
}

impl Cloud {
    /// With so many slots, and these servers.
    pub(crate) fn start(slots: &str, names: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let address = scrape::free_port().expect("a port");
        let socket = directory.path().join("operator");
        let mut serve = program([PROGRAM, "serve"]);
        serve
            .arg(&socket)
            .arg(address.to_string())
            .arg(directory.path())
            .args([slots, "512"])
            .args(
                names
                    .iter()
                    .map(|name| format!("{name}=127.0.0.1=belay.name={name}")),
            )
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
    pub(crate) fn operate(&self, words: &[&str], script: &str) -> (Option<i32>, String) {
        let mut command = Command::new(PROGRAM);
        let (verb, more) = words.split_first().expect("a verb");
        command.arg(verb).arg(&self.socket).args(more);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        let input = child.stdin.take().expect("a pipe");
        { input }.write_all(script.as_bytes()).expect("a script");
        let output = child.wait_with_output().expect("an end");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output.status.code(), text)
    }

    #[track_caller]
    pub(crate) fn run(&self, name: &str, script: &str) -> String {
        let (code, text) = self.operate(&["run", name, "100"], script);
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
    let cloud = Cloud::start("2", &["one"]);
    assert_eq!(
        cloud.operate(&["run", "one", "9"], "true").0,
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
    assert_eq!(cloud.operate(&["boot", "one"], "").0, Some(0));
    assert_eq!(cloud.run("one", "uname -n"), "one");
    cloud.run("one", &until(&format!("[ -b {} ]", link(&first))));
    attach(&second);
    cloud.run("one", &until(&format!("[ -b {} ]", link(&second))));

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
    cloud.run("one", &until(&size));

    // One block is flushed, the other is in the cache of the disk.
    let write = |flag: &str, at: u32| {
        let disk = link(&second);
        let dd = "dd of=$disk bs=4096 count=1 status=none";
        cloud.run(
            "one",
            &format!("disk={disk}; tr '\\0' x </dev/zero | head -c 4096 | {dd} seek={at} {flag}"),
        );
    };
    write("oflag=direct conv=fsync", 1);
    write("oflag=direct", 2);
    assert_eq!(cloud.operate(&["cut", "one"], "").0, Some(0));
    assert_eq!(cloud.operate(&["boot", "one"], "").0, Some(0));
    cloud.run("one", &until(&format!("[ -b {} ]", link(&second))));
    let read = |at: u32| {
        let disk = link(&second);
        cloud.run(
            "one",
            &format!(
                "dd if={disk} bs=4096 count=1 skip={at} iflag=direct status=none |
                 tr '\\0' - | head -c 3"
            ),
        )
    };
    assert_eq!([read(1), read(2)], ["xxx", "---"]);

    cloud.call("DELETE", &format!("{attachments}/{second}"), &json!({}));
    cloud.has_status(&second, "available");
    cloud.run("one", &until(&format!("[ ! -e {} ]", link(&second))));
    assert_eq!(cloud.operate(&["cut", "one"], "").0, Some(0));
    assert_eq!(cloud.operate(&["run", "one", "9"], "true").0, Some(125));
}

/// Another cloud lets the operator plug the disk, on a SCSI bus.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_scsi_disk_of_another_cloud_is_plugged_grown_copied_and_unplugged() {
    let cloud = Cloud::start("1+1", &["one"]);
    let file = |name: &str| cloud.socket.with_file_name(name).display().to_string();
    let operate = |words: &[&str]| cloud.operate(words, "").0;
    std::fs::File::create(file("disk"))
        .and_then(|disk| disk.set_len(64 << 20))
        .expect("a file");
    assert_eq!(operate(&["boot", "one"]), Some(0));
    let plug = [
        "plug",
        "one",
        "pvc-of-more-than-20-characters",
        &file("disk"),
    ];
    let scsi = [&plug[..], &["QEMU", "QEMU_HARDDISK"]].concat();
    assert_eq!(operate(&scsi), Some(0));
    assert_eq!(operate(&scsi), Some(1), "its one slot is taken");
    let link = format!("/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{}", plug[2]);
    cloud.run("one", &until(&format!("[ -b {link} ]")));
    // It is in the cache of the disk.
    cloud.run(
        "one",
        &format!("printf written | dd of={link} bs=512 conv=sync oflag=direct status=none"),
    );
    assert_eq!(operate(&["copy", "one", plug[2], &file("copy")]), Some(0));
    let copy = std::fs::read(file("copy")).expect("the copy");
    assert_eq!((&copy[..7], copy.len()), (&b"written"[..], 64 << 20));
    let bytes = (96 << 20).to_string();
    assert_eq!(operate(&["grow", "one", plug[2], &bytes]), Some(0));
    cloud.run(
        "one",
        &format!(
            "cd /sys/block/$(basename $(readlink -f {link})) && echo 1 >device/rescan
             {}",
            until("[ $(cat size) = 196608 ]")
        ),
    );
    assert_eq!(operate(&["unplug", "one", plug[2]]), Some(0));
    cloud.run("one", &until(&format!("[ ! -e {link} ]")));
    assert_eq!(operate(&["copy", "one", plug[2], &file("copy")]), Some(1));
    // Plug a virtio disk next to it.
    assert_eq!(operate(&plug), Some(0));
    cloud.run(
        "one",
        &until(&format!("[ -b /dev/disk/by-id/virtio-{} ]", &plug[2][..20])),
    );
}
