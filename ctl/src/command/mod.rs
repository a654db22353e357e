//! The commands, one file or directory per group. A command of a service converts its flags to one
//! request and the response to output, nothing else.

pub(crate) mod bench;
mod blocks;
pub(crate) mod chain;
pub(crate) mod check;
pub(crate) mod controller;
pub(crate) mod doctor;
pub(crate) mod group;
mod health;
pub(crate) mod identity;
mod jobs;
pub(crate) mod locate;
pub(crate) mod ls;
pub(crate) mod manual;
pub(crate) mod node;
mod pages;
pub(crate) mod registration;
pub(crate) mod rpc;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod volume;
