//! What exists and must go on working: volumes, classes, snapshots.

use super::objects::{Object, Objects};
use super::peer::{FILESYSTEMS, FORMATTING, Peer, Sharing};
use super::{Names, about, clouds, options};
use crate::report::{Report, Verdict};
use belay_contract::format;

/// Parameters that the external-provisioner consumes have this prefix; `fstype` is its old
/// spelling.
const PROVISIONER: &str = "csi.storage.k8s.io/";
const OLD_FS_TYPE: &str = "fstype";
/// The annotation of a snapshot whose deletion needs a Secret.
const DELETION_SECRET: &str =
    "/metadata/annotations/snapshot.storage.kubernetes.io~1deletion-secret-name";
/// What to do about Secrets where Belay's controller reads none.
const NO_SECRETS: &str = "the sidecars of Belay's chart may not read them: use a class without, or \
                          give their ServiceAccount the right to get them";

/// The volumes of the driver, also those that Kubernetes has migrated from in-tree plugins.
pub(super) fn volumes(report: &mut Report, objects: &Objects, peer: &Peer, driver: &str) {
    let name = "volumes";
    let ours = || {
        let all = objects.of("PersistentVolume");
        all.filter(|it| it.text("/spec/csi/driver") == driver)
    };
    let some = |wrong: fn(&Object<'_>) -> bool| Names::of(ours().filter(wrong));
    let is_no_uuid: fn(&Object<'_>) -> bool = match peer.chooses_cloud {
        // Cinder's, as Cinder spells them.
        true => |it| !is_uuid(id_of(it)) || id_of(it) != id_of(it).to_ascii_lowercase(),
        false => |it| !is_uuid(id_of(it)),
    };
    let cure = "such a volume cannot exist in the cloud; correct or delete the PersistentVolume";
    let ids = some(is_no_uuid);
    about(
        report,
        Verdict::No,
        name,
        &ids,
        "the volumeHandle is no UUID as the cloud spells it",
        cure,
    );
    let cure = "move their data to volumes with ext4, xfs or btrfs; Belay changes nothing on them";
    let what = "a filesystem that Belay does not mount";
    let filesystems = some(has_other_filesystem);
    about(report, Verdict::No, name, &filesystems, what, cure);
    let encrypted = encrypted(objects, driver);
    let cure = "keep them with the old driver: Belay does not decrypt, and does not mount them";
    let what = "encrypted by the driver";
    about(report, Verdict::No, name, &encrypted, what, cure);
    let several = shared(report, peer, some);
    let secrets = some(has_secrets);
    let cure = match peer.chooses_cloud {
        true => clouds::CURE.to_owned(),
        false => format!(
            "check that they name no other account than that of Belay's configuration: the \
             backend {} does not read secrets of calls",
            peer.backend
        ),
    };
    about(
        report,
        Verdict::Warn,
        name,
        &secrets,
        "have secrets of the driver",
        cure,
    );
    let deleted = some(|it| it.is_being_deleted());
    let cure = "wait until the driver has deleted them; Belay deletes the others after the switch";
    about(report, Verdict::Warn, name, &deleted, "being deleted", cure);
    zones(
        report,
        peer,
        &Names::of(ours().filter(|it| has_key(*it, peer.topology_key))),
    );
    let is_refused = options::volumes(report, ours());
    let none = |names: &&Names| names.is_empty();
    if !is_refused && [&ids, &filesystems, &encrypted, &several].iter().all(none) {
        report.add(
            Verdict::Ok,
            name,
            format!("{} can be taken over", ours().count()),
        );
    }
}

/// The volumes of several nodes that Belay attaches to one at a time. Whether others can have
/// several, the cloud decides.
fn shared(
    report: &mut Report,
    peer: &Peer,
    some: impl Fn(fn(&Object<'_>) -> bool) -> Names,
) -> Names {
    let name = "volumes";
    let (several, what) = match peer.sharing {
        Sharing::All => return Names::default(),
        Sharing::None => (some(is_on_several_nodes), "access modes for several nodes"),
        Sharing::Raw => (
            some(|it| is_on_several_nodes(it) && !is_raw(it)),
            "a filesystem with access modes for several nodes",
        ),
    };
    let cure = "keep them with the old driver: Belay attaches a volume to one node at a time";
    about(report, Verdict::No, name, &several, what, cure);
    if peer.sharing == Sharing::Raw {
        let raw = some(|it| is_on_several_nodes(it) && is_raw(it));
        let what = "raw, with access modes for several nodes";
        let cure = "check that their volume type is multiattach: Belay attaches others to one node \
                    at a time. One that the driver has attached gets no further node until it is \
                    detached from all";
        about(report, Verdict::Warn, name, &raw, what, cure);
    }
    several
}

/// Volumes that require a topology label: without it, no node suits their pods.
fn zones(report: &mut Report, peer: &Peer, bound: &Names) {
    let cure = "keep the topology of the chart's entry enabled, which it is by default";
    let what = format!("require nodes with the label {}", peer.topology_key);
    about(report, Verdict::Warn, "zones", bound, &what, cure);
}

fn has_key(volume: Object<'_>, key: &str) -> bool {
    let terms = volume.list("/spec/nodeAffinity/required/nodeSelectorTerms");
    let mut expressions = terms.flat_map(|term| term.list("/matchExpressions"));
    expressions.any(|expression| expression.text("/key") == key)
}

/// The volumes that the driver has encrypted.
fn encrypted(objects: &Objects, driver: &str) -> Names {
    let volumes = objects.of("PersistentVolume");
    Names::of(volumes.filter(|it| {
        let mut attributes = it.entries("/spec/csi/volumeAttributes");
        it.text("/spec/csi/driver") == driver
            && attributes.any(|(key, value)| format::is_encryption_by_driver(key, value))
    }))
}

fn id_of<'a>(volume: &'a Object<'_>) -> &'a str {
    volume.text("/spec/csi/volumeHandle")
}

/// 8-4-4-4-12 hexadecimal digits.
fn is_uuid(id: &str) -> bool {
    let lengths = id.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && id.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

/// No type is ext4, by default.
fn has_other_filesystem(volume: &Object<'_>) -> bool {
    let fs_type = volume.text("/spec/csi/fsType");
    !is_raw(volume) && !fs_type.is_empty() && !FILESYSTEMS.contains(&fs_type)
}

fn is_raw(volume: &Object<'_>) -> bool {
    volume.text("/spec/volumeMode") == "Block"
}

fn is_on_several_nodes(volume: &Object<'_>) -> bool {
    let mut modes = volume.texts("/spec/accessModes");
    modes.any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}

fn has_secrets(volume: &Object<'_>) -> bool {
    volume
        .keys("/spec/csi")
        .any(|key| key.ends_with("SecretRef"))
}

/// A class with a parameter that Belay does not know creates no volumes.
pub(super) fn classes(report: &mut Report, objects: &Objects, peer: &Peer, driver: &str) {
    let name = "storage classes";
    let ours = || {
        objects
            .of("StorageClass")
            .filter(|it| it.text("/provisioner") == driver)
    };
    let is_known = |key: &str| {
        peer.ignores_parameters
            || key.starts_with(PROVISIONER)
            || key == OLD_FS_TYPE
            || peer.parameters.contains(&key)
            || FORMATTING.contains(&key)
    };
    let mut is_good = true;
    for class in ours() {
        let unknown: Vec<_> = class
            .keys("/parameters")
            .filter(|key| !is_known(key))
            .collect();
        let fs_keys = [PROVISIONER.to_owned() + OLD_FS_TYPE, OLD_FS_TYPE.to_owned()];
        let parameters = |key: &String| class.text(&format!("/parameters/{}", escaped(key)));
        let fs_type = fs_keys.iter().map(parameters).find(|it| !it.is_empty());
        let other = fs_type.filter(|it| !FILESYSTEMS.contains(it));
        let cure = "its volumes are not affected; create a class without that, and use it for new \
                    claims";
        is_good &= !(peer.chooses_cloud && clouds::class(report, class));
        is_good &= !options::class(report, class);
        let mut wrong = |what: String| {
            is_good = false;
            report.cure(
                Verdict::Warn,
                name,
                format!("{}: {what}", class.name()),
                cure,
            );
        };
        if !unknown.is_empty() {
            wrong(format!("Belay refuses parameter {}", unknown.join(", ")));
        }
        let mut parameters = class.entries("/parameters");
        let asking = parameters.find(|(key, value)| format::is_encryption_requested(key, value));
        if let Some((key, _)) = asking {
            wrong(format!(
                "{key} asks for encryption, which Belay does not do"
            ));
        }
        if let Some(fs_type) = other {
            wrong(format!("Belay does not create {fs_type}"));
        }
    }
    if is_good {
        report.add(
            Verdict::Ok,
            name,
            format!("{} can be used as they are", ours().count()),
        );
    }
}

/// A key as a part of a JSON pointer (RFC 6901).
pub(super) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Snapshots of the driver, and their classes.
pub(super) fn snapshots(report: &mut Report, objects: &Objects, peer: &Peer, driver: &str) {
    let name = "snapshots";
    let of = |kind, pointer: &'static str| {
        let all = objects.of(kind);
        all.filter(move |it: &Object<'_>| it.text(pointer) == driver)
    };
    let contents = || of("VolumeSnapshotContent", "/spec/driver");
    let classes = || of("VolumeSnapshotClass", "/driver");
    for class in classes() {
        let is_known = |key: &str| {
            let mut known = peer.snapshot_parameters.iter();
            known.any(|it| *it == key || peer.is_remote && it.eq_ignore_ascii_case(key))
        };
        let is_unknown = |key: &&str| !key.starts_with(PROVISIONER) && !is_known(key);
        let refused: Vec<_> = class.keys("/parameters").filter(is_unknown).collect();
        if !refused.is_empty() {
            let what = format!(
                "{}: Belay refuses parameter {}",
                class.name(),
                refused.join(", ")
            );
            let cure = "its snapshots are not affected; create a class without that, and use it \
                        for new snapshots";
            report.cure(Verdict::Warn, "snapshot classes", what, cure);
        }
    }
    let cure = match peer.chooses_cloud {
        true => clouds::CURE,
        false => NO_SECRETS,
    };
    let secrets = Names::of(classes().filter(|it| {
        let mut keys = it.keys("/parameters");
        keys.any(|key| key.starts_with(PROVISIONER) && key.ends_with("-secret-name"))
    }));
    let what = "name Secrets";
    about(
        report,
        Verdict::Warn,
        "snapshot classes",
        &secrets,
        what,
        cure,
    );
    let secrets = Names::of(contents().filter(|it| it.at(DELETION_SECRET).is_some()));
    let what = "are deleted with a Secret";
    about(report, Verdict::Warn, name, &secrets, what, cure);
    let is_ready = |it: &Object<'_>| {
        it.at("/status/readyToUse")
            .and_then(serde_json::Value::as_bool)
            == Some(true)
    };
    let unfinished = Names::of(contents().filter(|it| it.is_being_deleted() || !is_ready(it)));
    let cure = "wait until the driver has completed them, and read the objects again";
    let what = "being created or deleted";
    about(report, Verdict::Warn, name, &unfinished, what, cure);
    if unfinished.is_empty() {
        let what = format!(
            "{} complete, {} classes",
            contents().count(),
            classes().count()
        );
        report.add(Verdict::Ok, name, what);
    }
}
