//! Creates, deletes, gets and lists snapshots.

use super::clouds::Cloud;
use super::{Operations, Subject, lookup, support};
use crate::backend::{
    Backend, Progress, Snapshot, SnapshotOrder, SnapshotPage, Snapshots, answered,
};
use belay_contract::drivers::ParameterPolicy;
use belay_contract::topology::Topology;
use belay_server::call::{Certainty, Failure, Kind, Rpc};
use belay_server::request::{
    CreateSnapshot, DeleteSnapshot, GetSnapshot, ListSnapshots, SnapshotId,
};
use belay_server::work::{Key, fingerprint};
use std::sync::Arc;

/// The annotation in which csi-snapshotter records that a call may have created a snapshot.
const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";

impl Operations {
    /// Creates the snapshot, or returns the existing snapshot with the name, and the topology to
    /// which the snapshot is bound, if any. The returned snapshot may not be ready yet; the caller
    /// repeats the call until the snapshot is ready.
    ///
    /// # Errors
    /// Returns `NotFound` if the volume does not exist, `Precondition` if no snapshot can be
    /// created now, and `Busy` while the volume is being attached, detached, expanded or deleted.
    /// Returns `Incompatible` if the name belongs to a snapshot of another volume, and `Quota` if
    /// there is no free space, or if the requisite topology excludes the snapshot. Returns a
    /// non-final `Precondition` if the snapshot with this name is damaged, and the errors of
    /// [`lookup::ready`] for this snapshot.
    pub async fn cut(
        &self,
        request: CreateSnapshot,
    ) -> Result<(Snapshot, Option<Arc<Topology>>), Failure> {
        let cloud = self.cloud(&request.secrets)?;
        let known = of(self.backend())?.snapshot_parameters();
        let refuse = match self.rules.profile.parameters {
            ParameterPolicy::RefuseInAnyCase => support::refuse_unknown_of_any_case,
            ParameterPolicy::Refuse | ParameterPolicy::Ignore => support::refuse_unknown,
        };
        refuse("parameters", &request.parameters, known)?;
        let topology = self.snapshot_topology(cloud, &request).await?;
        let same = fingerprint(&(&request.source, &request.parameters, &request.secrets));
        let order = SnapshotOrder {
            name: request.name.clone(),
            attempt: cloud.engine.attempt(),
            source: request.source.clone(),
            parameters: request.parameters.clone(),
            secrets: request.secrets,
        };
        let (backend, engine) = (Arc::clone(&cloud.backend), Arc::clone(&cloud.engine));
        let jobs = self.jobs.clone();
        let job = async move {
            let snapshots = of(backend.as_ref())?;
            let made = async {
                // Share the volume's key only during requests, and not while the storage is copying
                // data, since the storage itself refuses conflicting changes of the volume.
                let volume = || Key::new(Subject::Volume, order.source.as_str());
                let basis = {
                    let _share = jobs.share(volume(), Rpc::CreateSnapshot)?;
                    snapshots.basis(order.clone()).await?
                };
                if let Some(basis) = basis {
                    answered::snapshot(backend.as_ref(), snapshots, &order, &basis)?;
                    let basis = engine.snapshot_at_rest(basis, &order.secrets).await;
                    lookup::ready(basis.map_err(Failure::nothing_happened)?)?;
                }
                let _share = jobs.share(volume(), Rpc::CreateSnapshot)?;
                let made = snapshots.cut(order.clone()).await?;
                answered::snapshot(backend.as_ref(), snapshots, &order, &made)?;
                Ok(made)
            };
            let snapshot = engine.snapshot_of(&order, made).await?;
            let snapshot = lookup::ready(snapshot)?;
            if !snapshot.ready
                && let Some(damage) = &snapshot.damage
            {
                return Err(damaged(&snapshot.id, damage));
            }
            if snapshot.ready {
                let dropped = snapshots.drop_basis(order).await;
                dropped.map_err(Failure::may_be_running)?;
            }
            Ok(snapshot)
        };
        let (rpc, name) = (Rpc::CreateSnapshot, request.name.as_str());
        let call = (Subject::NewSnapshot, name, rpc, same);
        let snapshot = self.run(cloud, call, job).await;
        let snapshot = snapshot.map_err(|failure| with_advice(rpc, failure))?;
        if snapshot.source == request.source {
            return Ok((snapshot, topology));
        }
        Err(Failure::incompatible(format!(
            "name {name:?}: belongs to snapshot {} of volume {}, not of volume {}",
            snapshot.id, snapshot.source, request.source
        )))
    }

