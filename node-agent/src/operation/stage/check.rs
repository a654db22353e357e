//! Checks an ext4 with e2fsck before it is mounted, if its superblock requests a check.

use std::time::Duration;

use belay_server::call::{Failure, Kind};

use super::spec::MountSpec;
use super::tally::Check;
use crate::filesystem::{Checked, DeviceUnderTest, Unchecked, check};
use crate::kernel::Kernel;
use crate::operation::Context;
use crate::work::Phase;

/// Maximum duration of a check. A check reads all metadata of the filesystem; an hour is sufficient
/// for tens of terabytes on a healthy disk.
const CHECK_DEADLINE: Duration = Duration::from_secs(3600);

/// Runs e2fsck. Returns an error if the ext4 still has errors afterwards, because writes to such a
/// filesystem could destroy the remaining data.
///
/// # Errors
/// Returns `FAILED_PRECONDITION` with the command to run if the ext4 is damaged or could not be
/// checked; `ABORTED` while another volume is being checked, or another process has the device
/// open.
pub(super) fn repair<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    under_test: &DeviceUnderTest<'_, K::Fd>,
) -> Result<(), Failure> {
    let volume = &spec.request.id;
    let only = cx.shared.checks.begin("e2fsck", CHECK_DEADLINE)?;
    let checked = cx.phase(Phase::Repair, || {
        check(&cx.kernel, under_test, CHECK_DEADLINE, &|| only.is_killed())
    });
    let why = match checked {
        Ok(Checked::Clean) => {
            Check::Clean.count();
            tracing::info!(%volume, "e2fsck found no errors in an ext4 that had to be checked");
            return Ok(());
        }
        Ok(Checked::Corrected(messages)) => {
            Check::Corrected.count();
            tracing::warn!(%volume, "e2fsck has corrected errors of the ext4: {messages}");
            return Ok(());
        }
        Ok(Checked::NotInstalled) => {
            Check::NotInstalled.count();
            tracing::warn!(
                %volume,
                "the ext4 is marked for a check and is mounted without one, since e2fsck is not \
                 installed; install e2fsprogs on the node"
            );
            return Ok(());
        }
        Err(Unchecked::Damaged(messages)) => {
            Check::Damaged.count();
            format!("has errors that e2fsck does not correct by itself: {messages}")
        }
        Err(Unchecked::Unable(messages)) => {
            Check::Failed.count();
            format!("is marked for a check, and e2fsck could not check it: {messages}")
        }
        Err(Unchecked::Failed(failure)) => {
            // Do not count a failure if the device was busy: the next attempt runs the check.
            if failure.kind != Kind::Busy {
                Check::Failed.count();
            }
            return Err(failure);
        }
    };
    Err(refused(cx, spec, &why)?)
}

/// Returns the error for an ext4 that the kernel cannot mount, for example because it cannot replay
/// the journal. The operator must repair such a filesystem: `e2fsck -p` deletes an unreadable
/// journal, and with it data that a pod has synced.
pub(super) fn not_replayed<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    failure: Failure,
) -> Failure {
    if failure.kind == Kind::Busy {
        return failure;
    }
    Check::Failed.count();
    let why = format!("is marked for a check, and the kernel could not mount it: {failure}");
    refused(cx, spec, &why).unwrap_or_else(|failure| failure)
}

fn refused<K: Kernel>(
    cx: &Context<'_, K>,
    spec: &MountSpec<'_>,
    why: &str,
) -> Result<Failure, Failure> {
    let volume = &spec.request.id;
    let named = cx.transport.named(&cx.kernel, volume)?;
    Ok(Failure::precondition(format!(
        "volume {volume}: not mounted: its ext4 {why}; delete the pod, wait until the volume is \
         unstaged, run e2fsck -f on {} (docs/health.md), and start the pod again",
        named.display()
    )))
}
