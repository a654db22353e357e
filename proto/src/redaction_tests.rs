//! Prints messages that contain secrets, and searches the output for the secrets. Messages are
//! filled by reflection from the descriptor set; the table below only maps names to Rust types.

use std::collections::BTreeSet;
use std::fmt::Debug;

use protox::prost_reflect::prost::Message;
use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};

use crate::csi::v1::volume_capability::MountVolume;
use crate::csi::v1::*;

const SECRET: &str = "canary-that-must-not-appear";
const PLAIN: &str = "plain-text-for-all-to-read";

/// Sensitive fields without a marker: secrets of format marks, service account tokens, passwords in
/// mount options.
const UNMARKED: [&str; 5] = [
    "csi.v1.ControllerPublishVolumeResponse.publish_context",
    "csi.v1.NodePublishVolumeRequest.publish_context",
    "csi.v1.NodeStageVolumeRequest.publish_context",
    "csi.v1.NodePublishVolumeRequest.volume_context",
    "csi.v1.VolumeCapability.MountVolume.mount_flags",
];

type Print = fn(&[u8]) -> String;

/// Every message that directly contains a secret field.
const HOLDERS: [(&str, Print); 24] = [
    (
        "ControllerExpandVolumeRequest",
        print::<ControllerExpandVolumeRequest>,
    ),
    (
        "ControllerGetVolumeHealthRequest",
        print::<ControllerGetVolumeHealthRequest>,
    ),
    (
        "ControllerListVolumeHealthRequest",
        print::<ControllerListVolumeHealthRequest>,
    ),
    (
        "ControllerModifyVolumeRequest",
        print::<ControllerModifyVolumeRequest>,
    ),
    (
        "ControllerPublishVolumeRequest",
        print::<ControllerPublishVolumeRequest>,
    ),
    (
        "ControllerPublishVolumeResponse",
        print::<ControllerPublishVolumeResponse>,
    ),
    (
        "ControllerUnpublishVolumeRequest",
        print::<ControllerUnpublishVolumeRequest>,
    ),
    ("CreateSnapshotRequest", print::<CreateSnapshotRequest>),
    (
        "CreateVolumeGroupSnapshotRequest",
        print::<CreateVolumeGroupSnapshotRequest>,
    ),
    ("CreateVolumeRequest", print::<CreateVolumeRequest>),
    ("DeleteSnapshotRequest", print::<DeleteSnapshotRequest>),
    (
        "DeleteVolumeGroupSnapshotRequest",
        print::<DeleteVolumeGroupSnapshotRequest>,
    ),
    ("DeleteVolumeRequest", print::<DeleteVolumeRequest>),
    (
        "GetMetadataAllocatedRequest",
        print::<GetMetadataAllocatedRequest>,
    ),
    ("GetMetadataDeltaRequest", print::<GetMetadataDeltaRequest>),
    ("GetSnapshotRequest", print::<GetSnapshotRequest>),
    (
        "GetVolumeGroupSnapshotRequest",
        print::<GetVolumeGroupSnapshotRequest>,
    ),
    ("ListSnapshotsRequest", print::<ListSnapshotsRequest>),
    ("NodeExpandVolumeRequest", print::<NodeExpandVolumeRequest>),
    (
        "NodeGetStorageHealthRequest",
        print::<NodeGetStorageHealthRequest>,
    ),
    (
        "NodePublishVolumeRequest",
        print::<NodePublishVolumeRequest>,
    ),
    ("NodeStageVolumeRequest", print::<NodeStageVolumeRequest>),
    (
        "ValidateVolumeCapabilitiesRequest",
        print::<ValidateVolumeCapabilitiesRequest>,
    ),
    ("VolumeCapability.MountVolume", print::<MountVolume>),
];

#[test]
fn every_message_with_a_secret_field_is_in_the_table() {
    let listed: BTreeSet<String> = HOLDERS
        .iter()
        .map(|(name, _)| format!("csi.v1.{name}"))
        .collect();
    let marked: BTreeSet<String> = pool()
        .all_messages()
        .filter(|message| message.fields().any(|field| is_secret(&field)))
        .map(|message| message.full_name().to_owned())
        .collect();
    assert_eq!(listed, marked);
}

#[test]
fn debug_shows_every_field_but_no_secret() {
    for (name, print) in HOLDERS {
        let message = message(name);
        let bytes = filled(&message).encode_to_vec();
        assert!(contains(&bytes, SECRET), "{name}: no secret to hide");

        let shown = print(&bytes);
        assert!(!shown.contains(SECRET), "{name} shows it: {shown}");
        assert_eq!(
            contains(&bytes, PLAIN),
            shown.contains(PLAIN),
            "{name}: {shown}"
        );
        for field in message.fields() {
            let hidden = shown.contains(&format!("{}: <secret>", field.name()));
            assert_eq!(hidden, is_secret(&field), "{}: {shown}", field.full_name());
            assert!(
                shown.contains(&format!("{}: ", field.name())),
                "{}",
                field.full_name()
            );
        }
    }
}

#[test]
fn debug_shows_that_there_is_no_secret() {
    for (name, print) in HOLDERS {
        let shown = print(&[]);
        for secret in message(name).fields().filter(is_secret) {
            let empty = format!("{}: <none>", secret.name());
            assert!(shown.contains(&empty), "{name}: {shown}");
        }
    }
}

#[test]
fn debug_of_a_message_around_it_hides_the_secret_too() {
    let bytes = filled(&message("VolumeCapability")).encode_to_vec();
    let shown = print::<VolumeCapability>(&bytes);
    assert!(shown.contains("mount_flags: <secret>"), "{shown}");
    assert!(!shown.contains(SECRET), "{shown}");
}

/// Decodes the bytes as an `M`, and prints the message in compact and in pretty form.
fn print<M: Message + Default + Debug>(bytes: &[u8]) -> String {
    let message = M::decode(bytes).expect("encoded by the same descriptor");
    format!("{message:?}\n{message:#?}")
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(crate::FILE_DESCRIPTOR_SET).expect("written by the build")
}

fn message(name: &str) -> MessageDescriptor {
    let name = format!("csi.v1.{name}");
    pool()
        .get_message_by_name(&name)
        .unwrap_or_else(|| panic!("{name} is not in csi.proto"))
}

fn is_secret(field: &FieldDescriptor) -> bool {
    let marker = field
        .parent_pool()
        .get_extension_by_name("csi.v1.csi_secret")
        .expect("csi.proto declares the marker");
    field.options().get_extension(&marker).as_bool() == Some(true)
        || UNMARKED.contains(&field.full_name())
}

/// Returns the message with every field set, recursively.
fn filled(descriptor: &MessageDescriptor) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        message.set_field(&field, any_value(&field));
    }
    message
}

fn any_value(field: &FieldDescriptor) -> Value {
    let text = if is_secret(field) { SECRET } else { PLAIN };
    if field.is_map() {
        return Value::Map([(MapKey::String(text.into()), Value::String(text.into()))].into());
    }
    let value = match field.kind() {
        Kind::String => Value::String(text.into()),
        Kind::Message(message) => Value::Message(filled(&message)),
        Kind::Bool => Value::Bool(true),
        Kind::Enum(_) => Value::EnumNumber(1),
        Kind::Int32 => Value::I32(7),
        Kind::Int64 => Value::I64(7),
        other => panic!("{}: no value for {other:?}", field.full_name()),
    };
    if field.is_list() {
        Value::List(vec![value])
    } else {
        value
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}