    /// Returns the topology of the source volume if snapshots stay on the node of their volume.
    /// Returns `None` for other drivers, without topology, and if the volume no longer exists.
    ///
    /// # Errors
    /// Returns `Quota` if the requisite topology of the request excludes this topology.
    pub(super) async fn snapshot_topology(
        &self,
        cloud: &Cloud,
        request: &CreateSnapshot,
    ) -> Result<Option<Arc<Topology>>, Failure> {
        if !self.rules.profile.place_is_node {
            return Ok(None);
        }
        let CreateSnapshot {
            source, secrets, ..
        } = request;
        let volume = cloud.backend.get(source.clone(), secrets.clone());
        let volume = lookup::in_time(&format!("volume {source}"), volume).await;
        let volume = volume.map_err(|failure| cloud.failed(failure))?;
        let topology = volume.and_then(|volume| volume.place);
        match (&topology, &request.topology) {
            (Some(topology), Some(asked)) if !topology.satisfies(asked) => {
                let message = format!(
                    "accessibility_requirements.requisite: the snapshot can only be restored on \
                     the node of volume {source}, {}",
                    topology.describe()
                );
                Err(with_advice(Rpc::CreateSnapshot, Failure::quota(message)))
            }
            _ => Ok(topology),
        }
    }

    /// Deletes the snapshot; succeeds if the snapshot does not exist.
    ///
    /// # Errors
    /// Returns `Precondition` if the snapshot is in use and was not changed, or if its deletion
    /// failed. Returns `Busy` if the snapshot still exists.
    pub async fn discard(&self, request: DeleteSnapshot) -> Result<(), Failure> {
        of(self.backend())?;
        let cloud = self.cloud(&request.secrets)?;
        let (clouds, here) = (Arc::clone(&self.clouds), cloud.clone());
        let DeleteSnapshot { id, secrets } = request;
        let (same, snapshot) = (fingerprint(&secrets), id.clone());
        let job = async move {
            let snapshots = of(here.backend.as_ref())?;
            let discarded = snapshots.discard(snapshot.clone(), secrets.clone());
            let left = match discarded.await? {
                Progress::Done(()) => {
                    clouds.no_snapshot_elsewhere(&here, &snapshot).await?;
                    None
                }
                Progress::Begun => {
                    let engine = &here.engine;
                    engine.snapshot_settled_soon(&snapshot, &secrets).await?
                }
            };
            match left.map(lookup::ready).transpose()? {
                None => Ok(()),
                Some(_) => Err(not_deleted(&snapshot)),
            }
        };
        let rpc = Rpc::DeleteSnapshot;
        let discarded = self.run(cloud, (Subject::Snapshot, id.as_str(), rpc, same), job);
        discarded.await.map_err(|failure| with_advice(rpc, failure))
    }

    /// Returns the snapshot.
    ///
    /// # Errors
    /// Returns `NotFound` if the snapshot does not exist.
    pub async fn snapshot(&self, request: GetSnapshot) -> Result<Snapshot, Failure> {
        of(self.backend())?;
        let cloud = self.cloud(&request.secrets)?;
        let snapshots = of(cloud.backend.as_ref())?;
        let asked = snapshots.snapshot(request.id.clone(), request.secrets);
        let snapshot = lookup::in_time(&format!("snapshot {}", request.id), asked).await;
        let snapshot = snapshot.map_err(|failure| cloud.failed(failure))?;
        snapshot.ok_or_else(|| not_found(&request.id))
    }

