//! The client for Kubernetes' API server, and the definitions and policies of `local`'s objects,
//! with a real API server and etcd. `make objects` runs these tests.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a failed step of a test ends it"
)]

mod changes;
mod columns;
mod definitions;
mod nodes;
mod rights;
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
    server.clear();
    volumes_of_all_nodes(&mut server).await;
    store::all(&server).await;
    rights::all(&server).await;
    nodes::restored::a_volume_that_is_kept_after_all_outlives_the_outage_of_its_node(&server).await;
    nodes::restored::a_restored_etcd_creates_and_deletes_no_file(&server).await;
    nodes::unclaimed::a_volume_without_a_claim_is_named_and_removed_by_the_command(&server).await;
    // Runs last, since it leaves its objects behind.
    nodes::adoption::all_claimed_files_are_adopted_after_the_objects_were_lost(&server).await;
}

/// Runs the checks of the backend for all nodes.
async fn volumes_of_all_nodes(server: &mut Server) {
    use nodes::{
        binding, copies, creation, gone, growth, health, outages, permission, program, removal,
    };
    program::the_program_serves_all_nodes_with_topology(server).await;
    creation::an_accepted_order_becomes_a_volume_and_counts(server).await;
    creation::an_order_that_no_store_accepts_is_withdrawn(server).await;
    creation::a_withdrawal_that_races_with_the_acceptance_waits_on(server).await;
    creation::a_refused_order_is_deleted_before_the_answer(server).await;
    creation::an_accepted_order_of_a_silent_store_is_unavailable(server).await;
    creation::two_controllers_with_one_name_create_one_volume(server).await;
    creation::a_lost_volume_is_created_again_under_another_id(server).await;
    removal::a_claimed_removal_deletes_the_object_and_succeeds(server).await;
    removal::a_refused_removal_is_cancelled_and_the_next_has_a_higher_number(server).await;
    removal::an_attempt_without_an_answer_is_cancelled_unless_it_is_claimed(server).await;
    removal::a_silent_store_gets_no_removal(server).await;
    removal::a_removal_after_a_crash_of_the_controller_is_completed(server).await;
    removal::an_unlisted_file_is_unavailable_and_not_deleted(server).await;
    growth::a_growth_counts_while_it_runs_and_a_refused_one_no_longer(server).await;
    growth::a_growth_after_a_crash_of_the_controller_begins_again(server).await;
    copies::a_snapshot_is_cut_before_it_is_ready_and_is_deleted(server).await;
    copies::an_ignored_order_for_a_snapshot_is_withdrawn_and_internal(server).await;
    copies::a_copy_is_on_the_disk_of_its_source_whatever_is_preferred(server).await;
    copies::an_ignored_order_for_a_copy_is_withdrawn_and_internal(server).await;
    binding::with_late_binding_only_the_selected_place_is_tried(server).await;
    binding::a_cordoned_node_gets_a_volume_only_if_no_other_place_is_possible(server).await;
    outages::a_creation_after_a_crash_of_the_controller_is_completed(server).await;
    outages::orders_that_no_call_waits_for_are_deleted(server).await;
    outages::a_creation_survives_a_restart_of_the_api_server(server).await;
    gone::volumes_of_a_gone_disk_are_deleted_without_their_store(server).await;
    gone::a_volume_of_a_gone_disk_is_created_elsewhere_unless_it_is_claimed(server).await;
    gone::a_store_that_returns_keeps_the_files_that_were_given_up(server).await;
    gone::the_disks_of_a_deleted_node_are_forgotten_once_they_are_silent(server).await;
    health::a_removed_file_is_reported_until_it_is_restored(server).await;
    permission::an_empty_directory_is_used_unless_a_volume_names_it(server).await;
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
        adopt: false,
        remove: None,
    }
}
