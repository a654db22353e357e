//! The store of a node, a real process, with real files. The tests write what the controller
//! writes.

use crate::definitions::done;
use crate::server::Server;
use crate::{id, volume};
use belay_bed::patience::PATIENCE;
use belay_bed::programs::{Running, program};
use belay_contract::drivers::local::{HOME, HOME_BYTES_MAX, place_at};
use belay_controller::kubernetes::{
    Change, Client, DiskSpec, FINALIZER, LocalDisk, LocalSnapshot, LocalVolume, Object, Phase,
    Resource, SPEC_VERSION, SnapshotSpec, Source, VolumeSpec, VolumeStatus, Written,
};
use belay_server::call::{Failure, Kind};
use rustix::fs::FlockOperation;
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The program, unless the environment variable `STORE` names another build of it.
const BINARY: &str = env!("CARGO_BIN_EXE_belay-controller");

/// The offset of the data in volumes, in bytes.
const OFFSET: u64 = 4096;

/// A node with two disks, and its store, which also has the name of a disk that the node lacks.
pub(crate) struct Node<'a> {
    server: &'a Server,
    pub(crate) client: Arc<Client>,
    name: String,
    dir: tempfile::TempDir,
    store: Option<Running>,
}

impl<'a> Node<'a> {
    /// Creates a node with empty disks. No store runs.
    pub(crate) fn new(server: &'a Server, name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for disk in ["default", "fast", "account"] {
            fs::create_dir(dir.path().join(disk)).unwrap();
        }
        let (access, account) = (server.access(), dir.path().join("account"));
        fs::copy(access.token, account.join("token")).unwrap();
        fs::copy(access.authority, account.join("ca.crt")).unwrap();
        Self {
            server,
            client: server.client(),
            name: name.to_owned(),
            dir,
            store: None,
        }
    }

    /// Gives the store another token than the administrator's.
    pub(crate) fn set_token(&self, token: &str) {
        fs::write(self.dir.path().join("account/token"), token).unwrap();
    }

    /// Starts the store.
    pub(crate) fn start(&mut self) {
        let (host, port) = self.server.relay();
        let log = self.dir.path().join("log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        let disk = |name: &str| format!("{name}={}", self.disk(name).display());
        let other = std::env::var_os("STORE").filter(|path| !path.is_empty());
        let mut command = program([other.unwrap_or_else(|| BINARY.into())]);
        command
            .args(["store", "--node", &self.name, "--overcommit", "1000"])
            .args(["--disk", &disk("default"), "--disk", &disk("fast")])
            .args(["--disk", &disk("absent")])
            .arg("--account-dir")
            .arg(self.dir.path().join("account"))
            .env("KUBERNETES_SERVICE_HOST", host)
            .env("KUBERNETES_SERVICE_PORT", port)
            .stdout(Stdio::null())
            .stderr(log);
        self.store = Some(Running::start(&mut command).unwrap());
    }

    /// Kills the store.
    pub(crate) fn kill(&mut self) {
        self.store = None;
    }

    fn disk(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the path of the file of a volume or snapshot on the default disk.
    pub(crate) fn file(&self, id: &str) -> PathBuf {
        let kind = match id.starts_with("vol-") {
            true => "volumes",
            false => "snapshots",
        };
        self.disk("default").join(kind).join(id)
    }

    /// Whether the default disk has the file of the volume or snapshot.
    pub(crate) fn has_file(&self, id: &str) -> bool {
        self.file(id).exists()
    }

    /// Whether the directory of the disk is empty.
    pub(crate) fn is_empty(&self, disk: &str) -> bool {
        fs::read_dir(self.disk(disk)).unwrap().next().is_none()
    }

    /// Returns the object of the disk.
    pub(crate) async fn disk_named(&self, disk: &str) -> Object<LocalDisk> {
        let name = format!("{}.{disk}", self.name);
        self.client.get::<LocalDisk>(&name).await.unwrap().unwrap()
    }

    /// Writes to a volume on the default disk, as the node does when it uses the volume.
    pub(crate) fn write(&self, id: &str, data: &[u8]) {
        let file = self.file(id);
        rustix::fs::removexattr(&file, "user.belay.new").unwrap();
        let file = File::options().write(true).open(&file).unwrap();
        file.write_all_at(data, OFFSET).unwrap();
    }

    /// Returns the data that [`Self::write`] has written to the volume or its source.
    pub(crate) fn read(&self, id: &str, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        let file = File::open(self.file(id)).unwrap();
        file.read_exact_at(&mut data, OFFSET).unwrap();
        data
    }

    /// Waits until the disk has an object for which `is_so` holds.
    pub(crate) async fn disk_shows(&self, disk: &str, is_so: impl Fn(&Object<LocalDisk>) -> bool) {
        let name = format!("{}.{disk}", self.name);
        shows(&self.client, &name, |it| it.is_some_and(&is_so)).await;
    }

    /// Returns the time of the last report of a disk.
    async fn reported(&self, disk: &str) -> Option<String> {
        let name = format!("{}.{disk}", self.name);
        reported(&self.client.get(&name).await.unwrap().unwrap())
    }

    /// Permits the store to begin on both disks, and waits until the disks are served.
    pub(crate) async fn begin(&self) {
        for disk in ["default", "fast"] {
            self.disk_shows(disk, |it| problem(it).contains("permission"))
                .await;
            let object = self.disk_named(disk).await;
            let begin = Change::<LocalDisk>::Spec(json!({"begin": object.metadata.uid}));
            done(self.client.patch(&object.metadata, begin).await);
        }
        for disk in ["default", "fast"] {
            self.disk_shows(disk, is_served).await;
        }
    }

    /// Orders a volume.
    async fn order(&self, spec: &VolumeSpec) -> Object<LocalVolume> {
        done(self.client.create::<LocalVolume>(&spec.name, spec).await)
    }

    /// Orders a volume, and waits until it is ready.
    async fn made(&self, number: u32) -> VolumeSpec {
        let spec = self.spec(number);
        self.order(&spec).await;
        self.is_in(&spec.name, Phase::Ready).await;
        spec
    }

    fn spec(&self, number: u32) -> VolumeSpec {
        VolumeSpec {
            place: self.name.clone(),
            bytes: 4 << 20,
            ..volume(number, &self.name)
        }
    }

    /// Returns the spec of a snapshot of this volume.
    fn snapshot_of(&self, source: &VolumeSpec, number: u32) -> SnapshotSpec {
        SnapshotSpec {
            version: SPEC_VERSION,
            id: id("snap", number),
            name: format!("snapshot-{number}"),
            place: source.place.clone(),
            disk: source.disk.clone(),
            node: source.node.clone(),
            volume: source.id.clone(),
            adopt: false,
            remove: None,
        }
    }

    /// Removes a snapshot as the controller does.
    async fn remove_snapshot(&self, spec: &SnapshotSpec) {
        let name = &spec.name;
        let object = self.client.get::<LocalSnapshot>(name).await;
        let remove = Change::<LocalSnapshot>::Spec(json!({"remove": 1}));
        let object = object.unwrap().unwrap();
        done(self.client.patch(&object.metadata, remove).await);
        let free = |it: &Object<LocalSnapshot>| it.metadata.finalizers.is_empty();
        let object = shows(&self.client, name, |it| it.is_some_and(free)).await;
        let object = object.unwrap();
        assert!(!self.file(&spec.id).exists());
        done(self.client.delete::<LocalSnapshot>(&object.metadata).await);
    }

    /// Waits until the volume is in this phase, and returns its object.
    pub(crate) async fn is_in(&self, name: &str, phase: Phase) -> Object<LocalVolume> {
        let is_so = |it: &Object<LocalVolume>| status(it).is_some_and(|it| it.phase == phase);
        shows(&self.client, name, |it| it.is_some_and(is_so))
            .await
            .unwrap()
    }

    /// Changes the spec of a volume, whatever its version is.
    async fn change(&self, name: &str, fields: serde_json::Value) -> Object<LocalVolume> {
        loop {
            let object = self.client.get::<LocalVolume>(name).await.unwrap().unwrap();
            let change = Change::<LocalVolume>::Spec(fields.clone());
            if let Written::Done(object) =
                self.client.patch(&object.metadata, change).await.unwrap()
            {
                return object;
            }
        }
    }

    /// Removes a volume as the controller does.
    async fn remove(&self, name: &str, attempt: u64) {
        self.change(name, json!({"remove": attempt})).await;
        let is_so = |it: &Object<LocalVolume>| it.metadata.finalizers.is_empty();
        let object = shows(&self.client, name, |it| it.is_some_and(is_so))
            .await
            .unwrap();
        done(self.client.delete::<LocalVolume>(&object.metadata).await);
    }

    /// Removes a volume, and repeats attempts that the store found in a list.
    async fn remove_patiently(&self, name: &str) {
        for attempt in 1.. {
            self.change(name, json!({"remove": attempt})).await;
            let is_so = |it: &Object<LocalVolume>| {
                let is_refused = status(it).unwrap().refused_removal == Some(attempt);
                it.metadata.finalizers.is_empty() || is_refused
            };
            let object = shows(&self.client, name, |it| it.is_some_and(is_so)).await;
            let object = object.unwrap();
            if object.metadata.finalizers.is_empty() {
                done(self.client.delete::<LocalVolume>(&object.metadata).await);
                return;
            }
        }
    }

    /// Waits until the store has refused the attempt to remove a volume.
    pub(crate) async fn refuses_removal(&self, name: &str, attempt: u64) -> Failure {
        let is_so = |it: &Object<LocalVolume>| {
            status(it).is_some_and(|it| it.refused_removal == Some(attempt))
        };
        let object = shows(&self.client, name, |it| it.is_some_and(is_so))
            .await
            .unwrap();
        failure(&object)
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        self.store = None;
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            eprintln!("log of the store of {}:\n{log}", self.name);
            // A second panic would hide the first.
            let all = self
                .server
                .try_kubectl(&["get", "belay", "--output", "yaml"], "");
            eprintln!("{}", String::from_utf8_lossy(&all.stdout));
        }
    }
}

