//! What any CSI server needs, and nothing about storage: the socket, the layer around every call,
//! typed requests, failures and their codes, jobs, metrics, health. Knows no cloud and no device.

mod acceptor;
pub mod attributes;
mod authority;
pub mod call;
pub mod code_table;
pub mod config;
pub mod failure;
mod grpc_health;
mod grpc_reflection;
pub mod health;
mod http;
pub mod identity;
mod inotify;
pub mod jobs;
pub mod layer;
pub mod log;
pub mod metrics;
pub mod place;
pub mod readiness;
pub mod registration;
pub mod request;
pub mod rpc;
pub mod serve;
pub mod services;
pub mod signal;
pub mod socket;

pub use belay_proto::endpoint;
