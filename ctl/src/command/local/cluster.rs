//! The objects of `local` in a cluster, and the objects of Kubernetes that name them. Does not
//! change them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use belay_contract::drivers::LOCAL;
use belay_contract::drivers::local::{FINALIZER, SILENT, SILENT_AFTER};
use serde_json::{Value, json};

use super::kubectl::{Deployment, Kubectl};
use crate::failure::Failure;
use crate::objects::Object;

/// The paths of the ID in a PersistentVolume, and in a VolumeSnapshotContent.
const HANDLES: [&str; 3] = [
    "/spec/csi/volumeHandle",
    "/status/snapshotHandle",
    "/spec/source/snapshotHandle",
];
/// The path of the objects of `local`.
pub(super) const GROUP: &str = "/apis/belay.dev/v1alpha1";
const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1";
/// The path of the Deployments of the chart.
const DEPLOYMENTS: &str = "/apis/apps/v1/deployments?labelSelector=app.kubernetes.io/name=belay";

/// The kind of an object that has a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Volume,
    Snapshot,
}

impl Kind {
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
        }
    }

    /// Returns the kind of the objects in the API.
    pub(super) fn of_object(self) -> &'static str {
        match self {
            Self::Volume => "LocalVolume",
            Self::Snapshot => "LocalSnapshot",
        }
    }
}

/// A LocalVolume or LocalSnapshot.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub(super) kind: Kind,
    pub(super) object: Object<'a>,
}

impl<'a> Item<'a> {
    pub(super) fn id(self) -> &'a str {
        self.object.text("/spec/id")
    }

    pub(super) fn node(self) -> &'a str {
        self.object.text("/spec/node")
    }

    pub(super) fn place(self) -> &'a str {
        self.object.text("/spec/place")
    }

    pub(super) fn disk(self) -> &'a str {
        self.object.text("/spec/disk")
    }

    /// Returns the name of the LocalDisk.
    pub(super) fn disk_name(self) -> String {
        format!("{}.{}", self.node(), self.disk())
    }

    /// Returns the phase; empty if no store has reported one.
    pub(super) fn phase(self) -> &'a str {
        self.object.text("/status/phase")
    }

    /// Returns the message of the last failure; empty if there is none.
    pub(super) fn failure(self) -> &'a str {
        self.object.text("/status/failure/message")
    }

    /// Whether the object has the store's finalizer.
    pub(super) fn is_accepted(self) -> bool {
        let mut finalizers = self.object.texts("/metadata/finalizers");
        finalizers.any(|finalizer| finalizer == FINALIZER)
    }

    /// Returns the number of the attempt to delete the file.
    pub(super) fn remove(self) -> Option<u64> {
        self.object.at("/spec/remove").and_then(Value::as_u64)
    }

    /// Returns the number of the last refused attempt; 0 if there is none.
    pub(super) fn refused(self) -> u64 {
        self.object.number("/status/refusedRemoval")
    }

    /// Whether the store has deleted the file for an attempt.
    pub(super) fn is_removed(self) -> bool {
        let is_attempt = self.remove().is_some_and(|number| number > self.refused());
        let is_kept = self.object.is_being_deleted() && self.phase() != "Removing";
        !self.phase().is_empty() && !self.is_accepted() && !is_kept && is_attempt
    }

    /// Returns the size that the store has reported, or else the requested size; `None` for a
    /// snapshot without a report.
    pub(super) fn bytes(self) -> Option<u64> {
        let bytes = ["/status/bytes", "/spec/bytes"].map(|at| self.object.at(at));
        bytes.into_iter().flatten().find_map(Value::as_u64)
    }

    /// Returns the number of bytes that the disk must keep free for the object. `sizes` has the
    /// numbers of all volumes by ID.
    fn promised(self, sizes: &BTreeMap<&str, u64>) -> u64 {
        if self.phase() == "Refused" && !self.is_accepted() || self.is_removed() {
            return 0;
        }
        let now = self.object.at("/status/bytes").and_then(Value::as_u64);
        let source = || sizes.get(self.object.text("/spec/volume")).copied();
        if self.kind == Kind::Snapshot {
            return now.or_else(source).unwrap_or(0);
        }
        let asked = self.object.number("/spec/bytes");
        let observed = self.object.number("/status/observedGeneration");
        let is_answered = observed >= self.object.number("/metadata/generation");
        match now {
            // The store has refused the growth.
            Some(now) if now >= asked || is_answered => now,
            now => asked.max(now.unwrap_or(0)),
        }
    }
}

/// The path of the LocalDisks in the API.
pub(super) const DISKS: &str = "/apis/belay.dev/v1alpha1/localdisks";

/// Returns the path of a LocalDisk in the API.
pub(super) fn disk_path(name: &str) -> String {
    format!("{DISKS}/{name}")
}

/// Returns a new object of `local`.
pub(super) fn new_object(kind: &str, name: &str, spec: &Value) -> Value {
    let annotations = json!({"velero.io/exclude-from-backup": "true"});
    json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name, "annotations": annotations}, "spec": spec,
    })
}

