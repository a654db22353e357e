//! The typed commands of the controller socket: for each, the method, the flags, and the displayed
//! values of the response.

use super::forms;
use super::verb::Kind::{Count, Pairs, Size, Switch, Text};
use super::verb::{Flag, Verb, option, verb};
use super::view::{Column, Form, View};

pub(super) const VOLUME_ID: Flag =
    Flag::Word("volume_id", "VOLUME_ID", "Id of the volume, or its name");
const SNAPSHOT_ID: Flag = Flag::Word("snapshot_id", "SNAPSHOT_ID", "Id of the snapshot");
const IGNORE_ABSENT: Flag = option(
    super::IGNORE,
    Switch,
    &[],
    "Succeed, and do nothing, if there is none",
)
.optional();
const PARAMETERS: Flag = class_parameters("Storage class parameter; may be repeated");
pub(super) const MIN_SIZE: &[&str] = &["capacity_range/required_bytes"];
const LIMIT: Flag = option(
    "limit",
    Size,
    &["capacity_range/limit_bytes"],
    "Maximum size",
)
.optional();
const MAX_ENTRIES: Flag = option(
    super::ONE_PAGE[0],
    Count,
    &["max_entries"],
    "Show only one page, with at most so many entries (0: the driver's default)",
)
.optional();
const STARTING_TOKEN: Flag = option(
    super::ONE_PAGE[1],
    Text("TOKEN"),
    &["starting_token"],
    "Show only the page that starts at this token",
)
.optional();

const ID: Column = Column::new("volume_id", "/volume/volume_id", Form::Text);
/// The JSON pointer ends with the key of the volume context that belay-contract defines as
/// `VOLUME_NAME`, escaped.
const NAME: Column =
    Column::new("name", "/volume/volume_context/belay.dev~1name", Form::Text).if_sent();
const CAPACITY: Column = Column::new("capacity_bytes", "/volume/capacity_bytes", Form::Bytes);
const CONTEXT: Column = Column::new("volume_context", "/volume/volume_context", Form::Pairs);
const TOPOLOGIES: Column = Column::new(
    "accessible_topology",
    "/volume/accessible_topology",
    Form::Topologies,
);
const FROM_SNAPSHOT: Column = Column::new(
    "from_snapshot",
    "/volume/content_source/snapshot/snapshot_id",
    Form::Text,
)
.if_sent();
const FROM_VOLUME: Column = Column::new(
    "from_volume",
    "/volume/content_source/volume/volume_id",
    Form::Text,
)
.if_sent();
const NODES: Column = Column::new(
    "published_node_ids",
    "/status/published_node_ids",
    Form::List,
);
const CONDITION: Column = Column::new(
    "volume_condition",
    "/status/volume_condition",
    Form::Condition,
)
.if_sent();
pub(super) const GROWN: Column = Column::new("capacity_bytes", "/capacity_bytes", Form::Bytes);
const SOURCE: Column = Column::new("source", "/volume/content_source", Form::Source);

const fn class_parameters(help: &'static str) -> Flag {
    option("parameter", Pairs, &["parameters"], help).optional()
}