fn status(object: &Object<LocalVolume>) -> Option<&VolumeStatus> {
    object.status.as_ref().and_then(|status| status.known())
}

fn failure(object: &Object<LocalVolume>) -> Failure {
    let failure = status(object).and_then(|status| status.failure.as_ref());
    failure.and_then(|failure| failure.known()).unwrap().clone()
}

pub(crate) fn problem(disk: &Object<LocalDisk>) -> String {
    let status = disk.status.as_ref().and_then(|status| status.known());
    status
        .and_then(|status| status.problem.clone())
        .unwrap_or_default()
}

fn reported(disk: &Object<LocalDisk>) -> Option<String> {
    let status = disk.status.as_ref().and_then(|status| status.known());
    status.and_then(|status| status.reported.clone())
}

pub(crate) fn is_served(disk: &Object<LocalDisk>) -> bool {
    let status = disk.status.as_ref().and_then(|status| status.known());
    status.is_some_and(|it| it.problem.is_none() && it.promisable.is_some())
}

/// Waits until `is_so` holds for the object with this name, and returns the object.
async fn shows<R: Resource>(
    client: &Client,
    name: &str,
    is_so: impl Fn(Option<&Object<R>>) -> bool,
) -> Option<Object<R>> {
    let end = Instant::now() + PATIENCE;
    loop {
        // A killed API server answers nothing.
        if let Ok(object) = client.get::<R>(name).await
            && is_so(object.as_ref())
        {
            return object;
        }
        assert!(Instant::now() < end, "timed out: {} {name}", R::KIND);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn a_disk_is_begun_with_permission_and_never_again(server: &Server) {
    let mut node = Node::new(server, "disks");
    node.start();
    node.begin().await;
    let absent = node.client.get::<LocalDisk>("disks.absent").await;
    assert!(absent.unwrap().is_none());
    fs::create_dir(node.disk("absent")).unwrap();
    node.disk_shows("absent", |it| problem(it).contains("permission"))
        .await;
    node.kill();
    let before = node.reported("fast").await;
    let disk = node.disk("default");
    let away = node.dir.path().join("away");
    fs::rename(&disk, &away).unwrap();
    fs::create_dir(&disk).unwrap();
    node.start();
    node.disk_shows("default", |it| problem(it).contains("had the state"))
        .await;
    let is_anew = |it: &Object<LocalDisk>| is_served(it) && reported(it) != before;
    node.disk_shows("fast", is_anew).await;
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 0);
    // The disk is mounted again, while the store runs.
    fs::remove_dir(&disk).unwrap();
    fs::rename(&away, &disk).unwrap();
    node.disk_shows("default", is_served).await;
    // The other disk was mounted in its place.
    node.kill();
    fs::rename(&disk, &away).unwrap();
    fs::rename(node.disk("fast"), &disk).unwrap();
    node.start();
    node.disk_shows("default", |it| problem(it).contains("mount the right disk"))
        .await;
    // Another node has the disk.
    let mut other = Node::new(server, "elsewhere");
    fs::remove_dir(other.disk("default")).unwrap();
    fs::rename(&away, other.disk("default")).unwrap();
    other.start();
    other
        .disk_shows("default", |it| {
            problem(it).contains("rehome disks elsewhere")
        })
        .await;
    // A person gives the place of the disk to that node.
    for disk in ["default", "fast", "absent"] {
        server.kubectl(&["delete", "localdisks.belay.dev", &format!("disks.{disk}")]);
    }
    let spec = DiskSpec {
        node: "elsewhere".to_owned(),
        place: "disks".to_owned(),
        disk: "default".to_owned(),
        begin: None,
    };
    loop {
        let old = ["delete", "localdisks.belay.dev", "elsewhere.default"];
        server.kubectl(&[old.as_slice(), &["--ignore-not-found"]].concat());
        let given = other.client.create::<LocalDisk>("elsewhere.default", &spec);
        // The store creates the object again with its own place.
        if let Written::Done(_) = given.await.unwrap() {
            break;
        }
    }
    other.disk_shows("default", is_served).await;
    let mut home = [0; HOME_BYTES_MAX];
    let volumes = other.disk("default").join("volumes");
    let length = rustix::fs::getxattr(&volumes, HOME, &mut home).unwrap();
    assert_eq!(place_at(&home[..length], "elsewhere"), Some("disks"));
}

pub(crate) async fn a_disk_without_its_state_is_begun_again_once_its_object_was_deleted(
    server: &Server,
) {
    let mut node = Node::new(server, "reset");
    node.start();
    node.begin().await;
    node.kill();
    let disk = node.disk("default");
    fs::remove_dir_all(&disk).unwrap();
    fs::create_dir(&disk).unwrap();
    node.start();
    node.disk_shows("default", |it| problem(it).contains("had the state"))
        .await;
    // The store keeps running, and must not write the identity that it has read before.
    server.kubectl(&["delete", "localdisks.belay.dev", "reset.default"]);
    node.disk_shows("default", |it| problem(it).contains("permission"))
        .await;
    let object = node.disk_named("default").await;
    let begin = Change::<LocalDisk>::Spec(json!({"begin": object.metadata.uid}));
    done(node.client.patch(&object.metadata, begin).await);
    node.disk_shows("default", is_served).await;
}

pub(crate) async fn a_volume_lives_and_ends(node: &mut Node<'_>) {
    let spec = node.made(1).await;
    let ready = node.is_in("pvc-1", Phase::Ready).await;
    assert_eq!(ready.metadata.finalizers, [FINALIZER]);
    let file = node.file(&spec.id);
    assert_eq!(fs::metadata(&file).unwrap().size(), 4 << 20);

    node.change("pvc-1", json!({"bytes": 8 << 20})).await;
    let grown = |it: &Object<LocalVolume>| status(it).unwrap().bytes == Some(8 << 20);
    shows(&node.client, "pvc-1", |it| it.is_some_and(grown)).await;
    assert_eq!(fs::metadata(&file).unwrap().size(), 8 << 20);

    // A growth that is refused is not tried again.
    let changed = node.change("pvc-1", json!({"bytes": 1_u64 << 60})).await;
    let generation = Some(changed.metadata.generation);
    let answered = |it: &Object<LocalVolume>| status(it).unwrap().observed_generation == generation;
    let refused = shows(&node.client, "pvc-1", |it| it.is_some_and(answered))
        .await
        .unwrap();
    assert_eq!(failure(&refused).kind, Kind::Quota);
    assert_eq!(status(&refused).unwrap().bytes, Some(8 << 20));
    node.change("pvc-1", json!({"bytes": 8 << 20})).await;

    // A volume in use is not removed.
    let lock = File::open(&file).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockShared).unwrap();
    node.change("pvc-1", json!({"remove": 1})).await;
    let refused = node.refuses_removal("pvc-1", 1).await;
    assert_eq!(refused.kind, Kind::Precondition, "{refused}");
    drop(lock);
    node.change("pvc-1", json!({"remove": null})).await;
    assert!(file.exists());
    node.remove("pvc-1", 2).await;
    assert!(!file.exists());
}

