//! The staged mount that a publish clones, and the proof that it is the volume's.

use std::path::Path;

use belay_server::call::Failure;
use belay_server::request::Publish;

use super::super::{Node, Thread};
use crate::device::{Intent, Learned, Verdict};
use crate::kernel::{Cause, Dev, Kernel, Stat};

/// The staged mount, opened before it is inspected, so that the mount that was checked is cloned.
/// `None` if nothing is mounted there, and on [`Thread::Only`] if a server may have the answer.
pub(super) fn open_staged<K: Kernel>(
    node: &Node<K>,
    path: &Path,
    thread: Thread,
) -> Result<Option<(K::Fd, Stat)>, Failure> {
    let source = match thread {
        Thread::Only => node.kernel.open_path_cached(path),
        Thread::Pool => node.kernel.open_path(path).map(Some),
    };
    let source = match source {
        Ok(Some(source)) => source,
        Ok(None) => return Ok(None),
        Err(error) if error.cause() == Cause::Missing => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let staged = node.kernel.stat(&source)?;
    Ok(staged.mount_root.then_some((source, staged)))
}

/// Why what is staged there is not the volume's.
pub(super) fn not_proven<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    source: &Path,
    staged: &Stat,
) -> Result<Failure, Failure> {
    let mounts = node.mounts();
    let (_, verdict) = mounts.verdict(&request.id, source, staged, Intent::Use)?;
    Ok(match verdict {
        Verdict::Stale(_) | Verdict::Removed => {
            Failure::precondition(node.transport.replaced(&request.id, source))
        }
        Verdict::Unbound => Failure::precondition(format!(
            "volume {}: lost its device while it is staged (detached by force), and {} shows \
             another one, or none; delete the pods that use it here, so that it is staged again",
            request.id,
            source.display()
        )),
        _ => not_staged(request, source),
    })
}

/// After a restart, only the attachment has the name of some volumes' disks.
pub(super) fn learn<'a, K: Kernel>(
    node: &'a Node<K>,
    request: &Publish,
    source: &Path,
    staged: &Stat,
) -> Option<Learned<'a>> {
    if !node.may_lose_devices() || proven_device(node, request, source, staged).is_some() {
        return None;
    }
    let contexts = (&request.publish_context, &request.volume_context);
    // A mount of a replaced driver may be published by that driver's context.
    let plan = node.transport.read(&request.id, contexts).ok()?;
    Some(node.mounts().learn(&request.id, &plan))
}

/// The device of the staged mount, if that was proven to be the volume's, and not only to be of a
/// disk of this cloud.
pub(super) fn proven_device<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    source: &Path,
    staged: &Stat,
) -> Option<Dev> {
    let proven = node.index.proven(source, staged, &request.id)?;
    let is_strong = node.transport.can_recognise(&request.id);
    is_strong.then_some(proven)
}

/// The kernel does not clone a mount whose root was unlinked.
pub(super) fn nameless(request: &Publish, source: &Path) -> Failure {
    Failure::precondition(format!(
        "staging_target_path: the name in /dev/belay that volume {} is staged by at {} was \
         removed; delete the pods that use it here, so that it is staged again",
        request.id,
        source.display()
    ))
}

pub(super) fn not_staged(request: &Publish, source: &Path) -> Failure {
    Failure::precondition(format!(
        "staging_target_path: volume {} is not mounted at {}; stage it first",
        request.id,
        source.display()
    ))
}
