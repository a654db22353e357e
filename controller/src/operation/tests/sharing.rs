//! Tests of volumes for several nodes at once, with a driver that supports this only for some
//! volumes, and only as raw block.

use super::*;
use belay_contract::drivers::{NFS, OPENSTACK, Profile};

const MANY: AccessMode = AccessMode::MultiNodeMultiWriter;

fn of(profile: Profile, shares: bool) -> Operations {
    let volume = Volume {
        shares,
        ..volume(Phase::Ready)
    };
    let backend = Stub {
        volume: Some(volume),
        ..Stub::default()
    };
    let rules = Rules { profile, ..rules() };
    Operations::new(Arc::new(backend), rules)
}

fn for_many(capability: Capability) -> Capability {
    Capability {
        mode: MANY,
        ..capability
    }
}

#[tokio::test]
async fn creating_and_validating_agree_on_what_several_nodes_can_have() {
    for (shares, capability, is_supported, why) in [
        (true, for_many(block()), true, ""),
        (false, for_many(block()), false, "one node at a time"),
        (true, for_many(mount()), false, "damage a filesystem"),
        (false, block(), true, ""),
        (true, block(), true, ""),
    ] {
        let operations = of(OPENSTACK, shares);
        let created = operations.create(named("pvc-1", capability.clone())).await;
        assert_eq!(created.is_ok(), is_supported, "{capability:?}: {created:?}");
        if let Err(refused) = created {
            assert!(refused.message.contains(why), "{refused}");
        }
        let judged = operations.validate(judged(capability.clone(), &[])).await;
        match judged.unwrap() {
            Verdict::Confirmed => assert!(is_supported, "{capability:?}"),
            Verdict::Refused(told) => {
                assert!(
                    !is_supported && told.contains(why),
                    "{capability:?}: {told}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_backend_knows_whether_an_order_is_for_several_nodes() {
    for (profile, capability, is_shared) in [
        (OPENSTACK, for_many(block()), true),
        (OPENSTACK, block(), false),
        // Several nodes can use any volume of this driver.
        (NFS, for_many(mount()), false),
    ] {
        let ordered = Arc::default();
        let backend = Stub {
            ordered: Arc::clone(&ordered),
            ..Stub::default()
        };
        let rules = Rules { profile, ..rules() };
        let operations = Operations::new(Arc::new(backend), rules);
        let made = operations.create(named("pvc-2", capability.clone())).await;
        // The volume of the stub supports only a single node.
        let is_refused = made.is_err_and(|why| why.message.contains("one node at a time"));
        assert_eq!(is_refused, is_shared, "{capability:?}");
        let orders: Vec<_> = std::mem::take(&mut *ordered.lock().unwrap());
        assert_eq!(orders[0].shared, is_shared);
    }
}

/// A volume that cinder-csi-plugin created for several nodes remains usable; the backend refuses a
/// second node.
#[tokio::test]
async fn a_filesystem_that_was_created_for_several_nodes_can_still_have_one() {
    let publish = ControllerPublish {
        id: id(),
        node: NodeId::new("node-1").unwrap(),
        capability: for_many(mount()),
        read_only: false,
        volume_context: owned(&[("export", "file")]),
        secrets: Secrets::default(),
    };
    let attached = of(OPENSTACK, false).publish(publish).await.unwrap();
    assert_eq!(attached.spec.mode, MANY);
}
