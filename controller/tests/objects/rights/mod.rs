//! The policies of the chart: the rights of a store, with tokens that the API server issues, and
//! the deletion of objects by users.

mod account;
mod deletion;
mod store;

use crate::definitions::{disk, done, snapshot};
use crate::server::Server;
use crate::volume;
use account::Account;
use belay_bed::patience::until;
use belay_controller::kubernetes::{
    Change, DiskSpec, FINALIZER, LocalDisk, LocalSnapshot, LocalVolume, SnapshotSpec, VolumeSpec,
};
use serde_json::json;

/// The node whose store has the tokens.
const MINE: &str = "mine";
/// Another node.
const OTHER: &str = "other";
/// The namespace in which the store has the rights that it needs.
const NARROW: &str = "narrow";
/// The namespace in which the store has all rights, so that only the policies refuse a call.
const WIDE: &str = "wide";

/// Runs all checks.
pub(crate) async fn all(server: &Server) {
    server.clear();
    account::create_accounts(server);
    store::a_store_works_with_the_token_of_its_pod(server).await;
    let own = Account::of_pod(server, MINE);
    create_objects(server).await;
    until("the policy has an effect", || {
        let refused = own.patch("localvolumes/theirs", &json!({"spec": {"bytes": 1}}));
        refused.contains("belay-store")
    });
    store::a_store_writes_status_and_finalizers_of_its_node(&own);
    store::a_store_changes_nothing_else(&own);
    store::a_store_creates_only_disks_of_its_node(&own);
    store::a_token_without_a_node_changes_nothing(server);
    store::a_token_of_a_deleted_pod_is_refused(server);
    deletion::an_object_with_a_file_is_not_deleted_by_mistake(server).await;
    deletion::a_deleted_definition_deletes_its_objects(server).await;
}

fn volume_of(number: u32, name: &str, node: &str) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        ..volume(number, node)
    }
}

/// Creates an accepted volume on each node and an unaccepted volume. Also creates a snapshot and a
/// disk of the other node.
async fn create_objects(server: &Server) {
    let client = server.client();
    for (number, name, node) in [
        (1, "mine", MINE),
        (2, "theirs", OTHER),
        (3, "unaccepted", MINE),
    ] {
        let spec = volume_of(number, name, node);
        let order = done(client.create::<LocalVolume>(name, &spec).await).metadata;
        if name != "unaccepted" {
            let accept = Change::<LocalVolume>::Finalizers(&[FINALIZER]);
            done(client.patch(&order, accept).await);
        }
    }
    let spec = SnapshotSpec {
        node: OTHER.to_owned(),
        ..snapshot()
    };
    done(client.create::<LocalSnapshot>("theirs", &spec).await);
    let spec = DiskSpec {
        node: OTHER.to_owned(),
        begin: None,
        ..disk()
    };
    done(client.create::<LocalDisk>("other.default", &spec).await);
}
