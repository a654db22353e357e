//! Changes that storage accepts and does not make.

use belay_server::request::NodeId;
use belay_server::size::Exact;
use std::fmt;

/// A change of a volume that the storage has accepted, and that the volume does not show although
/// it is [`super::Phase::Ready`] again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmade {
    /// Attach to that node.
    Attach(NodeId),
    /// Detach from that node.
    Detach(NodeId),
    /// Expand to so many bytes.
    Expand(u64),
    /// Delete.
    Delete,
}

/// How the volume is without the change.
impl fmt::Display for Unmade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attach(node) => write!(f, "not attached to node {node}"),
            Self::Detach(node) => write!(f, "still attached to node {node}"),
            Self::Expand(bytes) => write!(f, "not expanded to {}", Exact(*bytes)),
            Self::Delete => f.write_str("not deleted"),
        }
    }
}