pub(crate) async fn copies_have_the_data_of_their_source(node: &mut Node<'_>) {
    let source = node.made(2).await;
    node.write(&source.id, b"data");
    let snapshot = node.snapshot_of(&source, 1);
    done(
        node.client
            .create::<LocalSnapshot>("snapshot-1", &snapshot)
            .await,
    );
    let ready = |it: &Object<LocalSnapshot>| {
        let status = it.status.as_ref().and_then(|status| status.known());
        status.is_some_and(|it| it.phase == Phase::Ready && it.time.is_some())
    };
    shows(&node.client, "snapshot-1", |it| it.is_some_and(ready)).await;
    for (number, from) in [
        (3, Source::Snapshot(snapshot.id.clone())),
        (4, Source::Volume(source.id.clone())),
    ] {
        let copy = VolumeSpec {
            source: Some(from),
            ..node.spec(number)
        };
        node.order(&copy).await;
        node.is_in(&copy.name, Phase::Ready).await;
        assert_eq!(node.read(&copy.id, 4), b"data");
        node.remove(&copy.name, 1).await;
    }
    // A copy of a volume that does not exist leaves nothing.
    let copy = VolumeSpec {
        source: Some(Source::Volume(id("vol", 99))),
        ..node.spec(5)
    };
    node.order(&copy).await;
    let refused = node.is_in("pvc-5", Phase::Refused).await;
    assert_eq!(failure(&refused).kind, Kind::NotFound);
    let free = |it: &Object<LocalVolume>| it.metadata.finalizers.is_empty();
    let refused = shows(&node.client, "pvc-5", |it| it.is_some_and(free))
        .await
        .unwrap();
    assert!(!node.file(&copy.id).exists());
    done(node.client.delete::<LocalVolume>(&refused.metadata).await);

    node.remove_snapshot(&snapshot).await;
    node.remove("pvc-2", 1).await;
}

