//! Rules about existing storage that must remain usable: volumes, classes, snapshots, and
//! attachments that the driver has not completed.

use belay_contract::encryption::{self, Encryption};
use belay_contract::{format, mount_flags};
use belay_server::call::Failure as Refusal;
use belay_server::request::Context;
use serde_json::Value;

use super::peer::{FILESYSTEMS, FORMATTING, Sharing};
use super::rules::{Case, Good, Item, Rule, Section, Subject, Test, warning, wrong};
use crate::objects::{Object, escaped};

/// The prefix of class parameters that the external-provisioner consumes. `fstype` is a deprecated
/// parameter of the external-provisioner that lacks this prefix.
const PROVISIONER: &str = "csi.storage.k8s.io/";
const OLD_FS_TYPE: &str = "fstype";
/// The annotation of a snapshot that names the Secret for its deletion.
const DELETION_SECRET: &str =
    "/metadata/annotations/snapshot.storage.kubernetes.io~1deletion-secret-name";
/// The reference of a PersistentVolume to the Secret with its passphrase.
const STAGE_SECRET: &str = "/spec/csi/nodeStageSecretRef";
const ATTRIBUTES: &str = "/spec/csi/volumeAttributes";
/// The remedy for Secrets that Belay's controller does not use.
const NO_SECRETS: &str = "the sidecars of Belay's chart may not read them: use a class without, or \
                          give their ServiceAccount the right to get them";
/// The remedy for a Secret that may name a cloud. The contents of the Secret are unknown, because
/// the input does not contain Secrets.
const CLOUDS: &str = "add each such Secret to `clouds` of the chart's entry, so that the sidecars \
                      may read it, with the name in its key `cloud`, or with name \"\" if it has \
                      none: Belay refuses calls for a cloud that it does not use";
/// The names of the calls that modify a volume. Each name is part of the StorageClass parameter for
/// the Secret of the call.
const CALLS: [&str; 3] = ["provisioner", "controller-publish", "controller-expand"];

pub(super) const VOLUMES: Subject = Subject::Ours("PersistentVolume", "/spec/csi/driver");
pub(super) const CLASSES: Subject = Subject::Ours("StorageClass", "/provisioner");
pub(super) const SNAPSHOTS: Subject = Subject::Ours("VolumeSnapshotContent", "/spec/driver");
pub(super) const SNAPSHOT_CLASSES: Subject = Subject::Ours("VolumeSnapshotClass", "/driver");
pub(super) const ATTACHMENTS: Subject = Subject::Ours("VolumeAttachment", "/spec/attacher");

#[rustfmt::skip]
pub(super) const SECTIONS: [Section; 6] = [
    Section {
        name: "attachments",
        rules: &[
            warning(ATTACHMENTS, Test::Is(|it, _| {
                let errors = ["/status/attachError", "/status/detachError"];
                errors.iter().any(|error| it.at(error).is_some())
            }),
                "the last attach or detach failed",
                "kubectl describe volumeattachment NAME; let the driver finish or repair it first"),
            warning(ATTACHMENTS,
                Test::Is(|it, _| it.is_being_deleted() || !is_true(it, "/status/attached")),
                "being attached or detached",
                "wait, and read the objects again; Belay completes the rest, by the volume ID"),
        ],
        good: Good::IfAllHold("{0} complete, none under way"),
        ..Section::ALWAYS
    },
    Section {
        name: "volumes",
        rules: VOLUME_RULES,
        good: Good::IfNoneIsWrong("{0} can be taken over"),
        ..Section::ALWAYS
    },
    Section {
        name: "zones",
        rules: &[warning(VOLUMES, Test::Finds(|it, case| {
            let key = case.peer.topology_key;
            has_key(it.object, key).then(|| vec![key.to_owned()])
        }),
            "require nodes with the label {0}",
            "keep the topology of the chart's entry enabled, which it is by default")],
        ..Section::ALWAYS
    },
    Section {
        name: "storage classes",
        rules: CLASS_RULES,
        good: Good::IfAllHold("{0} can be used as they are"),
        ..Section::ALWAYS
    },
    Section {
        name: "snapshot classes",
        rules: &[
            warning(SNAPSHOT_CLASSES, Test::Finds(|class, case| {
                let known = case.peer.snapshot_parameters;
                refused(class, |key| {
                    key.starts_with(PROVISIONER) || known.contains(&key)
                })
            }),
                "Belay refuses parameter {0}",
                "its snapshots are not affected; create a class without that, and use it for new \
                 snapshots"),
            warning(SNAPSHOT_CLASSES,
                Test::Is(|it, case| case.peer.chooses_cloud && names_secrets(it)),
                "name Secrets",
                CLOUDS),
            warning(SNAPSHOT_CLASSES,
                Test::Is(|it, case| !case.peer.chooses_cloud && names_secrets(it)),
                "name Secrets",
                NO_SECRETS),
        ],
        ..Section::ALWAYS
    },
    Section {
        name: "snapshots",
        rules: SNAPSHOT_RULES,
        good: Good::IfAllHold("{0} complete"),
        ..Section::ALWAYS
    },
];

