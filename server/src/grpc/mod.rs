//! gRPC's own services, for tools that do not know CSI. Off by default.

mod health;
mod reflection;

pub(crate) use health::GrpcHealth;
pub(crate) use reflection::GrpcReflection;