pub(crate) async fn an_order_without_room_is_refused_before_it_is_accepted(node: &mut Node<'_>) {
    let spec = VolumeSpec {
        bytes: 1 << 60,
        ..node.spec(6)
    };
    node.order(&spec).await;
    let refused = node.is_in("pvc-6", Phase::Refused).await;
    assert_eq!(failure(&refused).kind, Kind::Quota);
    assert!(refused.metadata.finalizers.is_empty());
    assert!(!node.file(&spec.id).exists());
    done(node.client.delete::<LocalVolume>(&refused.metadata).await);
}

pub(crate) async fn nothing_is_made_or_removed_after_the_wish_was_taken_back(node: &mut Node<'_>) {
    let kept = node.made(7).await;
    node.kill();
    // The node is off: the claim is deleted, and the order of another volume is withdrawn.
    let withdrawn = node.spec(8);
    let order = node.order(&withdrawn).await;
    done(node.client.delete::<LocalVolume>(&order.metadata).await);
    node.change("pvc-7", json!({"remove": 1})).await;
    node.start();
    let refused = node.refuses_removal("pvc-7", 1).await;
    assert_eq!(refused.kind, Kind::Busy, "{refused}");
    assert!(node.file(&kept.id).exists());
    assert!(!node.file(&withdrawn.id).exists());
    // A change of another field does not execute the refused attempt.
    node.change("pvc-7", json!({"bytes": 8 << 20})).await;
    let grown = |it: &Object<LocalVolume>| status(it).unwrap().bytes == Some(8 << 20);
    shows(&node.client, "pvc-7", |it| it.is_some_and(grown)).await;
    assert!(node.file(&kept.id).exists());
    node.remove("pvc-7", 2).await;
    assert!(!node.file(&kept.id).exists());
}