/// The objects of a cluster at one time.
pub(super) struct Cluster {
    pub(super) now: SystemTime,
    disks: Vec<Value>,
    volumes: Vec<Value>,
    snapshots: Vec<Value>,
    /// PersistentVolumes and VolumeSnapshotContents.
    claims: Vec<Value>,
}

impl Cluster {
    /// Reads the objects of `local`, and no others.
    ///
    /// # Errors
    /// Fails if the objects cannot be listed.
    pub(super) fn read(kubectl: &Kubectl) -> Result<Self, Failure> {
        let list = |plural: &str| match kubectl.get(&format!("{GROUP}/{plural}"))? {
            Some(list) => Ok(items(list)),
            None => Err(Failure::Absent(format!(
                "the cluster has no {plural}.belay.dev; install the chart with the backend \
                 `local`, or select another cluster by --context"
            ))),
        };
        Ok(Self {
            disks: list("localdisks")?,
            volumes: list("localvolumes")?,
            snapshots: list("localsnapshots")?,
            claims: Vec::new(),
            now: SystemTime::now(),
        })
    }

    /// Reads the objects of `local`, then the PersistentVolumes and VolumeSnapshotContents.
    ///
    /// # Errors
    /// Fails if the objects cannot be listed. A cluster may have no VolumeSnapshotContents.
    pub(super) fn read_all(kubectl: &Kubectl) -> Result<Self, Failure> {
        let mut cluster = Self::read(kubectl)?;
        for path in [
            "/api/v1/persistentvolumes".to_owned(),
            format!("{SNAPSHOTS}/volumesnapshotcontents"),
        ] {
            let list = kubectl.get(&path)?;
            cluster.claims.extend(list.map(items).unwrap_or_default());
        }
        Ok(cluster)
    }

    /// Returns the request for which an object was created: a PersistentVolumeClaim or
    /// VolumeSnapshot whose UID is in its name. `None` if there is none.
    ///
    /// # Errors
    /// Fails if the requests cannot be listed.
    pub(super) fn request(kubectl: &Kubectl, item: Item<'_>) -> Result<Option<String>, Failure> {
        let (kind, path) = match item.kind {
            Kind::Volume => (
                "PersistentVolumeClaim",
                "/api/v1/persistentvolumeclaims".to_owned(),
            ),
            Kind::Snapshot => ("VolumeSnapshot", format!("{SNAPSHOTS}/volumesnapshots")),
        };
        let requests = kubectl.get(&path)?.map(items).unwrap_or_default();
        Ok(named_in(item.object.text("/spec/name"), &requests)
            .map(|request| format!("{kind} {}", request.full_name())))
    }

    #[cfg(test)]
    pub(super) fn of([disks, volumes, snapshots, claims]: [Value; 4], now: SystemTime) -> Self {
        let [disks, volumes, snapshots, claims] =
            [disks, volumes, snapshots, claims].map(|list| list.as_array().unwrap().clone());
        Self {
            now,
            disks,
            volumes,
            snapshots,
            claims,
        }
    }

