//! The services that gRPC itself defines, for tools that know no CSI. Off unless asked for.

mod health;
mod reflection;

pub(crate) use health::GrpcHealth;
pub(crate) use reflection::GrpcReflection;
