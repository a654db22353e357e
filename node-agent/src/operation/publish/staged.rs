//! Opens the staged mount that NodePublishVolume clones, and explains why a mount is not the
//! volume's.

use std::path::Path;

use belay_contract::publish_context::PublishContext;
use belay_server::call::Failure;
use belay_server::request::Publish;

use super::super::{Node, Thread};
use crate::device::{Intent, Verdict};
use crate::kernel::{Cause, Kernel, Stat};

/// Opens the staged mount and returns its descriptor and its stat, so that exactly the inspected
/// mount is cloned. Returns `None` if nothing is mounted at the path. On the event loop
/// ([`Thread::Only`]), also returns `None` if the path lookup may have to query a server.
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

/// Returns the error for a mount at the staging path that is not proven to be the volume's.
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

/// Returns the publish context if the staged mount is not yet proven to be the volume's, because
/// some disks can be identified only by this context. Returns `None` if the mount is proven to be
/// the volume's, if the driver's volumes are not disks, or if the context is invalid.
pub(super) fn said<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    source: &Path,
    staged: &Stat,
) -> Option<PublishContext> {
    let is_proven = || node.index.proven(source, staged, &request.id).is_some();
    if !node.may_lose_devices() || is_proven() {
        return None;
    }
    let contexts = (&request.publish_context, &request.volume_context);
    // Ignore an invalid context: after a change of drivers, a volume that the old driver has staged
    // may be published with the old driver's context.
    node.transport.read(&request.id, contexts).ok()
}

/// Returns the error for a raw device whose name in `/dev/belay` was unlinked: the kernel does not
/// clone a mount whose root was unlinked.
pub(super) fn nameless(request: &Publish, source: &Path) -> Failure {
    Failure::precondition(format!(
        "staging_target_path: the name in /dev/belay that volume {} is staged by at {} was \
         removed; delete the pods that use it here, so that it is staged again",
        request.id,
        source.display()
    ))
}

/// Returns the error for a staging path where nothing is mounted. The message says what to do,
/// because a kubelet that considers the volume staged does not call NodeStageVolume again while a
/// pod on the node uses the volume.
pub(super) fn unmounted<K: Kernel>(node: &Node<K>, request: &Publish, source: &Path) -> Failure {
    let failure = not_staged(request, source);
    match node.may_lose_devices() {
        true => Failure::precondition(format!(
            "{failure} (if its disk was removed: stop all pods that use it on this node at the \
             same time, so that the kubelet stages it again)"
        )),
        false => failure,
    }
}

pub(super) fn not_staged(request: &Publish, source: &Path) -> Failure {
    Failure::precondition(format!(
        "staging_target_path: volume {id} is not mounted at {}; stage it first; `belayctl where \
         {id}` shows where it is staged",
        source.display(),
        id = request.id
    ))
}