    pub(super) fn disks(&self) -> impl Iterator<Item = Object<'_>> {
        self.disks.iter().map(Object::new)
    }

    pub(super) fn disk(&self, name: &str) -> Option<Object<'_>> {
        self.disks().find(|disk| disk.name() == name)
    }

    /// Returns the volumes or the snapshots.
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = Item<'_>> {
        let objects = match kind {
            Kind::Volume => &self.volumes,
            Kind::Snapshot => &self.snapshots,
        };
        let object = objects.iter().map(Object::new);
        object.map(move |object| Item { kind, object })
    }

    /// Returns the volumes and then the snapshots.
    pub(super) fn all(&self) -> impl Iterator<Item = Item<'_>> {
        let kinds = [Kind::Volume, Kind::Snapshot];
        kinds.into_iter().flat_map(|kind| self.of_kind(kind))
    }

    /// Returns the names of the disks that objects name and that have no LocalDisk, as node and
    /// disk.
    pub(super) fn gone(&self) -> BTreeSet<(&str, &str)> {
        let named = self.all().map(|item| (item.node(), item.disk()));
        named
            .filter(|(node, disk)| self.disk(&format!("{node}.{disk}")).is_none())
            .collect()
    }

    /// Returns the total size of the volumes and snapshots of each disk, by the disk's name.
    pub(super) fn promised(&self) -> BTreeMap<String, u64> {
        let none = BTreeMap::new();
        let volumes = self.of_kind(Kind::Volume);
        let sizes: BTreeMap<_, _> = volumes.map(|it| (it.id(), it.promised(&none))).collect();
        let mut promised = BTreeMap::<String, u64>::new();
        for item in self.all() {
            *promised.entry(item.disk_name()).or_default() += item.promised(&sizes);
        }
        promised
    }

    /// Returns the PersistentVolume or VolumeSnapshotContent that has this ID. The ID is random, so
    /// the driver's name, which a chart may have changed, need not be compared.
    pub(super) fn claim(&self, item: Item<'_>) -> Option<Object<'_>> {
        let mut claims = self.claims.iter().map(Object::new);
        claims.find(|claim| HANDLES.iter().any(|at| claim.text(at) == item.id()))
    }

    /// Returns the IDs of PersistentVolumes and VolumeSnapshotContents of the driver that no volume
    /// and no snapshot has. A driver with another name than its default is not found.
    pub(super) fn without_object(&self) -> impl Iterator<Item = &str> {
        let known: BTreeSet<_> = self.all().map(Item::id).collect();
        let claims = self.claims.iter().map(Object::new);
        let ours = claims.filter(|claim| {
            let drivers = ["/spec/csi/driver", "/spec/driver"].map(|at| claim.text(at));
            drivers.contains(&LOCAL.name)
        });
        let ids = ours.filter_map(|claim| {
            let mut ids = HANDLES.iter().map(|at| claim.text(at));
            ids.find(|id| !id.is_empty())
        });
        ids.filter(move |id| !known.contains(id))
    }

    /// Returns the namespace and name of the PersistentVolumeClaim or VolumeSnapshot of an object,
    /// or else the name of its PersistentVolume or VolumeSnapshotContent. `None` if no object has
    /// the ID.
    pub(super) fn claim_name(&self, item: Item<'_>) -> Option<String> {
        let claim = self.claim(item)?;
        let (kind, at) = match item.kind {
            Kind::Volume => ("PersistentVolume", "/spec/claimRef"),
            Kind::Snapshot => ("VolumeSnapshotContent", "/spec/volumeSnapshotRef"),
        };
        let part = |part: &str| claim.text(&format!("{at}/{part}"));
        match part("name") {
            "" => Some(format!("{kind} {}", claim.name())),
            name => Some(format!("{}/{name}", part("namespace"))),
        }
    }

    /// Returns the age of an object.
    pub(super) fn age(&self, object: Object<'_>) -> Duration {
        let created = object.time("/metadata/creationTimestamp");
        self.since(created.unwrap_or(self.now))
    }

    /// Returns the time since the last report of a disk's store. The API server's own record of the
    /// write counts, too: the clock of a node may be wrong.
    pub(super) fn silence(&self, disk: Object<'_>) -> Duration {
        let of_store = disk.list("/metadata/managedFields");
        let of_store = of_store.filter(|fields| fields.text("/subresource") == "status");
        let writes = of_store.filter_map(|fields| fields.time("/time"));
        let own = ["/metadata/creationTimestamp", "/status/reported"];
        let own = own.iter().filter_map(|at| disk.time(at));
        self.since(writes.chain(own).max().unwrap_or(self.now))
    }

    fn since(&self, then: SystemTime) -> Duration {
        // A time in the future is the present of a faster clock.
        self.now.duration_since(then).unwrap_or_default()
    }
}

/// Returns the Deployment of the driver's controller.
///
/// # Errors
/// Fails if there is none, or if kubectl fails.
pub(super) fn controller(kubectl: &Kubectl) -> Result<Deployment, Failure> {
    let list = kubectl.get(DEPLOYMENTS)?.map(items).unwrap_or_default();
    let mut all = list.iter().map(Object::new);
    let of_nodes = |deployment: &Object<'_>| {
        let mut containers = deployment.list("/spec/template/spec/containers");
        containers.any(|container| container.texts("/args").any(|flag| flag == "--nodes"))
    };
    match all.find(of_nodes) {
        Some(found) => Ok(Deployment {
            namespace: found.text("/metadata/namespace").to_owned(),
            name: found.name().to_owned(),
            ready: found.number("/status/readyReplicas"),
        }),
        None => Err(Failure::Absent(
            "no Deployment runs `belay-controller --nodes`, which removes volumes; install the \
             chart again"
                .to_owned(),
        )),
    }
}

/// Returns the object whose UID is at the end of `name`.
fn named_in<'a>(name: &str, objects: &'a [Value]) -> Option<Object<'a>> {
    let mut objects = objects.iter().map(Object::new);
    objects.find(|object| match object.text("/metadata/uid") {
        "" => false,
        uid => name.ends_with(uid),
    })
}

/// Returns the objects of a list.
fn items(mut list: Value) -> Vec<Value> {
    match list.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// The problem of a disk whose filesystem refuses writes.
pub(super) const READ_ONLY: &str = "read-only";

/// Returns the reason for which a disk gets no orders; empty if there is none.
pub(super) fn problem(cluster: &Cluster, disk: Object<'_>) -> String {
    let is_read_only = disk.at("/status/readOnly") == Some(&Value::Bool(true));
    match disk.text("/status/problem") {
        "" if disk.at("/status").is_none() => "its store has not reported its state".to_owned(),
        "" if cluster.silence(disk) >= SILENT_AFTER => format!("silent: {SILENT}; check its pod"),
        "" if is_read_only => READ_ONLY.to_owned(),
        problem => problem.to_owned(),
    }
}
