//! The commands, one file per CSI service. A command turns its flags into one request and the
//! answer into what is printed; it decides nothing else.

pub(crate) mod controller;
pub(crate) mod identity;
pub(crate) mod node;
