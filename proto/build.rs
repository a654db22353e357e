//! Compiles the two `.proto` files to messages, services and the encoded descriptor set. For each
//! message with secret fields, generates an implementation of `Debug` that omits the secrets. The
//! script does not depend on the meaning of the messages.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

#[path = "build/redaction.rs"]
mod redaction;

const PROTOS: [&str; 2] = ["csi.proto", "pluginregistration.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    for file in PROTOS {
        println!("cargo::rerun-if-changed={file}");
    }

    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_imports(true);
    compiler.open_files(PROTOS)?;
    // Omit the source info (comments and source positions), since it would only enlarge the
    // binaries.
    let descriptors = compiler.encode_file_descriptor_set();
    fs::write(out_dir.join("descriptors.bin"), descriptors)?;

    let holders = redaction::secret_holders(&compiler.descriptor_pool())?;
    let impls = redaction::debug_impls(&holders)?;
    fs::write(out_dir.join("redacted.rs"), impls)?;

    // Include the source info, since the comments become the documentation of the generated items.
    compiler.include_source_info(true);
    tonic_prost_build::configure()
        .build_transport(false)
        // With default stubs, calls that a driver does not implement return UNIMPLEMENTED.
        .generate_default_stubs(true)
        .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
        .skip_debug(holders.iter().map(redaction::SecretHolder::proto_path))
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
