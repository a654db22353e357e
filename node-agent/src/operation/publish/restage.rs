//! A publish of a volume that is no longer mounted where it was staged. A kubelet does not stage
//! again what it believes to be staged.

use std::path::Path;

use belay_server::call::{Failure, Kind};
use belay_server::request::{Publish, Secrets, Stage};

use super::{Published, not_staged, publish};
use crate::kernel::{FileKind, Kernel, Stat};
use crate::operation::stage::{Obstacle, stage};
use crate::operation::{Context, Node, Thread};
use crate::work::Lane;

/// Nothing is mounted where the volume was staged. The kubelet removes the directory when it has
/// unstaged the volume, so there must be one.
///
/// Not for a volume whose storage stays on the node after a detach: its controller may be copying
/// it by now, or may delete it.
pub(super) fn unstaged<K: Kernel>(
    node: &Node<K>,
    request: &Publish,
    source: &Path,
) -> Result<Published, Failure> {
    let refused = Err(not_staged(request, source));
    let (Some(staging), true) = (&request.staging, node.may_lose_devices()) else {
        return refused;
    };
    let is_free = |stat: &Stat| stat.kind == FileKind::Directory && !stat.mount_root;
    let staging = node.kernel.look(staging)?.filter(is_free);
    let parent = match request.target.parent() {
        Some(parent) => node.kernel.look(parent)?,
        None => None,
    };
    match staging.is_some() && parent.is_some() {
        true => Ok(Published::WantsStage),
        false => refused,
    }
}

/// Stages the volume, and publishes it: see [`Published::WantsStage`]. Formats nothing, and waits
/// for no disk: unlike a stage, a publish cannot be cancelled.
///
/// # Errors
/// Those of [`stage`] and [`publish`]; `UNAVAILABLE` without the disk; `FAILED_PRECONDITION` if the
/// disk is blank.
pub(crate) fn stage_and_publish<K: Kernel>(
    cx: &Context<'_, K>,
    request: &Publish,
) -> Result<(), Failure> {
    let Some(staging) = &request.staging else {
        return Err(Failure::bug("a stage without a path"));
    };
    let (id, path) = (request.id.as_str(), staging.display());
    let stage_request = Stage {
        id: request.id.clone(),
        publish_context: request.publish_context.clone(),
        staging: staging.clone(),
        capability: request.capability.clone(),
        // No driver's stage reads any.
        secrets: Secrets::default(),
        volume_context: request.volume_context.clone(),
    };
    match stage(cx, &stage_request, Lane::Change) {
        Ok(()) => {}
        Err(Obstacle::NoDisk(missing)) => {
            let message = format!("{missing}; {id} is no longer mounted at {path}");
            return Err(Failure::new(Kind::Unreachable, message));
        }
        Err(Obstacle::NoSlot) => {
            return Err(Failure::precondition(format!(
                "volume {id}: no longer mounted at {path}, where it was staged; its disk must be \
                 checked by e2fsck, read completely, or formatted first, and a publish does none \
                 of these. Check in the cloud that this is the volume's disk, and that nothing has \
                 overwritten it; then delete the pods that use it here, so that it is staged again"
            )));
        }
        Err(obstacle) => return Err(obstacle.into_failure()),
    }
    tracing::warn!(
        id,
        "staged at {path} to publish it: it was no longer mounted there"
    );
    match publish(cx, request, Thread::Pool).map_err(Failure::may_be_running)? {
        Published::Done => Ok(()),
        Published::WantsPool | Published::WantsStage => {
            let message = format!("{path} was unmounted by another process meanwhile; retry");
            Err(Failure::busy(message).may_be_running())
        }
    }
}
