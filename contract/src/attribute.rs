//! Attributes of a volume's file (xattr(7)) by which one program tells the other something.

/// On a file of `local`: a detachment was refused, since the node still has the volume bound, and
/// is wanted all the same. The controller sets it with each such refusal and removes it with the
/// next attachment; the agent looks for it.
pub const DETACH: &str = "user.belay.detach";