/// `belayctl volume`: the calls about volumes, which in a cluster the CSI sidecars make to the
/// controller.
#[rustfmt::skip] // Keep one row per flag.
pub(super) const VOLUME: &[Verb] = &[
    verb("create", "CreateVolume", "Create a volume, or find the one with this name",
        &[
            Flag::Word("name", "NAME", "Name of the volume"),
            option("size", Size, MIN_SIZE,
                "Minimum size, e.g. 1GiB, 500Mi or bytes [default: the driver's]").optional(),
            LIMIT,
            Flag::Capability("volume_capabilities/0"),
            PARAMETERS,
            option("mutable-parameter", Pairs, &["mutable_parameters"],
                "Parameter of a volume attributes class; may be repeated").optional(),
            option("topology", Pairs,
                &[
                    "accessibility_requirements/requisite/0/segments",
                    "accessibility_requirements/preferred/0/segments",
                ],
                "Topology segment it must be reachable from, as key=value; may be repeated",
            )
            .optional(),
            option("from-snapshot", Text("SNAPSHOT_ID"),
                &["volume_content_source/snapshot/snapshot_id"],
                "Id of a snapshot to restore").without("from-volume"),
            option("from-volume", Text("VOLUME_ID"), &["volume_content_source/volume/volume_id"],
                "Id of a volume to clone").optional(),
            Flag::Secrets,
        ],
        View::Record(&[ID, CAPACITY, CONTEXT, TOPOLOGIES, FROM_SNAPSHOT, FROM_VOLUME], "/volume",
            "has no volume")),
    verb("delete", "DeleteVolume", "Delete a volume and its data",
        &[VOLUME_ID, IGNORE_ABSENT, Flag::Secrets], View::Done).also("rm"),
    verb("attach", "ControllerPublishVolume",
        "Attach a volume to a node; prints the publish context",
        &[
            VOLUME_ID,
            option("node-id", Text("NODE_ID"), &["node_id"],
                "The node, as `belayctl node info` names it").required(),
            Flag::Capability("volume_capability"),
            option("readonly", Switch, &["readonly"], "Attach read-only").optional(),
            Flag::VolumeContext,
            Flag::Secrets,
        ],
        View::Record(&[Column::new("publish_context", "/publish_context", Form::Pairs)], "", ""))
        .also("publish"),
    verb("detach", "ControllerUnpublishVolume", "Detach a volume from a node, or from all nodes",
        &[
            VOLUME_ID,
            option("node-id", Text("NODE_ID"), &["node_id"],
                "The node [default: all nodes]").optional(),
            IGNORE_ABSENT,
            Flag::Secrets,
        ],
        View::Done).also("unpublish"),
    verb("validate", "ValidateVolumeCapabilities",
        "Check whether a volume supports a capability; exits with 2 if it does not",
        &[
            VOLUME_ID,
            Flag::Capability("volume_capabilities/0"),
            PARAMETERS,
            Flag::VolumeContext,
            Flag::Secrets,
        ],
        View::Other(forms::confirmation)),
    verb("list", "ListVolumes", "List volumes",
        &[MAX_ENTRIES, STARTING_TOKEN],
        View::Rows(
            &[ID, NAME, CAPACITY, NODES, CONDITION,
              SOURCE.wide(), TOPOLOGIES.wide(), CONTEXT.wide()],
            "volumes")).also("ls"),
    verb("get", "ControllerGetVolume", "Show a volume",
        &[VOLUME_ID],
        View::Record(
            &[ID, NAME, CAPACITY, CONTEXT, TOPOLOGIES, FROM_SNAPSHOT, FROM_VOLUME,
              NODES, CONDITION],
            "/volume", "has no volume")),
    verb("expand", "ControllerExpandVolume", "Expand a volume",
        &[
            VOLUME_ID,
            option("size", Size, MIN_SIZE, "Minimum size, e.g. 2GiB").required(),
            LIMIT,
            Flag::OptionalCapability("volume_capability"),
            Flag::Secrets,
        ],
        View::Record(
            &[GROWN,
              Column::new("node_expansion_required", "/node_expansion_required", Form::Flag)],
            "", "")),
    verb("modify", "ControllerModifyVolume", "Change the mutable parameters of a volume",
        &[
            VOLUME_ID,
            option("parameter", Pairs, &["mutable_parameters"],
                "Parameter and its new value; may be repeated").required(),
            Flag::Secrets,
        ],
        View::Done),
    verb("health", "ControllerGetVolumeHealth",
        "Show the health of a volume, as the storage sees it; exits with 2 if it is unhealthy",
        &[VOLUME_ID, Flag::Secrets], View::Other(forms::health_of_one)),
    verb("health-list", "ControllerListVolumeHealth",
        "List unhealthy volumes; exits with 2 if there are any",
        &[
            option("page-size", Count, &["max_entries"],
                "Number of entries that one call requests (0: the driver's default)").optional(),
            Flag::Secrets,
        ],
        View::Other(forms::health_of_list)).also("unhealthy"),
    verb("capacity", "GetCapacity", "Show free capacity",
        &[
            PARAMETERS,
            option("topology", Pairs, &["accessible_topology/segments"],
                "Topology segment of the volumes, as key=value; may be repeated").optional(),
        ],
        View::Record(
            &[
                Column::new("available_capacity", "/available_capacity", Form::Bytes),
                Column::new("maximum_volume_size", "/maximum_volume_size", Form::Bytes).if_sent(),
                Column::new("minimum_volume_size", "/minimum_volume_size", Form::Bytes).if_sent(),
            ],
            "", "")),
    verb("capabilities", "ControllerGetCapabilities", "List the capabilities of the controller",
        &[], View::Other(forms::capabilities)),
];

#[rustfmt::skip]
const SNAPSHOT: &[Column] = &[
    Column::new("snapshot_id", "/snapshot/snapshot_id", Form::Text),
    Column::new("source_volume_id", "/snapshot/source_volume_id", Form::Text),
    Column::new("size_bytes", "/snapshot/size_bytes", Form::Bytes),
    Column::new("creation_time", "/snapshot/creation_time", Form::Text),
    Column::new("ready_to_use", "/snapshot/ready_to_use", Form::Flag),
    Column::new("group_snapshot_id", "/snapshot/group_snapshot_id", Form::Text).wide(),
];
const ONE_SNAPSHOT: View = View::Record(SNAPSHOT, "/snapshot", "has no snapshot");

/// `belayctl snapshot`: the calls about snapshots, which in a cluster the CSI sidecars make to the
/// controller.
#[rustfmt::skip] // Keep one row per flag.
pub(super) const SNAPSHOTS: &[Verb] = &[
    verb("create", "CreateSnapshot", "Create a snapshot, or find the one with this name",
        &[
            Flag::Word("name", "NAME", "Name of the snapshot"),
            Flag::Word("source_volume_id", "VOLUME_ID", "Id of the volume"),
            class_parameters("Snapshot class parameter; may be repeated"),
            Flag::Secrets,
        ],
        ONE_SNAPSHOT),
    verb("delete", "DeleteSnapshot", "Delete a snapshot; volumes restored from it remain",
        &[SNAPSHOT_ID, IGNORE_ABSENT, Flag::Secrets], View::Done).also("rm"),
    verb("list", "ListSnapshots", "List snapshots",
        &[
            option("volume-id", Text("VOLUME_ID"), &["source_volume_id"],
                "Only snapshots of this volume").optional(),
            option("snapshot-id", Text("SNAPSHOT_ID"), &["snapshot_id"],
                "Only this snapshot").optional(),
            MAX_ENTRIES,
            STARTING_TOKEN,
            Flag::Secrets,
        ],
        View::Rows(SNAPSHOT, "snapshots")).also("ls"),
    verb("get", "GetSnapshot", "Show a snapshot",
        &[SNAPSHOT_ID, Flag::Secrets], ONE_SNAPSHOT),
];
