//! What the controller of a driver and the node agent agree on, each word of it in one place: the
//! flags that both have, where volumes are, what an attachment says, the marks at a volume's file,
//! the reasons of complaints. Knows no cloud and no device.

pub mod attribute;
pub mod drivers;
pub mod flags;
pub mod place;
pub mod publish_context;
pub mod reason;
