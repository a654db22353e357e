//! Attributes of a volume's file (xattr(7)) by which one program informs the other.

/// On a file of `local`: a detach was refused, since the node still has the volume bound, and is
/// still pending. The controller sets it with each such refusal and removes it with the next
/// attach; the agent watches for it.
pub const DETACH: &str = "user.belay.detach";
