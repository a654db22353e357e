//! The CSI controller service: decodes requests, calls operations, encodes responses. Decides
//! nothing.

mod encode;
mod service;

pub use service::Service;
