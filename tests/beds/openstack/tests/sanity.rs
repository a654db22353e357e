//! csi-sanity, the official suite, on the controller and the real services.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use belay_bed::programs::{self, Running, binary};
use belay_openstack::{Bed, Cloud};

use crate::site::{Site, run};

/// Answers NodeGetInfo: the suite attaches to the node of that ID. Other calls of the node service
/// need a guest.
fn agent(site: &Site, server: &str) -> (Running, PathBuf) {
    let socket = site.dir().join("node.sock");
    let log = File::create(site.dir().join("node.log")).unwrap();
    let mut command = programs::server(&[], &binary("belay-node").unwrap(), &socket);
    command
        .args(["--driver-kind=openstack", "--node-id", server])
        .stderr(log);
    let running = Running::serving(&mut command, &socket).unwrap();
    (running, socket)
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn csi_sanity_passes_on_the_controller() {
    let bed = Bed::open();
    let server = Cloud::by_password(&bed).server("az-a");
    let (site, _controller) = Site::started(&bed);
    let (_agent, node) = agent(&site, &server.id);
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let reports = site.dir().join("reports");
    let report = reports.join("openstack");
    fs::create_dir_all(&report).unwrap();
    let parameters = site.dir().join("parameters.yaml");
    fs::write(&parameters, "type: file-a\navailability: az-a\n").unwrap();
    let mutable = site.dir().join("mutable.yaml");
    fs::write(&mutable, "type: file\n").unwrap();
    let option = |name: &str, path: &Path| format!("--csi.{name}={}", path.display());
    let log = File::create(report.join("csi-sanity.log")).unwrap();
    let status = Command::new("csi-sanity")
        .arg("--ginkgo.no-color")
        .arg("--ginkgo.skip=Node Service")
        .arg(format!(
            "--ginkgo.junit-report={}",
            report.join("junit.xml").display()
        ))
        .arg(option("endpoint", &node))
        .arg(option("controllerendpoint", &site.socket()))
        .arg(option("testvolumeparameters", &parameters))
        .arg(option("testvolumemutableparameters", &mutable))
        .arg(option("mountdir", &site.dir().join("mount")))
        .arg(option("stagingdir", &site.dir().join("staging")))
        .arg("--csi.testvolumeaccesstype=block")
        .stderr(log.try_clone().unwrap())
        .stdout(log)
        .status()
        .unwrap();
    fs::write(report.join("controller.log"), site.log()).unwrap();
    if !status.success() {
        fs::write(report.join("problems"), status.to_string()).unwrap();
    }
    let mut judge = Command::new(source.join("../../sanity/report.sh"));
    judge
        .arg(&reports)
        .arg("openstack")
        .env("BELAY_SANITY_SKIPS", source.join("skips.txt"));
    eprintln!("{}", run(&mut judge));
}
