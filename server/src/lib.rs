//! What any CSI server needs, and nothing about storage: the socket, the layer around every call,
//! typed requests, failures and their codes, jobs, metrics, health. Knows no cloud and no device.

pub mod call;
pub mod code_table;
pub mod endpoint;
pub mod failure;
pub mod jobs;
pub mod request;
pub mod rpc;
