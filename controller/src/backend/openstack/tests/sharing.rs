//! Tests volumes that several servers use at once.

use super::*;
use crate::backend::{Clones, Snapshots};

/// Starts a twin with a multiattach type, a type that is not multiattach, and a type whose extra
/// specs are hidden.
async fn with_types() -> Twin {
    let twin = Twin::start().await;
    twin.state().types = BTreeMap::from([
        ("multi", json!({"multiattach": "<is> True"})),
        ("fast", json!({})),
        ("hidden", Value::Null),
        ("off", json!({"multiattach": "<is> False"})),
    ]);
    twin
}

/// Returns a request for a volume of this type for several nodes.
fn shared(name: &str, kind: Option<&str>) -> Arc<Order> {
    let kind = kind.map(|kind| ("type".to_owned(), kind.to_owned()));
    Arc::new(Order {
        parameters: Context::new("parameters", kind).unwrap(),
        shared: true,
        ..Order::clone(&order(name))
    })
}

fn as_mode(id: &VolumeId, node: &str, mode: AccessMode, block: bool) -> Arc<AttachOrder> {
    let read_only = mode.is_read_only();
    Arc::new(AttachOrder {
        spec: AttachmentSpec {
            read_only,
            block,
            mode,
        },
        ..AttachOrder::clone(&to(id, node))
    })
}

fn by_many(id: &VolumeId, node: &str) -> Arc<AttachOrder> {
    as_mode(id, node, AccessMode::MultiNodeMultiWriter, true)
}

impl Twin {
    /// Attaches a volume, and returns the result of the second call.
    async fn plugged(&self, order: Arc<AttachOrder>) -> Result<Attachment, Failure> {
        for _ in 0..2 {
            let attached = self.backend.attach(Arc::clone(&order)).await?;
            if let Progress::Done(attachment) = attached {
                return Ok(attachment);
            }
        }
        panic!("not attached")
    }

    async fn unplugged(&self, id: &VolumeId, node: &str) {
        let node = NodeId::new(node).unwrap();
        let detached = self
            .backend
            .detach(id.clone(), node, Secrets::default())
            .await;
        assert_eq!(detached.unwrap(), Progress::Begun);
    }

    async fn nodes(&self, id: &VolumeId) -> Vec<String> {
        let volume = self.get(id).await.unwrap().unwrap();
        volume.nodes.iter().map(NodeId::to_string).collect()
    }

    /// Returns the number of attach requests to Nova.
    fn attaches(&self) -> usize {
        let state = self.state();
        let posts = state.seen.iter().filter(|call| call.starts_with("POST"));
        posts
            .filter(|call| call.ends_with("os-volume_attachments"))
            .count()
    }

    async fn multi(&self, name: &str) -> VolumeId {
        let made = self.backend.create(shared(name, Some("multi"))).await;
        let made = made.unwrap();
        assert!(made.shares);
        made.id
    }
}

#[tokio::test]
async fn a_raw_volume_of_a_multiattach_type_has_several_nodes_and_each_leaves_alone() {
    let twin = with_types().await;
    let id = twin.multi("pvc-1").await;
    for node in [S1, S2, S3] {
        let attachment = twin.plugged(by_many(&id, node)).await.unwrap();
        assert!(attachment.spec.block);
        // A repeated call changes nothing.
        twin.plugged(by_many(&id, node)).await.unwrap();
    }
    assert_eq!(twin.attaches(), 3);
    assert_eq!(twin.nodes(&id).await, [S1, S2, S3]);
    let reader = as_mode(&id, S4, AccessMode::MultiNodeReaderOnly, true);
    assert!(twin.plugged(reader).await.unwrap().spec.read_only);
    twin.unplugged(&id, S2).await;
    assert_eq!(twin.nodes(&id).await, [S1, S3, S4]);
    let refused = twin.delete(&id).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition, "{refused}");
}

#[tokio::test]
async fn no_second_node_gets_a_volume_unless_its_type_and_all_calls_say_so() {
    let twin = with_types().await;
    let (multi, single) = (
        AccessMode::MultiNodeMultiWriter,
        AccessMode::SingleNodeWriter,
    );
    for (n, (kind, first, second, why)) in [
        ("multi", (single, true), (single, true), S1),
        ("multi", (multi, true), (single, true), S1),
        (
            "multi",
            (single, true),
            (multi, true),
            "(by a call for one node",
        ),
        (
            "multi",
            (multi, false),
            (multi, true),
            "(by a call for one node",
        ),
        (
            "multi",
            (multi, true),
            (multi, false),
            "damage a filesystem",
        ),
        (
            "multi",
            (multi, false),
            (multi, false),
            "damage a filesystem",
        ),
        ("fast", (multi, true), (multi, true), "is not multiattach"),
        ("fast", (single, true), (single, true), S1),
    ]
    .into_iter()
    .enumerate()
    {
        let order = Order {
            shared: false,
            ..Order::clone(&shared(&format!("pvc-{n}"), Some(kind)))
        };
        let id = twin.backend.create(Arc::new(order)).await.unwrap().id;
        let as_asked = |node, (mode, block)| as_mode(&id, node, mode, block);
        twin.plugged(as_asked(S1, first)).await.unwrap();
        let before = twin.attaches();
        let refused = twin.plugged(as_asked(S2, second)).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Precondition, "{n}: {refused}");
        for part in [&format!("attached to node {S1}"), why] {
            assert!(refused.message.contains(part), "{n}: {part}: {refused}");
        }
        assert_eq!(twin.attaches(), before, "{n}: nova was asked");
        assert_eq!(twin.nodes(&id).await, [S1], "{n}");
        // The volume remains attached to the first node.
        twin.plugged(as_asked(S1, first)).await.unwrap();
    }
}

