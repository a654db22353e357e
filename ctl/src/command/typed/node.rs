//! The typed commands of the node socket, and of the Identity service, which both sockets serve.

use super::controller::{GROWN, MIN_SIZE, VOLUME_ID};
use super::forms;
use super::verb::Kind::{Size, Switch, Text};
use super::verb::{Flag, Verb, option, verb};
use super::view::{Column, Form, View};

const STAGING: &[&str] = &["staging_target_path"];
const STAGED: Flag = option("staging", Text("PATH"), STAGING, "Where it is staged").optional();
const PATH: Flag = option(
    "path",
    Text("PATH"),
    &["volume_path"],
    "Where it is published or staged",
)
.required();

/// `belayctl node`: the calls that in a cluster the kubelet makes to the node plugin.
#[rustfmt::skip] // Keep one row per flag.
pub(super) const NODE: &[Verb] = &[
    verb("stage", "NodeStageVolume",
        "Make a volume usable on the node, formatting it if it is blank",
        &[
            VOLUME_ID,
            option("staging", Text("PATH"), STAGING,
                "Staging path; the directory must exist").required(),
            Flag::Capability("volume_capability"),
            Flag::Contexts,
            Flag::Secrets,
        ],
        View::Done),
    verb("unstage", "NodeUnstageVolume", "Unstage a volume",
        &[VOLUME_ID, option("staging", Text("PATH"), STAGING, "Where it is staged").required()],
        View::Done),
    verb("publish", "NodePublishVolume", "Publish a volume at a target path",
        &[
            VOLUME_ID,
            option("target", Text("PATH"), &["target_path"],
                "Target path; its parent directory must exist").required(),
            option("readonly", Switch, &["readonly"], "Publish read-only").optional(),
            option("staging", Text("PATH"), STAGING,
                "Staging path, unless the driver stages no volumes").optional(),
            Flag::Capability("volume_capability"),
            Flag::Contexts,
            Flag::Secrets,
        ],
        View::Done),
    verb("unpublish", "NodeUnpublishVolume", "Unpublish a volume",
        &[VOLUME_ID,
          option("target", Text("PATH"), &["target_path"], "Where it is published").required()],
        View::Done),
    verb("stats", "NodeGetVolumeStats", "Show the usage of a volume",
        &[VOLUME_ID, PATH, STAGED], View::Other(forms::usage)),
    verb("health", "NodeGetVolumeHealth",
        "Show the health of a volume, as this node sees it; exits with 2 if it is unhealthy",
        &[
            Flag::Word("volume_id", "VOLUME_ID",
                "Id of the volume; it need not be staged or published"),
            option("target", Text("PATH"), &["volume_publish_path"],
                "Where it is or should be published").optional(),
            option("staging", Text("PATH"), STAGING, "Where it is or should be staged").optional(),
        ],
        View::Other(forms::health_of_one)),
    verb("storage-health", "NodeGetStorageHealth",
        "Show the health of the storage behind all volumes; exits with 2 if it is unhealthy",
        &[Flag::Secrets], View::Other(forms::storage_health)),
    verb("expand", "NodeExpandVolume", "Grow the filesystem to the size of its device",
        &[
            VOLUME_ID,
            PATH,
            STAGED,
            option("size", Size, MIN_SIZE,
                "Minimum size, e.g. 2GiB [default: the size of the device]").optional(),
            Flag::OptionalCapability("volume_capability"),
            Flag::Secrets,
        ],
        View::Record(&[GROWN], "", "")),
    verb("info", "NodeGetInfo", "Show id, limits and topology of the node",
        &[],
        View::Record(
            &[
                Column::new("node_id", "/node_id", Form::Text),
                Column::new("max_volumes_per_node", "/max_volumes_per_node", Form::Limit),
                Column::new("accessible_topology", "/accessible_topology/segments", Form::Pairs),
            ],
            "", "")),
    verb("capabilities", "NodeGetCapabilities", "List the capabilities of the node service",
        &[], View::Other(forms::capabilities)),
];

/// `belayctl identity`: name, capabilities and readiness of the driver.
#[rustfmt::skip] // Keep one row per flag.
pub(super) const IDENTITY: &[Verb] = &[
    verb("info", "GetPluginInfo", "Show name, version and manifest",
        &[],
        View::Record(
            &[
                Column::new("name", "/name", Form::Text),
                Column::new("vendor_version", "/vendor_version", Form::Text),
                Column::new("manifest", "/manifest", Form::Pairs),
            ],
            "", "")),
    verb("capabilities", "GetPluginCapabilities", "List the capabilities of the plugin",
        &[], View::Other(forms::capabilities)),
    verb("probe", "Probe", "Show whether the driver is ready; exits with 2 if it is not",
        &[], View::Other(forms::readiness)),
];
