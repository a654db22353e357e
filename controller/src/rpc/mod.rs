//! The CSI controller service: decode, operate, encode. Decides nothing.

mod encode;
mod service;

pub use service::Service;
