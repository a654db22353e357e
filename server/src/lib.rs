//! The parts of a CSI server that do not depend on the storage: the socket, the layer around every
//! call, typed requests, failures and their codes, jobs, metrics and health. This crate does not
//! depend on clouds or devices.

pub mod call;
pub mod config;
pub mod facts;
pub mod file;
mod grpc;
pub mod health;
pub mod helper;
pub mod identity;
pub mod inotify;
pub mod kubelet;
pub mod lock;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod process;
pub mod readiness;
pub mod request;
pub mod serve;
pub mod services;
pub mod size;
mod status;
pub mod transport;
pub mod work;

pub use belay_proto::endpoint;
