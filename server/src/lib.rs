//! What any CSI server needs, and nothing about storage: the socket, the layer around every call,
//! typed requests, failures and their codes, jobs, metrics, health. Knows no cloud and no device.

pub mod attributes;
pub mod call;
pub mod config;
mod grpc;
pub mod health;
pub mod identity;
mod inotify;
pub mod kubelet;
pub mod log;
pub mod metrics;
pub mod readiness;
pub mod request;
pub mod serve;
pub mod services;
pub mod signal;
pub mod transport;
pub mod work;

pub use belay_proto::endpoint;