/// Either the withdrawal or the acceptance comes first.
pub(crate) async fn a_withdrawn_order_was_never_accepted(node: &mut Node<'_>) {
    let mut accepted = Vec::new();
    for number in 20..50 {
        let spec = node.spec(number);
        let order = node.order(&spec).await;
        match node
            .client
            .delete::<LocalVolume>(&order.metadata)
            .await
            .unwrap()
        {
            Written::Done(()) => {}
            Written::Conflict | Written::Missing => accepted.push(spec),
        }
    }
    for spec in &accepted {
        node.is_in(&spec.name, Phase::Ready).await;
    }
    let files = fs::read_dir(node.disk("default").join("volumes")).unwrap();
    let mut files: Vec<_> = files
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let ids: Vec<_> = accepted.iter().map(|spec| spec.id.clone()).collect();
    assert_eq!(files, ids);
    for spec in &accepted {
        node.remove(&spec.name, 1).await;
    }
}

/// The store waits for the end of the use when the controller takes the attempt back.
pub(crate) async fn a_removal_is_not_executed_after_it_was_taken_back(node: &mut Node<'_>) {
    let spec = node.made(14).await;
    let file = node.file(&spec.id);
    let lock = File::open(&file).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockShared).unwrap();
    node.change("pvc-14", json!({"remove": 1})).await;
    node.change("pvc-14", json!({"remove": null})).await;
    drop(lock);
    // The store has ended its work on the attempt before it executes the next change.
    node.change("pvc-14", json!({"bytes": 8 << 20})).await;
    let grown = |it: &Object<LocalVolume>| status(it).unwrap().bytes == Some(8 << 20);
    shows(&node.client, "pvc-14", |it| it.is_some_and(grown)).await;
    assert!(file.exists());
    node.remove("pvc-14", 2).await;
}

