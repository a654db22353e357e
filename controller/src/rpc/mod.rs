//! The CSI controller service: decode, operate, encode. Decides nothing.

pub mod capabilities;
mod encode;
mod service;

pub use service::Service;
