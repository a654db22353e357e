//! Tests that the chart and the documentation of a driver match its profile.

use super::{CIVO, DIGITALOCEAN, Kind, LOCAL, NFS, OPENSTACK, TRANSPORT_DISK};
use crate::disk;
use belay_server::identity::PluginCapability;
use belay_server::request::{AccessMode, Context};
use clap::ValueEnum as _;
use std::fs;
use std::path::Path;

const CONFIGURATION: &str = include_str!("../../../docs/configuration.md");

/// The manifests that are rendered with the chart's defaults. The tests of the chart check that the
/// files are current.
const MANIFESTS: [&str; 5] = [
    include_str!("../../../deploy/manifests/local.yaml"),
    include_str!("../../../deploy/manifests/openstack.yaml"),
    include_str!("../../../deploy/manifests/digitalocean.yaml"),
    include_str!("../../../deploy/manifests/civo.yaml"),
    include_str!("../../../deploy/manifests/nfs.yaml"),
];

/// Returns the second cell of the row that starts with `first`.
fn cell(first: &str) -> &'static str {
    let begin = format!("| {first} | ");
    let row = CONFIGURATION
        .lines()
        .find_map(|line| line.strip_prefix(&begin));
    row.unwrap().trim_end_matches(" |")
}

#[test]
fn the_chart_renders_the_object_that_the_profile_describes() {
    let profiles = [LOCAL, OPENSTACK, DIGITALOCEAN, CIVO, NFS];
    for (profile, manifest) in profiles.iter().zip(MANIFESTS) {
        let mut objects = manifest.split("\n---\n");
        let object = objects.find(|object| object.contains("\nkind: CSIDriver\n"));
        let object = object.unwrap();
        let kubelet = &profile.kubelet;
        for (key, value) in [
            ("name", profile.name),
            ("attachRequired", &profile.attaches.to_string()),
            ("podInfoOnMount", &kubelet.pod_info_on_mount.to_string()),
            ("fsGroupPolicy", kubelet.fs_group_policy),
            ("seLinuxMount", &kubelet.selinux_mount.to_string()),
            ("storageCapacity", &profile.knows_room.to_string()),
        ] {
            let line = format!("\n  {key}: {value}\n");
            assert!(object.contains(&line), "{line} is not in {object}");
        }
    }
}

/// Without this capability, the sidecars of a controller exit at start.
#[test]
fn each_driver_advertises_a_controller() {
    for profile in [LOCAL, OPENSTACK, DIGITALOCEAN, CIVO, NFS] {
        let has = profile.capabilities.contains(&PluginCapability::Controller);
        assert!(has, "{}", profile.name);
    }
}

/// The backends that the chart installs.
const IN_CHART: [Kind; 5] = [
    Kind::Local,
    Kind::Openstack,
    Kind::Digitalocean,
    Kind::Civo,
    Kind::Nfs,
];

#[test]
fn each_backend_of_the_chart_has_its_defaults_there_and_no_other_has() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart/backends");
    for kind in IN_CHART {
        let file = format!("{}.yaml", kind.to_possible_value().unwrap().get_name());
        let defaults = fs::read_to_string(folder.join(file)).unwrap();
        let profile = kind.profile();
        for line in [
            format!("\nname: {}\n", profile.name),
            format!("\nmaxVolumes: {}\n", profile.volumes_max),
        ] {
            assert!(defaults.contains(&line), "{kind:?}: no {line}");
        }
    }
    let files = fs::read_dir(folder).unwrap().count();
    assert_eq!(files, IN_CHART.len());
}

#[test]
fn a_disk_has_names_of_its_volume_that_a_publish_context_can_list() {
    for kind in Kind::value_variants() {
        let profile = kind.profile();
        let names = profile.names_of("7f8b1c2d-1111-4222-8333-444455556666");
        assert_eq!(
            names.is_empty(),
            profile.transport != TRANSPORT_DISK,
            "{kind:?}"
        );
        for name in names {
            assert_eq!(disk::word(&name), Ok(name.clone()));
        }
    }
}

#[test]
fn the_documentation_has_the_modes_and_the_key() {
    let modes: Vec<_> = LOCAL
        .access_modes
        .iter()
        .copied()
        .map(AccessMode::name)
        .collect();
    assert_eq!(cell("access modes"), modes.join(", "));
    assert_eq!(
        cell("filesystems").ends_with("or raw block"),
        LOCAL.raw_block
    );
    let mut rows = CONFIGURATION.lines();
    let of_topology = rows.find(|line| line.starts_with("| `--with-topology` | "));
    assert!(of_topology.unwrap().contains(LOCAL.topology_key));
    for (kind, profile) in [
        ("local", LOCAL),
        ("openstack", OPENSTACK),
        ("digitalocean", DIGITALOCEAN),
        ("civo", CIVO),
        ("nfs", NFS),
    ] {
        let (name, most) = (profile.name, profile.volumes_max);
        let row = format!("\n| `{kind}` | `{name}` | `{most}` | ");
        assert!(CONFIGURATION.contains(&row), "{row}");
    }
}

#[test]
fn a_volume_with_any_noformat_key_in_the_field_is_never_formatted() {
    for (key, value) in [
        ("dobs.csi.digitalocean.com/noformat", "true"),
        ("com.digitalocean.csi.dobs/noformat", ""),
        ("com.digitalocean.csi/noformat", "false"),
    ] {
        let entry = [(key.to_owned(), value.to_owned())];
        let context = Context::new("volume_context", entry).unwrap();
        assert!(DIGITALOCEAN.forbids_format(&context), "{key}");
        assert!(!OPENSTACK.forbids_format(&context), "{key}");
    }
    assert!(!DIGITALOCEAN.forbids_format(&Context::default()));
}