#[tokio::test]
async fn a_volume_is_shared_anew_after_one_node_has_had_it_alone() {
    let twin = with_types().await;
    let id = twin.multi("pvc-1").await;
    twin.plugged(by_many(&id, S1)).await.unwrap();
    twin.unplugged(&id, S1).await;
    twin.plugged(to(&id, S1)).await.unwrap();
    let refused = twin.plugged(by_many(&id, S2)).await.unwrap_err();
    assert!(
        refused.message.contains("by a call for one node"),
        "{refused}"
    );
    twin.unplugged(&id, S1).await;
    twin.plugged(by_many(&id, S2)).await.unwrap();
    twin.plugged(by_many(&id, S1)).await.unwrap();
}

#[tokio::test]
async fn a_call_for_one_node_ends_sharing_also_if_the_volume_is_attached_there() {
    let twin = with_types().await;
    let id = twin.multi("pvc-1").await;
    twin.plugged(by_many(&id, S1)).await.unwrap();
    twin.plugged(to(&id, S1)).await.unwrap();
    assert_eq!(twin.attaches(), 1);
    let refused = twin.plugged(by_many(&id, S2)).await.unwrap_err();
    assert!(
        refused.message.contains("by a call for one node"),
        "{refused}"
    );
    // A further call for several nodes does not enable sharing again.
    twin.plugged(by_many(&id, S1)).await.unwrap();
    twin.plugged(by_many(&id, S2)).await.unwrap_err();
    assert_eq!(twin.nodes(&id).await, [S1]);
}

#[tokio::test]
async fn a_node_that_must_be_alone_is_not_if_another_program_attaches_the_volume() {
    let twin = with_types().await;
    let id = twin.multi("pvc-1").await;
    twin.plugged(to(&id, S1)).await.unwrap();
    {
        let mut state = twin.state();
        let attachments = &mut state.volumes.get_mut(id.as_str()).unwrap()["attachments"];
        let other = json!({"server_id": S2, "device": "/dev/sdb"});
        attachments.as_array_mut().unwrap().push(other);
    }
    let refused = twin.backend.attach(to(&id, S1)).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition, "{refused}");
    assert!(refused.message.contains(&format!("node {S2}")), "{refused}");
    let seen = twin.get(&id).await.unwrap().unwrap();
    assert_eq!(twin.backend.attached(&to(&id, S1), &seen), None);
}

#[tokio::test]
async fn a_volume_for_several_nodes_is_not_created_with_a_type_that_forbids_it() {
    let twin = with_types().await;
    for (kind, is_made) in [
        (Some("multi"), true),
        (Some("id-of-multi"), true),
        (Some("fast"), false),
        (Some("id-of-fast"), false),
        (Some("off"), false),
        // If the extra specs of a type are hidden, the new volume shows whether the type is
        // multiattach, or Cinder refuses the type.
        (Some("hidden"), true),
        (Some("unknown"), true),
        (None, true),
    ] {
        let made = twin.backend.create(shared("pvc-1", kind)).await;
        assert_eq!(made.is_ok(), is_made, "{kind:?}: {made:?}");
        if let Err(refused) = made {
            assert_eq!(refused.kind, Kind::Invalid);
            assert!(refused.message.contains("parameters[type]"), "{refused}");
            assert!(refused.message.contains("multiattach"), "{refused}");
        }
    }
    twin.state().types.insert("default", json!({}));
    let refused = twin.backend.create(shared("pvc-1", None)).await;
    let refused = refused.unwrap_err();
    assert!(refused.message.contains(r#""default""#), "{refused}");
    // A volume for one node may have any type.
    twin.created("pvc-2").await;
}

#[tokio::test]
async fn a_copy_for_several_nodes_is_judged_by_the_type_of_its_source() {
    let twin = with_types().await;
    let (alone, many) = (twin.created("pvc-1").await, twin.multi("pvc-2").await);
    let copied = async |from: &VolumeId, kind| {
        let order = shared("pvc-3", kind);
        twin.backend.clone_volume(order, from.clone()).await
    };
    let refused = copied(&alone, None).await.unwrap_err();
    assert!(refused.message.contains(r#""fast""#), "{refused}");
    copied(&many, None).await.unwrap();
    for (of, is_made) in [(&alone, false), (&many, true)] {
        let order = snapshots::cut("snap-1", of, &[]);
        let snapshot = twin.backend.cut(order).await.unwrap().id;
        let made = twin.backend.restore(shared("pvc-4", None), snapshot).await;
        assert_eq!(made.is_ok(), is_made, "{made:?}");
    }
    copied(&alone, Some("multi")).await.unwrap();
    let refused = copied(&many, Some("fast")).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Invalid, "{refused}");
}