#[rustfmt::skip]
const SNAPSHOT_RULES: &[Rule] = &[
    warning(SNAPSHOTS,
        Test::Is(|it, case| case.peer.chooses_cloud && it.at(DELETION_SECRET).is_some()),
        "are deleted with a Secret",
        CLOUDS),
    warning(SNAPSHOTS,
        Test::Is(|it, case| !case.peer.chooses_cloud && it.at(DELETION_SECRET).is_some()),
        "are deleted with a Secret",
        NO_SECRETS),
    warning(SNAPSHOTS,
        Test::Is(|it, _| it.is_being_deleted() || !is_true(it, "/status/readyToUse")),
        "being created or deleted",
        "wait until the driver has completed them, and read the objects again"),
];

const ONE_NODE: &str =
    "keep them with the old driver: Belay attaches a volume to one node at a time";

/// Rules about volumes. The driver's volumes include volumes of in-tree plugins that Kubernetes has
/// migrated to the driver.
#[rustfmt::skip]
const VOLUME_RULES: &[Rule] = &[
    wrong(VOLUMES, Test::Is(|it, case| {
        let id = it.text("/spec/csi/volumeHandle");
        // Cinder writes volume IDs in lower case.
        let is_misspelt = case.peer.chooses_cloud && id != id.to_ascii_lowercase();
        !is_uuid(id) || is_misspelt
    }),
        "the volumeHandle is no UUID as the cloud spells it",
        "such a volume cannot exist in the cloud; correct or delete the PersistentVolume"),
    wrong(VOLUMES, Test::Is(|it, _| {
        // If a volume has no filesystem type, the default is ext4.
        let fs_type = it.text("/spec/csi/fsType");
        !is_raw(it) && !fs_type.is_empty() && !FILESYSTEMS.contains(&fs_type)
    }),
        "a filesystem that Belay does not mount",
        "move their data to volumes with ext4, xfs or btrfs; Belay changes nothing on them"),
    wrong(VOLUMES, Test::Is(|it, _| {
        let mut attributes = it.entries(ATTRIBUTES);
        attributes.any(encryption::is_unknown)
    }),
        "encrypted in a way that Belay does not know",
        "keep them with the old driver: Belay does not mount them"),
    wrong(VOLUMES, Test::Finds(|it, _| {
        let requested = read(it.object, ATTRIBUTES, Encryption::requested);
        requested.err().map(|why| vec![why])
    }),
        "{0}",
        "create each PersistentVolume again, with a value that Belay knows"),
    wrong(VOLUMES, Test::Is(|it, _| {
        let of = |part: &str| it.text(&format!("{STAGE_SECRET}/{part}"));
        let is_encrypted = read(it, ATTRIBUTES, Encryption::requested).is_ok_and(|it| it.is_some());
        is_encrypted && (of("name").is_empty() || of("namespace").is_empty())
    }),
        "encrypted, without a Secret for NodeStageVolume",
        "create each PersistentVolume again, with nodeStageSecretRef: the passphrase is in it"),
    wrong(VOLUMES,
        Test::Is(|it, case| case.peer.sharing == Sharing::None && is_on_several_nodes(it)),
        "access modes for several nodes",
        ONE_NODE),
    wrong(VOLUMES, Test::Is(|it, case| {
        case.peer.sharing == Sharing::Raw && is_on_several_nodes(it) && !is_raw(it)
    }),
        "a filesystem with access modes for several nodes",
        ONE_NODE),
    warning(VOLUMES, Test::Is(|it, case| {
        case.peer.sharing == Sharing::Raw && is_on_several_nodes(it) && is_raw(it)
    }),
        "raw, with access modes for several nodes",
        "check that their volume type is multiattach: Belay attaches others to one node at a \
         time. One that the driver has attached gets no further node until it is detached from \
         all"),
    warning(VOLUMES, Test::Is(|it, case| case.peer.chooses_cloud && has_secrets(it)),
        "have secrets of the driver",
        CLOUDS),
    warning(VOLUMES, Test::Finds(|it, case| {
        let is_unread = !case.peer.chooses_cloud && has_secrets(it.object);
        is_unread.then(|| vec![case.peer.backend.to_owned()])
    }),
        "have secrets of the driver",
        "check that they name no other account than that of Belay's configuration: the backend \
         {0} does not read secrets of calls"),
    warning(VOLUMES, Test::Is(|it, _| it.is_being_deleted()),
        "being deleted",
        "wait until the driver has deleted them; Belay deletes the others after the switch"),
    wrong(VOLUMES, Test::Finds(|it, _| match is_raw(it.object) {
        true => None,
        false => refused_option(it.object, "/spec/mountOptions"),
    }),
        "mountOptions, {0}",
        "kubectl edit persistentvolume NAME, and change spec.mountOptions: they count from the \
         next mount on. Until then, Belay does not mount the volume"),
];

