//! The program as in a pod: with the kubelet's variables and the directory of a service account.

use super::{Front, LONG, PATIENCE, ROOM, id_of, ready, request, topology};
use crate::server::Server;
use belay_bed::programs::{Running, server};
use belay_bed::scrape;
use belay_proto::csi::v1 as csi;
use belay_proto::dial::dial;
use csi::controller_client::ControllerClient;
use csi::identity_client::IdentityClient;
use csi::plugin_capability::Type;
use csi::plugin_capability::service::Type as Capability;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

/// Waits until the program is ready, and returns its plugin capabilities.
pub(super) async fn ready_capabilities(channel: Channel) -> Vec<Option<Type>> {
    let mut identity = IdentityClient::new(channel);
    timeout(PATIENCE, async {
        while let probed = identity
            .probe(csi::ProbeRequest {})
            .await
            .unwrap()
            .into_inner()
            && probed.ready != Some(true)
        {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    let request = csi::GetPluginCapabilitiesRequest {};
    let capabilities = identity.get_plugin_capabilities(request).await.unwrap();
    let capabilities = capabilities.into_inner().capabilities;
    capabilities.into_iter().map(|it| it.r#type).collect()
}

/// Starts the program with an account in this directory. Returns the address of its HTTP pages.
pub(super) fn serving(api: &Server, dir: &Path, socket: &Path) -> (Running, SocketAddr) {
    let access = api.access();
    fs::copy(&access.token, dir.join("token")).unwrap();
    fs::copy(&access.authority, dir.join("ca.crt")).unwrap();
    let (host, port) = api.relay();
    let program = Path::new(env!("CARGO_BIN_EXE_belay-controller"));
    let pages = scrape::free_port().unwrap();
    let mut command = server(&[], program, socket);
    command
        .args(["--backend=local", "--nodes", "--account-dir"])
        .arg(dir)
        .arg(format!("--http-endpoint={pages}"))
        .env("KUBERNETES_SERVICE_HOST", host)
        .env("KUBERNETES_SERVICE_PORT", port);
    (Running::serving(&mut command, socket).unwrap(), pages)
}

pub(crate) async fn the_program_serves_all_nodes_with_topology(api: &Server) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("csi.sock");
    let (_running, pages) = serving(api, dir.path(), &socket);
    let channel = dial(&socket).await.unwrap();
    let capabilities = ready_capabilities(channel.clone()).await;
    let has_topology = |it: &Option<Type>| match it {
        Some(Type::Service(service)) => {
            service.r#type() == Capability::VolumeAccessibilityConstraints
        }
        _ => false,
    };
    assert!(capabilities.iter().any(has_topology), "{capabilities:?}");
    let (_, page) = scrape::get(pages, "/metrics").unwrap();
    assert!(page.contains(r#"reason="StoreSilent"} 0"#), "{page}");

    let store = Front::start(api, LONG).await;
    store.disk("main-a", ROOM).await;
    let mut controller = ControllerClient::new(channel);
    // The program may not have seen the disk yet.
    let created = tokio::spawn(async move {
        loop {
            let created = controller
                .create_volume(request("main-1", &["main-a"]))
                .await;
            match created {
                Err(status) if status.code() == tonic::Code::ResourceExhausted => {
                    sleep(Duration::from_millis(10)).await;
                }
                created => return created.unwrap().into_inner().volume.unwrap(),
            }
        }
    });
    let accepted = store.accepted("main-1").await;
    store.status(&accepted, &ready(&accepted)).await;
    let volume = timeout(PATIENCE, created).await.unwrap().unwrap();
    assert_eq!(volume.volume_id, id_of(&accepted));
    assert_eq!(volume.accessible_topology, [topology("main-a")]);
}
