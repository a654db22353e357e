//! Finds the messages with secret fields, and generates their implementations of `Debug`. This
//! module must not contain names of messages, except for fields that are described as sensitive
//! only in the text of the CSI specification.

use std::error::Error;
use std::fmt::Write as _;

use protox::prost_reflect::{
    DescriptorPool, ExtensionDescriptor, FieldDescriptor, Kind, MessageDescriptor,
};

const PACKAGE: &str = "csi.v1";
const MARKER: &str = "csi.v1.csi_secret";

/// Fields that may contain credentials although CSI does not mark them.
const UNMARKED: [&str; 5] = [
    // The publish context contains the secrets of format marks on disks.
    "csi.v1.ControllerPublishVolumeResponse.publish_context",
    "csi.v1.NodePublishVolumeRequest.publish_context",
    "csi.v1.NodeStageVolumeRequest.publish_context",
    // The volume context contains service account tokens from the kubelet, if the CSIDriver object
    // requests them.
    "csi.v1.NodePublishVolumeRequest.volume_context",
    // The mount flags contain passwords, with filesystems such as CIFS.
    "csi.v1.VolumeCapability.MountVolume.mount_flags",
];

/// A message, and its fields that must not be printed.
pub(crate) struct SecretHolder {
    message: MessageDescriptor,
    secrets: Vec<FieldDescriptor>,
}

impl SecretHolder {
    /// Returns the name of the message for prost, with a leading dot.
    pub(crate) fn proto_path(&self) -> String {
        format!(".{}", self.message.full_name())
    }
}

/// Returns every CSI message that directly contains a secret field.
///
/// # Errors
/// Fails if the option that marks secret fields, or a field listed in this file, does not exist.
pub(crate) fn secret_holders(pool: &DescriptorPool) -> Result<Vec<SecretHolder>, Box<dyn Error>> {
    let marker = pool
        .get_extension_by_name(MARKER)
        .ok_or("csi.proto must declare csi_secret")?;
    let mut holders = Vec::new();
    for message in pool
        .all_messages()
        .filter(|message| message.package_name() == PACKAGE)
    {
        let secrets: Vec<_> = message
            .fields()
            .filter(|field| is_secret(field, &marker))
            .collect();
        if !secrets.is_empty() {
            holders.push(SecretHolder { message, secrets });
        }
    }
    let hidden = |name: &str| {
        holders
            .iter()
            .flat_map(|holder| &holder.secrets)
            .any(|field| field.full_name() == name)
    };
    if let Some(gone) = UNMARKED.into_iter().find(|name| !hidden(name)) {
        return Err(format!("{gone} is listed as secret but not in csi.proto").into());
    }
    Ok(holders)
}

fn is_secret(field: &FieldDescriptor, marker: &ExtensionDescriptor) -> bool {
    field.options().get_extension(marker).as_bool() == Some(true)
        || UNMARKED.contains(&field.full_name())
}

/// Returns Rust source with one `Debug` implementation per message.
///
/// # Errors
/// Fails if a message has a field of a kind that cannot be printed.
pub(crate) fn debug_impls(holders: &[SecretHolder]) -> Result<String, Box<dyn Error>> {
    let mut source = String::new();
    for SecretHolder { message, secrets } in holders {
        let name = message.name();
        writeln!(
            source,
            "impl ::core::fmt::Debug for {} {{",
            rust_path(message)
        )?;
        writeln!(source, "fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>)")?;
        writeln!(source, "-> ::core::fmt::Result {{ f.debug_struct({name:?})")?;
        for field in message.fields() {
            let name = printable(&field)?;
            if secrets.contains(&field) {
                let hidden = format!("Hidden {{ empty: self.{name}.is_empty() }}");
                writeln!(source, ".field({name:?}, &{hidden})")?;
            } else {
                writeln!(source, ".field({name:?}, &self.{name})")?;
            }
        }
        writeln!(source, ".finish() }} }}")?;
    }
    Ok(source)
}

/// Returns the name of a field, if prost generates exactly one field of the same type from it. A
/// oneof becomes one field with a different name, and an enum becomes a plain number. Messages of
/// CSI 1.13 with secret fields contain no oneof and no enum.
fn printable(field: &FieldDescriptor) -> Result<&str, String> {
    if field.containing_oneof().is_some() || matches!(field.kind(), Kind::Enum(_)) {
        return Err(format!("the redaction cannot print {}", field.full_name()));
    }
    Ok(field.name())
}

/// Returns the path of prost's type: `crate::a::v1::outer::Inner` for `a.v1.Outer.Inner`.
fn rust_path(message: &MessageDescriptor) -> String {
    format!("{}::{}", module_of(message), message.name())
}

fn module_of(message: &MessageDescriptor) -> String {
    match message.parent_message() {
        Some(outer) => format!("{}::{}", module_of(&outer), snake_case(outer.name())),
        None => format!("crate::{}", message.package_name().replace('.', "::")),
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (position, letter) in name.chars().enumerate() {
        if letter.is_ascii_uppercase() && position > 0 {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
