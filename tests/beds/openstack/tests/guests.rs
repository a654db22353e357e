//! The whole way of a volume: the controller, Nova's attach, which plugs the disk into a guest, and
//! the node agent in that guest. Only the hypervisor between Nova and the guest is the bed's.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use belay_bed::programs::{self, Running, binary};
use belay_bed::{patience, requests, scrape};
use belay_openstack::{Bed, Server};
use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;

use crate::site::{Client, GIB, Site, deleted, detached, opened, unique};

/// How long a script in a guest may take, in seconds.
const SCRIPT_MAX: &str = "120";

/// Guests of two servers.
struct Guests {
    program: PathBuf,
    socket: PathBuf,
    links: Vec<PathBuf>,
    _running: Running,
    _directory: tempfile::TempDir,
}

/// A call of the agent in a guest, which runs there.
const SETUP: &str = "\
set -e
export PATH=/belay:$PATH
node() { belayctl --endpoint /run/node.sock node \"$@\"; }
until_so() { for _ in $(seq 300); do \"$@\" && return; sleep 0.1; done; \"$@\"; }
";

const START: &str = "\
setsid belay-node --driver-kind openstack --endpoint /run/node.sock --node-id $ID \\
    >>/run/node.log 2>&1 3>&- &
until_so belayctl --endpoint /run/node.sock identity probe >/dev/null 2>&1 || cat /run/node.log";

impl Guests {
    /// Boots a guest for each server, with an agent that has its ID, and lets Nova plug its disks.
    fn start(bed: &Bed, servers: &[&Server]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("operator");
        let program = binary("belay-guest-cloud").unwrap();
        let address = scrape::free_port().unwrap().to_string();
        let mut serve = programs::program([&program]);
        serve.arg("serve").arg(&socket).arg(address);
        serve.arg(directory.path()).args(["4", "768"]);
        for server in servers {
            let id = &server.id;
            serve.arg(format!("{id}=127.0.0.1=belay.name={}", &id[..8]));
        }
        serve
            .env("TMPDIR", directory.path())
            .stderr(Stdio::inherit());
        let running = Running::start(&mut serve).unwrap();
        patience::until("the guests are served", || socket.exists());
        let plugs = bed.root().join("plugs");
        fs::create_dir_all(&plugs).unwrap();
        let mut guests = Self {
            program,
            socket,
            links: Vec::new(),
            _running: running,
            _directory: directory,
        };
        let programs = binary("belay-node").unwrap().canonicalize().unwrap();
        let programs = programs.parent().unwrap().display().to_string();
        for server in servers {
            let link = plugs.join(&server.id);
            symlink(&guests.socket, &link).unwrap();
            guests.links.push(link);
            let boot = guests.operator("boot", &server.id).status().unwrap();
            assert!(boot.success(), "no guest: {boot}");
            let mount = format!("mkdir -p /belay\nmount --bind /machine{programs} /belay");
            guests.run(&server.id, &format!("{mount}\nID={}\n{START}", server.id));
        }
        guests
    }

    fn operator(&self, verb: &str, server: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(verb).arg(&self.socket).arg(server);
        command
    }

    /// Runs a script in the guest of that server, which must succeed; what it printed.
    #[track_caller]
    fn run(&self, server: &str, script: &str) -> String {
        let mut command = self.operator("run", server);
        command
            .arg(SCRIPT_MAX)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        { input }
            .write_all(format!("{SETUP}{script}").as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(output.status.success(), "{server}: {script}\n{text}");
        text
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        // A server without a guest has loop devices as disks again.
        for link in &self.links {
            drop(fs::remove_file(link));
        }
    }
}

/// A volume with a filesystem.
struct Volume {
    id: String,
    filesystem: &'static str,
}

impl Volume {
    async fn create(client: &mut Client, filesystem: &'static str) -> Self {
        let parameters = [("type", "file-a"), ("availability", "az-a")];
        let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let request = csi::CreateVolumeRequest {
            capacity_range: requests::range(GIB, GIB),
            parameters: HashMap::from(parameters),
            ..requests::create(&unique(filesystem), capability(filesystem), None)
        };
        let answer = client.create_volume(request).await.unwrap().into_inner();
        let id = answer.volume.unwrap().volume_id;
        Self { id, filesystem }
    }

    fn target(&self) -> String {
        format!("/pods/{}/target", self.id)
    }

    /// Attaches it, and what the kubelet does then.
    async fn mount(&self, client: &mut Client, guests: &Guests, server: &str) {
        let Self { id, filesystem } = self;
        let request = requests::attach(id, server, capability(filesystem));
        let answer = client.controller_publish_volume(request).await.unwrap();
        let context = answer.into_inner().publish_context;
        let context = context
            .iter()
            .map(|(key, value)| format!("--context {key}={value}"));
        let context = context.collect::<Vec<_>>().join(" ");
        guests.run(
            server,
            &format!(
                "mkdir -p /pods/{id}/staging
                 node stage {id} --staging /pods/{id}/staging --fs-type {filesystem} {context}
                 node publish {id} --staging /pods/{id}/staging --target {} \\
                     --fs-type {filesystem} {context}",
                self.target()
            ),
        );
    }

    /// Unpublishes, unstages and detaches like the kubelet after a pod; the guest has no disk then.
    async fn unmount(&self, client: &mut Client, guests: &Guests, server: &str) {
        let (id, target) = (&self.id, self.target());
        guests.run(
            server,
            &format!(
                "node unpublish {id} --target {target}
                 node unstage {id} --staging /pods/{id}/staging"
            ),
        );
        detached(client, id, server).await;
        guests.run(server, &format!("until_so test ! -e {}", self.link()));
    }

    fn link(&self) -> String {
        format!("/dev/disk/by-id/virtio-{}", &self.id[..20])
    }
}

fn capability(filesystem: &str) -> csi::VolumeCapability {
    requests::capability(filesystem, Mode::SingleNodeWriter)
}

/// Bytes of the filesystem that is mounted there.
fn size(guests: &Guests, server: &str, target: &str) -> i64 {
    let shown = guests.run(
        server,
        &format!("stat --file-system --format '%b %S' {target}"),
    );
    shown
        .split(' ')
        .map(|number| number.parse::<i64>().unwrap())
        .product()
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_volume_goes_by_nova_into_a_guest_grows_there_and_moves_to_another() {
    let (bed, cloud) = opened();
    let (here, there) = (cloud.server("az-a"), cloud.server("az-a"));
    let guests = Guests::start(&bed, &[&here, &there]);
    let (site, _controller) = Site::started(&bed);
    let client = &mut site.client().await;
    for filesystem in ["ext4", "xfs"] {
        let volume = Volume::create(client, filesystem).await;
        let (id, target) = (&volume.id, &volume.target());
        volume.mount(client, &guests, &here.id).await;
        let write = format!("cp /bin/bash {target}/file\nsync {target}/file");
        guests.run(&here.id, &format!("{write}\ntest -b {}", volume.link()));
        assert!(bed.disks(&here.id).is_empty(), "a loop device");

        let grown = client.controller_expand_volume(requests::grow(id, 2 * GIB));
        assert_eq!(grown.await.unwrap().into_inner().capacity_bytes, 2 * GIB);
        // Nova grows the disk after the answer, and the kubelet repeats its call until then.
        let expand =
            format!("expand {id} --path {target} --staging /pods/{id}/staging --size 2GiB");
        guests.run(
            &here.id,
            &format!("until_so node {expand} 2>/run/expand.log"),
        );
        let grown = size(&guests, &here.id, target);
        assert!(grown > GIB * 17 / 10, "{filesystem}: {grown} bytes");

        volume.unmount(client, &guests, &here.id).await;
        volume.mount(client, &guests, &there.id).await;
        guests.run(&there.id, &format!("cmp /bin/bash {target}/file"));
        assert_eq!(size(&guests, &there.id, target), grown);
        volume.unmount(client, &guests, &there.id).await;
        deleted(client, id).await;
        assert_eq!(cloud.volume(id), None);
    }
}
