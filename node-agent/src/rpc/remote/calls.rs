//! Runs calls as jobs. Each job alternates between a step of an operation on the event loop and a
//! system call in a helper process.

use std::sync::Arc;
use std::time::Duration;

use belay_contract::reason::volume;
use belay_server::call::{Failure, Rpc};
use belay_server::health::Conditions;
use belay_server::helper::Unanswered;
use belay_server::request::{NodeVolumeHealth, Publish, Stats, Unpublish, VolumeId};
use belay_server::work::{Key, fingerprint};

use super::RemoteService;
use crate::kernel::{Answer, Kernel, Usage};
use crate::operation::remote::{self, HelperRequest, RemoteNode, Step, of_volume};
use crate::operation::{VolumeStats, VolumeUsage};
use crate::work::{Class, Replied, Servers, needs_detach};

/// Maximum duration of a mount, including the wait for a slot. This time is shorter than the
/// caller's deadline.
const MOUNT_MAX: Duration = Duration::from_secs(60);
/// Maximum duration of an unmount. After this time, the mount is detached (`MNT_DETACH`).
const UNMOUNT_MAX: Duration = Duration::from_secs(10);
const DETACH_MAX: Duration = Duration::from_secs(10);
/// Maximum time that a server may take to report the usage of a volume.
const USAGE_MAX: Duration = Duration::from_secs(5);
/// Maximum number of mounts on one path that a call unmounts. Belay never stacks mounts, but
/// another program may have stacked some.
const STACKED_MAX: u32 = 16;

/// The result of a job.
#[derive(Clone, Debug)]
pub(super) enum Done {
    /// The volume was changed; there is no other result.
    Changed,
    /// The usage that the server reported.
    Usage(Usage),
    /// The server has not reported the usage; contains the reason.
    Unanswered(Failure),
}

/// The result of a query for the usage of a volume.
enum Queried {
    Usage(Usage),
    /// The server has not responded to the query; contains the reason.
    Unanswered(Failure),
}

/// Runs the steps of a CSI call and the helper processes that it needs.
struct Asking<K: Kernel> {
    node: Arc<RemoteNode<K>>,
    servers: Arc<Servers>,
}

impl<K: Kernel> Asking<K> {
    async fn ask(
        &self,
        volume: &VolumeId,
        question: &HelperRequest,
        within: Duration,
    ) -> Result<Replied<K>, Unanswered> {
        let HelperRequest { server, call } = question;
        let asked = self
            .servers
            .ask(&self.node.kernel, server, call, within)
            .await;
        asked.map_err(|unanswered| Unanswered {
            failure: of_volume(volume, unanswered.failure),
            ..unanswered
        })
    }

    async fn publish(&self, request: Publish) -> Result<Done, Failure> {
        let Step::Ask(question) = remote::publish(&self.node, &request)? else {
            return Ok(Done::Changed);
        };
        let replied = self.ask(&request.id, &question, MOUNT_MAX).await;
        let replied = replied.map_err(|unanswered| unanswered.failure)?;
        let Answer::Mount(mount) = &replied.answer else {
            return Err(mixed_up());
        };
        remote::place(&self.node, &request, mount)?;
        Ok(Done::Changed)
    }

    /// Unpublishes a volume. Each step reads the mounts from the kernel again, whatever the
    /// previous helper process has returned.
    async fn unpublish(&self, request: Unpublish) -> Result<Done, Failure> {
        let mut refused = None;
        for _ in 0..STACKED_MAX {
            let question = match remote::unpublish(&self.node, &request, refused.as_ref())? {
                Step::Done => return Ok(Done::Changed),
                Step::Ask(question) => question,
            };
            let within = refused.as_ref().map_or(UNMOUNT_MAX, |_| DETACH_MAX);
            let Err(unanswered) = self.ask(&request.id, &question, within).await else {
                refused = None;
                continue;
            };
            if refused.is_none() && needs_detach(&unanswered) {
                refused = Some(unanswered.failure);
                continue;
            }
            // The helper process may have unmounted the volume although it reported a failure.
            return match remote::unpublish(&self.node, &request, refused.as_ref())? {
                Step::Done => Ok(Done::Changed),
                Step::Ask(_) if refused.is_some() => Err(unanswered.failure.may_be_running()),
                Step::Ask(_) => Err(unanswered.failure),
            };
        }
        Err(Failure::precondition(format!(
            "target_path: more than {STACKED_MAX} mounts are stacked on {}; unmount them by hand",
            request.target.display()
        )))
    }

    async fn usage(&self, id: &VolumeId, path: &std::path::Path) -> Result<Done, Failure> {
        let (seen, question) = remote::mounted(&self.node, id, path)?;
        let asked = self.ask(id, &question, USAGE_MAX).await;
        // If the volume was unmounted meanwhile, return `NOT_FOUND` instead of the failure of the
        // query.
        remote::still_mounted(&self.node, id, path, &seen)?;
        match asked {
            Ok(replied) => match replied.answer {
                Answer::Usage(usage) => Ok(Done::Usage(usage)),
                _ => Err(mixed_up()),
            },
            Err(unanswered) if unanswered.by_server => Ok(Done::Unanswered(unanswered.failure)),
            Err(unanswered) => Err(unanswered.failure),
        }
    }
}