/// Without reflinks, the file of a snapshot is filled after the snapshot was taken.
pub(crate) async fn a_snapshot_outlives_its_object_and_a_kill_during_its_copy(node: &mut Node<'_>) {
    let source = VolumeSpec {
        bytes: 256 << 20,
        ..node.spec(15)
    };
    node.order(&source).await;
    node.is_in("pvc-15", Phase::Ready).await;
    let file = node.file(&source.id);
    rustix::fs::removexattr(&file, "user.belay.new").unwrap();
    let data = vec![7; 256 << 20];
    let written = File::options().write(true).open(&file).unwrap();
    written.write_all_at(&data, 0).unwrap();
    drop(written);
    for number in [20, 21] {
        let snapshot = node.snapshot_of(&source, number);
        let name = snapshot.name.clone();
        done(node.client.create::<LocalSnapshot>(&name, &snapshot).await);
        let is_taken = |it: &Object<LocalSnapshot>| {
            let status = it.status.as_ref().and_then(|status| status.known());
            status.is_some_and(|it| it.time.is_some())
        };
        let taken = shows(&node.client, &name, |it| it.is_some_and(is_taken))
            .await
            .unwrap();
        if number == 20 {
            node.kill();
            node.start();
        } else {
            let object = format!("localsnapshots/{name}");
            node.server.delete_object_only(&object);
            node.server.kubectl(&["wait", "--for=delete", &object]);
            let adopted = SnapshotSpec {
                adopt: true,
                ..snapshot.clone()
            };
            done(node.client.create::<LocalSnapshot>(&name, &adopted).await);
        }
        let ready = |it: &Object<LocalSnapshot>| {
            let status = it.status.as_ref().and_then(|status| status.known());
            status.is_some_and(|it| it.phase == Phase::Ready)
        };
        let after = shows(&node.client, &name, |it| it.is_some_and(ready))
            .await
            .unwrap();
        let time = |it: &Object<LocalSnapshot>| it.status.as_ref()?.known()?.time.clone();
        assert_eq!(time(&after), time(&taken));
        assert!(fs::read(node.file(&snapshot.id)).unwrap() == data);
        node.remove_snapshot(&snapshot).await;
    }
    node.remove("pvc-15", 1).await;
}

