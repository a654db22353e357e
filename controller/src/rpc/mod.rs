//! The CSI controller service: decodes requests, calls operations, encodes responses. Makes no
//! decisions.

mod encode;
mod service;

pub use service::Service;
