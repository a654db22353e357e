//! The reported content of a volume, which determines how much of it is read before it is
//! formatted.

use crate::site::{
    ACTIONS, ATTACH, Client, DETACH, NODE, Site, attached, create, created, detached,
};
use belay_bed::patience::until;
use belay_bed::requests;
use belay_proto::csi::v1 as csi;

async fn word(client: &mut Client, id: &str, node: &str) -> String {
    attached(client, id, node).await.unwrap()["content"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_attach_has_the_word_of_the_first_until_the_volume_was_detached() {
    let site = Site::new();
    let running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    let first = attached(&mut client, &id, NODE).await.unwrap();
    assert_eq!(first["content"], "new");
    for _ in 0..2 {
        let again = attached(&mut client, &id, NODE).await.unwrap();
        assert_eq!(again, first);
    }
    // Another controller has attached the volume to another node meanwhile, and then to this one
    // again.
    site.twin().pass_by(&id, 102);
    assert_eq!(word(&mut client, &id, NODE).await, "used");
    let other = created(&mut client, "pvc-2").await.unwrap();
    assert_eq!(word(&mut client, &other, NODE).await, "new");
    detached(&mut client, &other, NODE).await.unwrap();
    assert_eq!(word(&mut client, &other, NODE).await, "used");
    // The next process does not know how the volume was created.
    let last = created(&mut client, "pvc-3").await.unwrap();
    assert_eq!(word(&mut client, &last, NODE).await, "new");
    drop(running);
    let _running = site.start();
    let mut client = site.client().await;
    assert_eq!(word(&mut client, &last, NODE).await, "used");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_another_program_has_attached_before_is_not_new() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    site.twin().pass_by(&id, 102);
    assert_eq!(word(&mut client, &id, NODE).await, "used");
    // A volume that another program has attached to the requested node is not new either.
    let here = created(&mut client, "pvc-2").await.unwrap();
    site.twin().pass_by(&here, 101);
    site.twin().interfere(&here, Some(101));
    assert_eq!(word(&mut client, &here, NODE).await, "used");
    let (.., tags) = site.twin().volumes().pop().unwrap();
    assert!(tags.contains(&"belay-used".to_owned()), "{tags:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detach_that_a_killed_controller_has_begun_is_waited_for_before_an_attach_is_answered() {
    let site = Site::new();
    let mut running = site.start();
    let mut client = site.client().await;
    let id = created(&mut client, "pvc-1").await.unwrap();
    attached(&mut client, &id, NODE).await.unwrap();
    site.twin().settings().is_stuck = true;
    let call = {
        let (mut client, id) = (client.clone(), id.clone());
        tokio::spawn(async move { detached(&mut client, &id, NODE).await })
    };
    until("the detach has begun", || site.cloud.count(DETACH) == 1);
    running.kill().unwrap();
    running.wait().unwrap();
    call.await.unwrap().unwrap_err();
    let _running = site.start();
    let mut client = site.client().await;
    site.cloud.forget();
    let call = {
        let id = id.clone();
        tokio::spawn(async move { attached(&mut client, &id, NODE).await })
    };
    // The volume still shows the droplet.
    until("the actions were asked", || site.cloud.count(ACTIONS) > 0);
    assert!(!call.is_finished());
    site.twin().settings().is_stuck = false;
    site.twin().end_actions();
    let context = call.await.unwrap().unwrap();
    assert_eq!(context["content"], "used");
    assert_eq!(site.cloud.count(ATTACH), 1, "{:?}", site.cloud.kinds());
    assert_eq!(site.twin().attached()[&id], Some(101));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_and_a_claim_of_csi_digitalocean_keep_their_meaning() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    // The request has no size, and a parameter that csi-digitalocean ignores.
    let request = csi::CreateVolumeRequest {
        capacity_range: None,
        parameters: [("colour".to_owned(), "red".to_owned())].into(),
        ..requests::create("pvc-1", crate::site::block(), None)
    };
    let volume = client.create_volume(request).await.unwrap();
    let volume = volume.into_inner().volume.unwrap();
    assert_eq!(volume.capacity_bytes, 16 << 30);
    assert!(site.log().contains("colour"), "{}", site.log());
    assert_eq!(
        create(&mut client, "pvc-2").await.unwrap().capacity_bytes,
        1 << 30
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn d19_a_class_for_luks_gets_an_unencrypted_volume() {
    let site = Site::new();
    let _running = site.start();
    let mut client = site.client().await;
    let encrypted = |value: &str| csi::CreateVolumeRequest {
        parameters: [("luksEncrypted".to_owned(), value.to_owned())].into(),
        ..requests::create("pvc-1", crate::site::block(), None)
    };
    let refused = client.create_volume(encrypted("true")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    assert!(
        refused
            .message()
            .contains("\"luksEncrypted\" is unknown, and the data would be stored unencrypted"),
        "{refused}"
    );
    assert!(site.twin().volumes().is_empty());
    client.create_volume(encrypted("false")).await.unwrap();
}