impl<K: Kernel> RemoteService<K> {
    fn asking(&self) -> Result<Asking<K>, Failure> {
        self.refuse_lacking()?;
        Ok(Asking {
            node: Arc::clone(&self.node),
            servers: Arc::clone(&self.servers),
        })
    }

    pub(super) async fn publish(&self, publish: Publish) -> Result<(), Failure> {
        let mark = fingerprint(&(
            &publish.id,
            &publish.target,
            &publish.capability,
            publish.read_only,
            &publish.volume_context,
        ));
        let (id, asking) = (publish.id.clone(), self.asking()?);
        let job = |_| async move { asking.publish(publish).await };
        let rpc = Rpc::NodePublishVolume;
        self.jobs.run(change(&id), rpc, mark, job).await?;
        self.volumes.staged(&id);
        Ok(())
    }

    pub(super) async fn unpublish(&self, unpublish: Unpublish) -> Result<(), Failure> {
        let mark = fingerprint(&(&unpublish.id, &unpublish.target));
        let (id, asking) = (unpublish.id.clone(), self.asking()?);
        let job = |_| async move { asking.unpublish(unpublish).await };
        let rpc = Rpc::NodeUnpublishVolume;
        self.jobs.run(change(&id), rpc, mark, job).await?;
        self.reads.forget(&id);
        if !self.node.has_targets(&id) {
            self.volumes.unstaged(&id);
        }
        Ok(())
    }

    pub(super) async fn stats(&self, stats: Stats) -> Result<VolumeStats, Failure> {
        let (id, path) = (stats.id, stats.volume_path);
        let stats = match self.usage(&id, &path, Rpc::NodeGetVolumeStats).await? {
            Queried::Usage(usage) => {
                let conditions = judge(&usage);
                let usage = VolumeUsage::Filesystem(usage);
                self.reads.keep(&id, &path, usage);
                VolumeStats { usage, conditions }
            }
            Queried::Unanswered(failure) => {
                let old = self.reads.old(&id, &path, inaccessible(&failure));
                old.ok_or(failure)?
            }
        };
        self.volumes.mounted(&id, &stats.conditions);
        Ok(stats)
    }

    pub(super) async fn health(&self, health: NodeVolumeHealth) -> Result<Conditions, Failure> {
        let id = health.id;
        let Some(path) = health.target.filter(|path| path.is_absolute()) else {
            // Without a target path, the server cannot be queried, so the health is unknown.
            return Ok(Conditions::default());
        };
        let conditions = match self.usage(&id, &path, Rpc::NodeGetVolumeHealth).await? {
            Queried::Usage(usage) => judge(&usage),
            Queried::Unanswered(failure) => inaccessible(&failure),
        };
        self.volumes.checked(&id, &conditions);
        Ok(conditions)
    }

    /// Queries the server for the usage of a volume, for the statistics or to check that the server
    /// responds. Concurrent equal calls share one helper process.
    async fn usage(
        &self,
        id: &VolumeId,
        path: &std::path::Path,
        rpc: Rpc,
    ) -> Result<Queried, Failure> {
        let class = match rpc {
            Rpc::NodeGetVolumeHealth => Class::Health,
            _ => Class::Stats,
        };
        let key = Key::new(class, id.as_str()).at(path.display());
        let (asking, volume, at) = (self.asking()?, id.clone(), path.to_owned());
        let job = |_| async move { asking.usage(&volume, &at).await };
        match self.jobs.run(key, rpc, 0, job).await? {
            Done::Usage(usage) => Ok(Queried::Usage(usage)),
            Done::Unanswered(failure) => Ok(Queried::Unanswered(failure)),
            Done::Changed => Err(mixed_up()),
        }
    }
}

/// Returns the health of a volume with this usage, as its server reports it.
fn judge(usage: &Usage) -> Conditions {
    let mut conditions = Conditions::default();
    let lack = match usage.available_bytes == 0 {
        true => "no space",
        false if usage.total_inodes > 0 && usage.free_inodes == 0 => "no inodes",
        false => return conditions,
    };
    let message = format!(
        "{lack} left on the server: writes fail with ENOSPC or EDQUOT; delete files, or enlarge \
         the filesystem or the quota"
    );
    conditions.add(volume::SHARE_FULL, message);
    conditions
}

/// Returns the health reason of a volume whose server has not responded.
fn inaccessible(failure: &Failure) -> Conditions {
    let mut conditions = Conditions::default();
    let message = format!(
        "{}; check the server and the network; the volume recovers when the server answers",
        failure.message
    );
    conditions.add(volume::SERVER_UNREACHABLE, message);
    conditions
}

fn change(id: &VolumeId) -> Key<Class> {
    Key::new(Class::Change, id.as_str())
}

fn mixed_up() -> Failure {
    Failure::bug("a helper process has answered another call")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_without_bytes_or_inodes_is_full() {
        for (available_bytes, total_inodes, free_inodes, is_full) in [
            (4096, 10, 1, false),
            // The server allocates inodes as needed.
            (4096, 0, 0, false),
            (0, 10, 1, true),
            (4096, 10, 0, true),
        ] {
            let conditions = judge(&Usage {
                total_bytes: 1 << 30,
                used_bytes: 0,
                available_bytes,
                total_inodes,
                used_inodes: 0,
                free_inodes,
            });
            let mut reasons = conditions.iter().map(|it| it.reason);
            assert_eq!(reasons.any(|it| it == volume::SHARE_FULL), is_full);
        }
    }
}