pub(crate) async fn a_deleted_object_leaves_its_file_which_is_named(node: &mut Node<'_>) {
    let spec = node.made(9).await;
    node.server.delete_object_only("localvolumes/pvc-9");
    shows::<LocalVolume>(&node.client, "pvc-9", |it| it.is_none()).await;
    assert!(node.file(&spec.id).exists());
    let named = |it: &Object<LocalDisk>| {
        let status = it.status.as_ref().and_then(|status| status.known());
        let unlisted = status
            .and_then(|status| status.unlisted.clone())
            .unwrap_or_default();
        unlisted.count == 1 && unlisted.first[0].id == spec.id
    };
    node.disk_shows("default", named).await;
    // An object with its ID takes the file over, and one for a file that does not exist is refused.
    let missing = VolumeSpec {
        adopt: true,
        ..node.spec(13)
    };
    node.order(&missing).await;
    let refused = node.is_in("pvc-13", Phase::Refused).await;
    assert_eq!(failure(&refused).kind, Kind::NotFound);
    assert!(!node.file(&missing.id).exists());
    done(node.client.delete::<LocalVolume>(&refused.metadata).await);
    let write = File::options().write(true).open(node.file(&spec.id));
    write.unwrap().write_all_at(b"data", 0).unwrap();
    let adopted = VolumeSpec {
        adopt: true,
        ..spec.clone()
    };
    node.order(&adopted).await;
    node.is_in("pvc-9", Phase::Ready).await;
    assert_eq!(&fs::read(node.file(&spec.id)).unwrap()[..4], b"data");
    // A second object with the ID is refused, so that its removal cannot delete the file.
    let second = VolumeSpec {
        name: "pvc-10".to_owned(),
        ..spec.clone()
    };
    node.order(&second).await;
    let refused = node.is_in("pvc-10", Phase::Refused).await;
    assert!(
        failure(&refused).message.contains("pvc-9"),
        "{}",
        failure(&refused)
    );
    done(node.client.delete::<LocalVolume>(&refused.metadata).await);
    // A copy of the object has its finalizer.
    let copy = json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": "LocalVolume",
        "metadata": {"name": "pvc-10", "finalizers": [FINALIZER]}, "spec": second,
    });
    node.server
        .kubectl_with(&["create", "--filename", "-"], &copy.to_string());
    node.is_in("pvc-10", Phase::Ready).await;
    node.change("pvc-10", json!({"remove": 1})).await;
    let refused = node.refuses_removal("pvc-10", 1).await;
    assert!(refused.message.contains("pvc-9"), "{refused}");
    node.server.kubectl(&["delete", "localvolume", "pvc-10"]);
    assert!(node.file(&spec.id).exists());
    node.remove("pvc-9", 1).await;
}

/// Backups drop the status, and keep finalizers.
pub(crate) async fn a_restored_object_without_its_file_is_lost(node: &mut Node<'_>) {
    let accepted = json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": "LocalVolume",
        "metadata": {"name": "pvc-11", "finalizers": [FINALIZER]}, "spec": node.spec(11),
    });
    let create = ["create", "--filename", "-"];
    node.server.kubectl_with(&create, &accepted.to_string());
    node.is_in("pvc-11", Phase::Lost).await;
    assert!(!node.file(&id("vol", 11)).exists());
    node.remove("pvc-11", 1).await;
}

pub(crate) async fn a_newer_spec_is_refused_by_name(node: &mut Node<'_>) {
    let newer = VolumeSpec {
        version: SPEC_VERSION + 1,
        ..node.spec(12)
    };
    node.order(&newer).await;
    let refused = node.is_in("pvc-12", Phase::Refused).await;
    let why = failure(&refused).message;
    assert!(why.contains("version 2 is newer than 1"), "{why}");
    assert!(refused.metadata.finalizers.is_empty());
    assert!(!node.file(&newer.id).exists());
    done(node.client.delete::<LocalVolume>(&refused.metadata).await);

    // The store that runs during the change of a definition may read objects without the new field.
    node.kill();
    let field = |op: &str| {
        let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/encrypted";
        let patch = json!([{"op": op, "path": path, "value": {"type": "boolean"}}]).to_string();
        let kind = "crd/localvolumes.belay.dev";
        let words = ["patch", kind, "--type=json", "--patch", &patch];
        node.server.kubectl(&words);
    };
    field("add");
    let mut spec = serde_json::to_value(node.spec(12)).unwrap();
    spec["encrypted"] = true.into();
    let newer = json!({
        "apiVersion": "belay.dev/v1alpha1", "kind": "LocalVolume",
        "metadata": {"name": "pvc-12"}, "spec": spec,
    });
    let create = ["create", "--validate=strict", "--filename", "-"];
    let end = Instant::now() + PATIENCE;
    // The server uses the changed definition after a moment.
    while !node
        .server
        .try_kubectl(&create, &newer.to_string())
        .status
        .success()
    {
        assert!(
            Instant::now() < end,
            "the server does not use the definition"
        );
    }
    node.start();
    let refused = node.is_in("pvc-12", Phase::Refused).await;
    assert!(
        failure(&refused).message.contains("encrypted"),
        "{}",
        failure(&refused)
    );
    assert!(refused.metadata.finalizers.is_empty());
    assert!(!node.file(&id("vol", 12)).exists());
    done(node.client.delete::<LocalVolume>(&refused.metadata).await);
    field("remove");
}

