//! The commands, one file or folder per service. A command turns its flags into one request and
//! the answer into what is printed; it decides nothing else.

pub(crate) mod controller;
mod health;
pub(crate) mod identity;
pub(crate) mod node;
pub(crate) mod registration;
