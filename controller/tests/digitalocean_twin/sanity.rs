//! csi-sanity, the official suite, on the controller.

use crate::site::{NODE, Site};
use belay_bed::programs::{Running, binary, server};
use belay_bed::sanity;
use belay_twins::digitalocean::metadata;
use belay_twins::http::{Request, Response};
use belay_twins::{Server, Service};
use std::fs::File;

/// The metadata service of a droplet.
struct Metadata;

impl Service for Metadata {
    fn answer(&self, request: &Request) -> Response {
        let droplet = NODE.parse().unwrap();
        let about = metadata(droplet, "nyc1", &request.path);
        Response {
            status: if about.is_some() { 200 } else { 404 },
            headers: Vec::new(),
            body: about.unwrap_or_default(),
        }
    }

    fn kind(&self, request: &Request) -> String {
        request.path.clone()
    }
}

/// The node agent serves NodeGetInfo, and the suite attaches to the node with that ID.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs csi-sanity and belay-node: make test"]
async fn csi_sanity_passes_on_the_controller() {
    let site = Site::new();
    let _controller = site.start();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let socket = path("node.sock");
    let droplet = Server::start(Metadata).unwrap();
    let mut agent = server(&[], &binary("belay-node").unwrap(), &socket);
    agent
        .arg("--driver-kind=digitalocean")
        .arg(format!(
            "--metadata-address={}",
            droplet.url().trim_start_matches("http://")
        ))
        .stderr(File::create(path("node.log")).unwrap());
    let _agent = Running::serving(&mut agent, &socket).unwrap();
    sanity::passes_without_node_service(&socket, &site.socket(), dir.path(), "block");
    assert!(
        site.twin().attached().is_empty(),
        "the suite deletes its volumes"
    );
    assert_eq!(site.twin().snapshots(), 0);
}