/// Kills the store at many moments, restarts the server, and checks that objects and files agree.
pub(crate) async fn kills_leave_nothing_half_done(server: &Server) {
    let mut numbers = 100..;
    let mut node = Node::new(server, "killed");
    node.start();
    node.begin().await;
    for millis in [0, 3, 6, 10, 15, 20, 30, 50] {
        let specs: Vec<_> = numbers
            .by_ref()
            .take(4)
            .map(|number| node.spec(number))
            .collect();
        for spec in &specs {
            node.order(spec).await;
        }
        tokio::time::sleep(Duration::from_millis(millis)).await;
        node.kill();
        node.start();
        for spec in &specs {
            node.is_in(&spec.name, Phase::Ready).await;
            assert!(node.file(&spec.id).exists(), "{}", spec.id);
        }
        // The controller repeats a removal that the store refuses because it was killed.
        let (mut attempt, mut left) = (1, specs.clone());
        while !left.is_empty() {
            for spec in &left {
                node.change(&spec.name, json!({"remove": attempt})).await;
            }
            if attempt == 1 {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                node.kill();
                node.start();
            }
            let mut refused = Vec::new();
            for spec in left {
                let is_so = |it: &Object<LocalVolume>| {
                    let is_refused = status(it).unwrap().refused_removal == Some(attempt);
                    it.metadata.finalizers.is_empty() || is_refused
                };
                let object = shows(&node.client, &spec.name, |it| it.is_some_and(is_so)).await;
                let object = object.unwrap();
                match object.metadata.finalizers.is_empty() {
                    true => {
                        assert!(!node.file(&spec.id).exists(), "{}", spec.id);
                        done(node.client.delete::<LocalVolume>(&object.metadata).await);
                    }
                    false => {
                        assert!(node.file(&spec.id).exists(), "{}", spec.id);
                        refused.push(spec);
                    }
                }
            }
            (left, attempt) = (refused, attempt + 1);
        }
    }
    let nothing = |it: &Object<LocalDisk>| {
        let status = it.status.as_ref().and_then(|status| status.known());
        status
            .and_then(|status| status.unlisted.as_ref())
            .is_some_and(|it| it.count == 0)
    };
    node.disk_shows("default", nothing).await;
    let volumes = node.disk("default").join("volumes");
    assert_eq!(fs::read_dir(&volumes).unwrap().count(), 0);
}

/// The store continues after the API server was away, without a restart.
pub(crate) async fn a_restarted_server_is_followed(server: &Server) {
    let mut node = Node::new(server, "restarted");
    node.start();
    node.begin().await;
    let spec = node.made(300).await;
    server.restart();
    node.remove_patiently(&spec.name).await;
    let spec = node.made(301).await;
    node.remove(&spec.name, 1).await;
    node.kill();
}

/// Runs the tests that share a node.
pub(crate) async fn all(server: &Server) {
    server.clear();
    {
        let mut node = Node::new(server, "node7");
        node.start();
        node.begin().await;
        a_volume_lives_and_ends(&mut node).await;
        copies_have_the_data_of_their_source(&mut node).await;
        an_order_without_room_is_refused_before_it_is_accepted(&mut node).await;
        nothing_is_made_or_removed_after_the_wish_was_taken_back(&mut node).await;
        a_withdrawn_order_was_never_accepted(&mut node).await;
        a_removal_is_not_executed_after_it_was_taken_back(&mut node).await;
        a_snapshot_outlives_its_object_and_a_kill_during_its_copy(&mut node).await;
        a_deleted_object_leaves_its_file_which_is_named(&mut node).await;
        a_restored_object_without_its_file_is_lost(&mut node).await;
        a_newer_spec_is_refused_by_name(&mut node).await;
        a_disk_is_begun_with_permission_and_never_again(server).await;
        a_disk_without_its_state_is_begun_again_once_its_object_was_deleted(server).await;
    }
    kills_leave_nothing_half_done(server).await;
    a_restarted_server_is_followed(server).await;
}
