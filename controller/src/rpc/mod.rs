//! The CSI controller service, which decodes requests, calls operations, and encodes responses.
//! Makes no decisions.

mod encode;
mod service;

pub use service::Service;
