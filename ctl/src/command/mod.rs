//! The commands, one file or directory per service. A command converts its flags to one request and
//! the response to output, nothing else.

pub(crate) mod controller;
mod health;
pub(crate) mod identity;
pub(crate) mod node;
pub(crate) mod registration;
