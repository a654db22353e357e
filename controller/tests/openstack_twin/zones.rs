//! What a controller with topology says of the zones at its start.

use crate::site::Site;
use crate::wire::{CHANGE, Cloud};
use belay_bed::patience::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zones_of_servers_that_have_no_volumes_are_logged_unless_they_are_ignored() {
    let cloud = Cloud::start(CHANGE, None);
    let mut site = Site::new(&cloud.url(), "");
    site.has_topology = true;
    let running = site.start();
    let warning = r#"pods on servers in the zones ["edge-1"] cannot use volumes"#;
    until("the zones are compared", || site.log().contains(warning));
    drop(running);
    let asked = || {
        let calls = cloud.twin().calls.clone();
        calls.get("GET zones").copied().unwrap_or_default()
    };
    assert_eq!(asked(), 2);
    let mut site = Site::new(&cloud.url(), "[BlockStorage]\nignore-volume-az = true");
    site.has_topology = true;
    let _running = site.start();
    crate::site::created(&mut site.client().await, "pvc-1")
        .await
        .unwrap();
    assert!(!site.log().contains("cannot use volumes"));
    assert_eq!(asked(), 2, "there is nothing to compare");
}
