//! The commands, one file or directory each.

pub(crate) mod bench;
pub(crate) mod chain;
pub(crate) mod doctor;
mod jobs;
pub(crate) mod local;
pub(crate) mod locate;
pub(crate) mod luks;
pub(crate) mod rpc;
pub(crate) mod status;
pub(crate) mod typed;
