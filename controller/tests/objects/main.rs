//! The client for Kubernetes' API server and the definitions of `local`'s objects, with a real
//! API server and etcd. `make objects` runs these tests.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a failed step of a test ends it"
)]

mod changes;
mod columns;
mod definitions;
mod server;
mod store;
mod watches;

use belay_controller::kubernetes::{LocalVolume, Mode, Resource, SPEC_VERSION, Usage, VolumeSpec};
use server::Server;

/// Runs all checks with one server, since its start takes most of the time.
#[tokio::test(flavor = "multi_thread")]
async fn objects_in_a_real_api_server() {
    let mut server = Server::start();
    definitions::all_fields_of_each_kind_come_back(&server).await;
    definitions::an_unknown_field_is_refused_in_each_part(&server).await;
    definitions::each_immutable_field_is_refused_and_others_change(&server).await;
    definitions::values_out_of_bounds_are_refused(&server).await;
    definitions::a_disk_has_the_name_of_its_node_and_disk(&server).await;
    columns::people_see_the_state(&server).await;
    changes::a_second_creation_of_a_name_is_a_conflict(&server).await;
    changes::an_old_version_changes_and_deletes_nothing(&server).await;
    changes::a_missing_object_is_missing_and_a_missing_kind_is_a_failure(&server).await;
    changes::a_spec_that_the_server_changes_is_withdrawn(&server).await;
    changes::a_list_has_all_pages_and_selects_by_node_and_id(&server).await;
    changes::a_new_token_is_used_at_once(&server).await;
    watches::a_watch_shows_only_the_objects_of_its_node(&server).await;
    watches::after_a_cut_the_objects_are_listed_again(&server).await;
    watches::an_expired_version_lists_again(&mut server).await;
    store::all(&mut server).await;
}

/// The volumes with a spec and a status that the release does not know.
enum OtherRelease {}

impl Resource for OtherRelease {
    const KIND: &'static str = LocalVolume::KIND;
    const PLURAL: &'static str = LocalVolume::PLURAL;
    type Spec = serde_json::Value;
    type Status = serde_json::Value;
}

/// Returns an ID with this number.
fn id(prefix: &str, number: u32) -> String {
    format!("{prefix}-{number:032x}")
}

/// Returns the spec of a volume on the node.
fn volume(number: u32, node: &str) -> VolumeSpec {
    VolumeSpec {
        version: SPEC_VERSION,
        id: id("vol", number),
        name: format!("pvc-{number}"),
        place: "place".to_owned(),
        disk: "default".to_owned(),
        node: node.to_owned(),
        bytes: 1 << 30,
        usage: Usage {
            mode: Mode::Block,
            filesystem: None,
        },
        source: None,
        remove: None,
    }
}
