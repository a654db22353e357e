//! csi-sanity, the official suite, on the controller, and an agent that reads its instance from the
//! node's file.

use crate::site::{CHANGE, REGION, Site, cloud, instance};
use belay_bed::programs::{Running, binary, server};
use belay_bed::sanity;
use std::fs::{self, File};

/// The suite attaches to the node whose ID the agent reports. Tests that need a disk are omitted,
/// since no kernel attaches one here. Only filesystems are tested: the suite expects volumes of
/// exactly 10 GiB, and no raw device of Civo has that size.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs csi-sanity and belay-node: make test"]
async fn csi_sanity_passes_on_the_controller() {
    let cloud = cloud(CHANGE / 3);
    let mut site = Site::new(&cloud);
    site.flags.push("--with-topology");
    let _controller = site.start();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let socket = path("node.sock");
    let facts = format!(
        "server = \"https://example.invalid\"\ntoken = \"t\"\nregion = \"{REGION}\"\n\
         instance_id = \"{}\"\n",
        instance(2)
    );
    fs::write(path("civostatsd"), facts).unwrap();
    let mut agent = server(&[], &binary("belay-node").unwrap(), &socket);
    agent
        .args(["--driver-kind=civo", "--node-name=twin", "--with-topology"])
        .arg(format!("--instance-file={}", path("civostatsd").display()))
        .stderr(File::create(path("node.log")).unwrap());
    let _agent = Running::serving(&mut agent, &socket).unwrap();
    sanity::passes_without_node_service(&socket, &site.socket(), dir.path(), "mount");
    let twin = cloud.service().twin();
    let left: Vec<_> = twin.state().volumes.keys().collect();
    assert!(left.is_empty(), "the suite deletes its volumes: {left:?}");
    assert_eq!(twin.state().snapshots.len(), 0);
    assert_eq!(twin.broken, [] as [&str; 0]);
}
