//! Turns the two `.proto` files into Rust: messages, services, the encoded descriptor set, and a
//! `Debug` without secrets for each message that has any. Knows nothing of what the messages mean.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use protox::prost_reflect::{DescriptorPool, ExtensionDescriptor, FieldDescriptor};
use protox::prost_reflect::{Kind, MessageDescriptor};

const PROTOS: [&str; 2] = ["csi.proto", "pluginregistration.proto"];
const PACKAGE: &str = "csi.v1";
const SECRET_MARKER: &str = "csi.v1.csi_secret";

/// Fields that may carry credentials (a CIFS password, say) although CSI does not mark them.
const UNMARKED_SECRETS: [&str; 1] = ["csi.v1.VolumeCapability.MountVolume.mount_flags"];

fn main() -> Result<(), Box<dyn Error>> {
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    for file in PROTOS {
        println!("cargo::rerun-if-changed={file}");
    }

    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_imports(true);
    compiler.open_files(PROTOS)?;
    // Without source info: comments and positions would only be ballast in the binaries.
    fs::write(
        out_dir.join("descriptors.bin"),
        compiler.encode_file_descriptor_set(),
    )?;

    let holders = secret_holders(&compiler.descriptor_pool())?;
    fs::write(out_dir.join("redacted.rs"), debug_impls(&holders)?)?;

    // With source info: here the comments become the documentation of the generated items.
    compiler.include_source_info(true);
    tonic_prost_build::configure()
        .build_transport(false)
        .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
        // A call that a driver does not offer is answered UNIMPLEMENTED without a line of code.
        .generate_default_stubs(true)
        .skip_debug(
            holders
                .iter()
                .map(|holder| format!(".{}", holder.message.full_name())),
        )
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

/// A message and those of its fields that must not be printed.
struct SecretHolder {
    message: MessageDescriptor,
    secrets: Vec<FieldDescriptor>,
}

/// Every message of CSI that has a secret field of its own.
fn secret_holders(pool: &DescriptorPool) -> Result<Vec<SecretHolder>, Box<dyn Error>> {
    let marker = pool
        .get_extension_by_name(SECRET_MARKER)
        .ok_or("csi.proto lost csi_secret")?;
    let holders: Vec<SecretHolder> = pool
        .all_messages()
        .filter(|message| message.package_name() == PACKAGE)
        .map(|message| SecretHolder {
            secrets: message
                .fields()
                .filter(|field| is_secret(field, &marker))
                .collect(),
            message,
        })
        .filter(|holder| !holder.secrets.is_empty())
        .collect();

    let found = |name: &str| {
        holders
            .iter()
            .flat_map(|h| &h.secrets)
            .any(|f| f.full_name() == name)
    };
    if let Some(gone) = UNMARKED_SECRETS.iter().find(|name| !found(name)) {
        return Err(format!("{gone} is listed as secret but not in csi.proto").into());
    }
    Ok(holders)
}

fn is_secret(field: &FieldDescriptor, marker: &ExtensionDescriptor) -> bool {
    field.options().get_extension(marker).as_bool() == Some(true)
        || UNMARKED_SECRETS.contains(&field.full_name())
}

/// Rust source with one `Debug` a message.
fn debug_impls(holders: &[SecretHolder]) -> Result<String, Box<dyn Error>> {
    let mut source = String::new();
    for SecretHolder { message, secrets } in holders {
        // A oneof is one Rust field, and an enum is an i32: neither occurs beside a secret so far.
        let plain = |f: &FieldDescriptor| {
            f.containing_oneof().is_none() && !matches!(f.kind(), Kind::Enum(_))
        };
        if let Some(field) = message.fields().find(|field| !plain(field)) {
            return Err(format!("{}: cannot print such a field yet", field.full_name()).into());
        }
        writeln!(
            source,
            "impl ::core::fmt::Debug for {} {{",
            rust_path(message)
        )?;
        writeln!(source, "fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>)")?;
        writeln!(source, "-> ::core::fmt::Result {{")?;
        writeln!(source, "f.debug_struct({:?})", message.name())?;
        for field in message.fields() {
            let name = field.name();
            let value = if secrets.contains(&field) {
                format!("Hidden {{ empty: self.{name}.is_empty() }}")
            } else {
                format!("self.{name}")
            };
            writeln!(source, ".field({name:?}, &{value})")?;
        }
        writeln!(source, ".finish() }} }}")?;
    }
    Ok(source)
}

/// Where prost puts the message: `a.v1.Outer.Inner` becomes `crate::a::v1::outer::Inner`.
fn rust_path(message: &MessageDescriptor) -> String {
    let mut path = format!("crate::{}", message.package_name().replace('.', "::"));
    let mut outer = Vec::new();
    let mut parent = message.parent_message();
    while let Some(message) = parent {
        outer.push(snake_case(message.name()));
        parent = message.parent_message();
    }
    for module in outer.iter().rev() {
        path = format!("{path}::{module}");
    }
    format!("{path}::{}", message.name())
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