    /// Returns a page of snapshots; the page is empty if no snapshot matches the filter.
    ///
    /// # Errors
    /// Returns `BadToken` for an unknown token.
    pub async fn list_snapshots(&self, request: ListSnapshots) -> Result<SnapshotPage, Failure> {
        of(self.backend())?;
        let ListSnapshots {
            max_entries,
            starting_token,
            source,
            id,
            secrets,
        } = request;
        let cloud = self.cloud(&secrets)?;
        let snapshots = of(cloud.backend.as_ref())?;
        let Some(id) = id else {
            let most = lookup::PAGE_ENTRIES_MAX;
            let limit = max_entries.unwrap_or(most).min(most);
            let asked = snapshots.list_snapshots(source, starting_token, limit, secrets);
            let page = lookup::in_time("the list of snapshots", asked).await;
            return page.map_err(|failure| cloud.failed(failure));
        };
        if let Some(token) = starting_token {
            let message =
                format!("starting_token {token:?}: a list of one snapshot has only one page");
            return Err(Failure::new(Kind::BadToken, message));
        }
        let what = format!("snapshot {id}");
        let found = lookup::in_time(&what, snapshots.snapshot(id, secrets)).await;
        let found = found.map_err(|failure| cloud.failed(failure))?;
        let of_source =
            found.filter(|found| source.as_ref().is_none_or(|source| found.source == *source));
        Ok(SnapshotPage {
            snapshots: of_source.into_iter().collect(),
            next: None,
        })
    }
}

/// Returns the backend's implementation of snapshots.
///
/// # Errors
/// Returns `Unsupported` if the backend does not create snapshots.
pub(super) fn of(backend: &dyn Backend) -> Result<&dyn Snapshots, Failure> {
    let snapshots = backend.snapshots();
    snapshots.ok_or_else(|| Failure::unsupported("this driver does not create snapshots"))
}

/// Adds the remedy to the message of a failure that recurs until an operator acts.
fn with_advice(rpc: Rpc, failure: Failure) -> Failure {
    match (failure.kind, rpc) {
        (Kind::Denied, _) => denied(rpc, failure),
        (Kind::Quota, Rpc::CreateSnapshot) => exhausted(failure),
        _ => failure,
    }
}

/// Adds advice to a failure that reports a lack of space. The specification requires
/// RESOURCE_EXHAUSTED, which csi-snapshotter does not treat as final: although nothing was created,
/// csi-snapshotter repeats the call until it succeeds, even after the VolumeSnapshot was deleted.
fn exhausted(failure: Failure) -> Failure {
    let kept = "until it succeeds, its VolumeSnapshot cannot be deleted";
    let message = match failure.certainty {
        Certainty::MayBeRunning => format!("{}; {kept}", failure.message),
        Certainty::NothingHappened | Certainty::RolledBack => format!(
            "{}; {kept}, unless the annotation {BEING_CREATED} is removed from its \
             VolumeSnapshotContent",
            failure.message
        ),
    };
    Failure { message, ..failure }
}

/// Adds advice to a failure that reports a missing permission. Until the permission is granted,
/// csi-snapshotter can neither find nor delete a snapshot that an earlier call may have created. If
/// there was no earlier call, the failure is final, and csi-snapshotter forgets the snapshot.
fn denied(rpc: Rpc, failure: Failure) -> Failure {
    let is_kept = rpc == Rpc::DeleteSnapshot || failure.certainty == Certainty::MayBeRunning;
    let rest = match is_kept {
        true => ": until then its VolumeSnapshot cannot be deleted either",
        false => "",
    };
    let what = "permit this to the credentials of the driver";
    let message = format!("{}; {what}{rest}", failure.message);
    Failure { message, ..failure }
}

/// Returns the error for a damaged snapshot, which will never become ready. The error is not final:
/// after a final error, csi-snapshotter would forget the snapshot, although it exists.
fn damaged(id: &SnapshotId, damage: &str) -> Failure {
    Failure::precondition(format!("snapshot {id}: {damage}")).may_be_running()
}

/// Returns the error for a snapshot that the storage still lists although it has accepted the
/// deletion. The storage may delete the snapshot late, or not at all.
fn not_deleted(id: &SnapshotId) -> Failure {
    let message = format!(
        "snapshot {id}: the storage has accepted its deletion, and still has it; repeat the call, \
         and delete volumes that depend on it first if that does not help"
    );
    Failure::busy(message).may_be_running()
}

pub(super) fn not_found(id: &SnapshotId) -> Failure {
    Failure::not_found(format!("snapshot {id}: not found"))
}