const OTHER_CLASS: &str = "its volumes are not affected; create a class without that, and use it \
                           for new claims";

/// Rules about classes. If Belay refuses a parameter of a StorageClass, it creates no volumes of
/// that class.
#[rustfmt::skip]
const CLASS_RULES: &[Rule] = &[
    warning(CLASSES, Test::Finds(|class, case| {
        let (with, _) = calls(class.object, case)?;
        Some(vec![with.join(", ")])
    }),
        "names Secret {0}",
        CLOUDS),
    warning(CLASSES, Test::Finds(|class, case| {
        let (_, without) = calls(class.object, case)?;
        (!without.is_empty()).then(|| vec![without.join(", ")])
    }),
        "has no Secret for {0}",
        "if the Secret has the key `cloud`, those calls would be for [Global], where the volumes \
         are not, and fail: use a class that names it for all calls"),
    warning(CLASSES, Test::Finds(|class, _| refused_option(class.object, "/mountOptions")),
        "mountOptions, {0}",
        "kubectl edit storageclass NAME, and change mountOptions: else Belay does not mount its \
         new volumes"),
    warning(CLASSES, Test::Finds(|class, case| {
        let peer = case.peer;
        refused(class, |key| {
            peer.ignores_parameters
                || key.starts_with(PROVISIONER)
                || key == OLD_FS_TYPE
                || peer.parameters.contains(&key)
                || FORMATTING.contains(&key)
                || encryption::is_parameter(key)
        })
    }),
        "Belay refuses parameter {0}",
        OTHER_CLASS),
    warning(CLASSES, Test::Finds(|class, _| {
        let mut parameters = class.object.entries("/parameters");
        let asking = parameters.find(|(key, value)| {
            !encryption::is_parameter(key) && format::is_encryption_requested(key, value)
        });
        asking.map(|(key, _)| vec![key.to_owned()])
    }),
        "{0} asks for encryption, in a way that Belay does not know",
        OTHER_CLASS),
    warning(CLASSES, Test::Finds(|class, case| match case.peer.ignores_parameters {
        true => None,
        false => read(class.object, "/parameters", Encryption::wanted).err().map(|why| vec![why]),
    }),
        "{0}",
        OTHER_CLASS),
    warning(CLASSES, Test::Is(|class, _| {
        let of = |part| parameter(class, &format!("{PROVISIONER}node-stage-secret-{part}"));
        let wanted = read(class, "/parameters", Encryption::wanted);
        wanted.is_ok_and(|it| it.is_some()) && (of("name").is_empty() || of("namespace").is_empty())
    }),
        "encrypted, without a Secret for NodeStageVolume",
        "use a class with csi.storage.k8s.io/node-stage-secret-name and -namespace: the passphrase \
         is in it"),
    warning(CLASSES, Test::Finds(|class, _| {
        let keys = [PROVISIONER.to_owned() + OLD_FS_TYPE, OLD_FS_TYPE.to_owned()];
        let types = keys.iter().map(|key| parameter(class.object, key));
        let mut types = types.filter(|it| !it.is_empty()).take(1);
        let other = types.find(|it| !FILESYSTEMS.contains(it))?;
        Some(vec![other.to_owned()])
    }),
        "Belay does not create {0}",
        OTHER_CLASS),
];

/// Returns the encryption that the entries at the JSON pointer request, as Belay reads them.
///
/// # Errors
/// Returns Belay's error for entries that it refuses.
fn read(
    object: Object<'_>,
    pointer: &'static str,
    read: fn(&str, &Context) -> Result<Option<Encryption>, Refusal>,
) -> Result<Option<Encryption>, String> {
    let (_, field) = pointer.rsplit_once('/').unwrap_or_default();
    let entries = object.entries(pointer);
    let entries = entries.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let encryption = Context::new(field, entries).and_then(|entries| read(field, &entries));
    encryption.map_err(|failure| failure.message)
}

