//! The protocols: CSI 1.13 and the kubelet's plugin registration, generated from the two `.proto`
//! files in this crate, and code around them: endpoints, names of codes, connecting as a client.
//! Does not decide what a message means.
//!
//! `{:?}` of any message is safe to log: a field that may carry a secret shows as `<secret>`, or
//! as `<none>` when it is empty.

pub mod code;
#[cfg(feature = "client")]
pub mod dial;
pub mod endpoint;
mod redact;

/// The Container Storage Interface.
pub mod csi {
    /// Version 1 of the protocol: all of 1.13, and the older `VolumeCondition`.
    #[expect(
        clippy::allow_attributes,
        clippy::too_many_lines,
        reason = "generated so by tonic"
    )]
    pub mod v1 {
        tonic::include_proto!("csi.v1");
    }
}

/// How a plugin registers with the kubelet.
#[expect(
    clippy::allow_attributes,
    clippy::too_many_lines,
    reason = "generated so by tonic"
)]
pub mod pluginregistration {
    tonic::include_proto!("pluginregistration");
}

/// The encoded `google.protobuf.FileDescriptorSet` of both files and their imports, without
/// comments and source positions.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