fn is_true(object: Object<'_>, pointer: &str) -> bool {
    object.at(pointer).and_then(Value::as_bool) == Some(true)
}

fn parameter<'a>(class: Object<'a>, key: &str) -> &'a str {
    class.text(&format!("/parameters/{}", escaped(key)))
}

/// Returns the unknown parameters of a class; `None` if all are known.
fn refused(class: &Item<'_>, is_known: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let keys = class.object.keys("/parameters");
    let unknown: Vec<_> = keys.filter(|key| !is_known(key)).collect();
    (!unknown.is_empty()).then(|| vec![unknown.join(", ")])
}

/// Returns a mount option that the node agent refuses, with the reason. The node agent does not
/// mount volumes with this option.
fn refused_option(object: Object<'_>, pointer: &str) -> Option<Vec<String>> {
    let options: Vec<_> = object.texts(pointer).collect();
    mount_flags::parse(&options).err().map(|why| vec![why])
}

/// Returns the Secrets that a class names, which may select a cloud, and the calls for which it
/// names no Secret. Returns `None` if the class names no Secret.
fn calls(class: Object<'_>, case: &Case<'_>) -> Option<(Vec<String>, Vec<&'static str>)> {
    let part =
        |call: &str, part: &str| parameter(class, &format!("{PROVISIONER}{call}-secret-{part}"));
    let (with, without): (Vec<_>, Vec<_>) = CALLS
        .into_iter()
        .partition(|call| !part(call, "name").is_empty());
    let secrets = with.iter();
    let secrets = secrets.map(|call| format!("{}/{}", part(call, "namespace"), part(call, "name")));
    let mut secrets: Vec<_> = secrets.collect();
    secrets.sort();
    secrets.dedup();
    (case.peer.chooses_cloud && !secrets.is_empty()).then_some((secrets, without))
}

fn names_secrets(class: Object<'_>) -> bool {
    let mut keys = class.keys("/parameters");
    keys.any(|key| key.starts_with(PROVISIONER) && key.ends_with("-secret-name"))
}

fn has_key(volume: Object<'_>, key: &str) -> bool {
    let terms = volume.list("/spec/nodeAffinity/required/nodeSelectorTerms");
    let mut expressions = terms.flat_map(|term| term.list("/matchExpressions"));
    expressions.any(|expression| expression.text("/key") == key)
}

/// Whether the ID is a UUID: groups of 8-4-4-4-12 hexadecimal digits.
fn is_uuid(id: &str) -> bool {
    let lengths = id.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && id.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

fn is_raw(volume: Object<'_>) -> bool {
    volume.text("/spec/volumeMode") == "Block"
}

fn is_on_several_nodes(volume: Object<'_>) -> bool {
    let mut modes = volume.texts("/spec/accessModes");
    modes.any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}

fn has_secrets(volume: Object<'_>) -> bool {
    // The passphrase of an encrypted volume is used.
    let requested = read(volume, ATTRIBUTES, Encryption::requested);
    let is_encrypted = requested.map_or(true, |it| it.is_some());
    let mut keys = volume.keys("/spec/csi");
    keys.any(|key| key.ends_with("SecretRef") && !(is_encrypted && key == "nodeStageSecretRef"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{expect, volume};

    #[test]
    fn a_volume_whose_mount_options_belay_refuses_is_named_with_the_option() {
        for (options, part) in [
            (
                json!(["noatime", "norecovery"]),
                "norecovery: without the journal",
            ),
            (json!(["noatime,noload"]), "noload: without the journal"),
            (json!(["errors=panic"]), "errors: panic would"),
            (json!(["ro", "rw"]), "ro: contradicts rw"),
        ] {
            let odd = volume("odd", |it| it["spec"]["mountOptions"] = options);
            let part = format!("odd: mountOptions, {part}");
            expect("NO", "volumes", &part, |all| all.push(odd));
        }
    }

    #[test]
    fn options_that_belay_accepts_or_nobody_reads_are_no_obstacle() {
        for (mode, options) in [
            (
                "Filesystem",
                json!(["noatime", "_netdev,nofail", "discard"]),
            ),
            ("Block", json!(["remount"])),
        ] {
            let other = volume("other", |it| {
                it["spec"]["mountOptions"] = options;
                it["spec"]["volumeMode"] = json!(mode);
            });
            expect("ok", "volumes", "2 can be taken over", |all| {
                all.push(other)
            });
        }
    }

    #[test]
    fn a_class_whose_volumes_would_have_such_an_option_is_a_warning() {
        let part = "fast: mountOptions, loop: it makes";
        expect("warn", "storage classes", part, |all| {
            all[6]["mountOptions"] = json!(["loop"]);
        });
    }
}
