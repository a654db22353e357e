//! A volume as its users see it: its file, its paths on the node, and its requests.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use belay_bed::requests;
use belay_bed::tools::{run, text};
use belay_contract::drivers::local::{self, Claim};
use belay_proto::csi::v1 as csi;
use csi::VolumeCapability;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::calls::NodeCalls;
use super::contents::Contents;
use super::refusal::retried;
use super::test_dir::TestDir;

/// The number of the next volume: every volume of a test run has a different ID.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A volume: a file in `--loop-dir`, and its staging path.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    /// The ID, which is also the name of the file.
    pub(crate) id: String,
    /// The path of the file.
    pub(crate) file: PathBuf,
    /// The staging path: an existing directory, as the kubelet creates it.
    pub(crate) staging: PathBuf,
    pods: PathBuf,
}

impl Volume {
    pub(super) fn blank(test_dir: &TestDir, volumes: &Path, bytes: u64) -> Self {
        let volume = Volume::named(test_dir, volumes);
        File::create_new(&volume.file)
            .and_then(|file| file.set_len(bytes))
            .expect("a sparse file");
        volume.mark_new();
        volume
    }

    pub(super) fn copied(test_dir: &TestDir, volumes: &Path, file: &Path) -> Self {
        let volume = Volume::named(test_dir, volumes);
        let (from, to) = (text(file), text(&volume.file));
        run("cp", &["--sparse=always", "--reflink=auto", from, to]);
        volume
    }

    fn named(test_dir: &TestDir, volumes: &Path) -> Self {
        // Tests of other processes see the same devices and `/dev/belay`.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("vol-{:016x}{number:016x}", std::process::id());
        Volume::made(test_dir.path(), volumes, id)
    }

    /// Returns the volume that a controller created; its paths on the node are in `top`.
    pub(crate) fn made(top: &Path, volumes: &Path, id: String) -> Self {
        let directory = |name: String| {
            let path = top.join(name);
            fs::create_dir_all(&path).expect("mkdir");
            path
        };
        Volume {
            file: volumes.join(&id),
            staging: directory(format!("staging/{id}/globalmount")),
            pods: directory(format!("pods/{id}")),
            id,
        }
    }

    /// Returns an unused path in an existing directory.
    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.pods.join(name)
    }

    /// Returns the path of a raw device while the volume is staged.
    pub(crate) fn device(&self) -> PathBuf {
        self.staging.join("device")
    }

    /// Returns the size of the file in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        fs::metadata(&self.file).expect("stat").len()
    }

    /// Enlarges the file, as the controller's expansion does.
    pub(crate) fn grow(&self, bytes: u64) {
        let file = File::options().write(true).open(&self.file).expect("open");
        file.set_len(bytes).expect("ftruncate");
    }

    /// Returns the content of the file.
    pub(crate) fn contents(&self) -> Contents {
        Contents::of(&self.file)
    }

    /// Writes to the file, bypassing the agent.
    pub(crate) fn write(&self, at: u64, data: &[u8]) {
        let file = File::options().write(true).open(&self.file).expect("open");
        file.write_all_at(data, at).expect("write");
        file.sync_all().expect("fsync");
    }

    /// Reads from the file, bypassing the agent.
    pub(crate) fn read(&self, at: u64, count: usize) -> Vec<u8> {
        let mut data = vec![0; count];
        let file = File::open(&self.file).expect("open");
        file.read_exact_at(&mut data, at).expect("read");
        data
    }

    /// Records on the file, as its controller does, that it was never used, and its size.
    pub(crate) fn mark_new(&self) {
        self.set_attribute(local::NEW, local::IS_NEW);
        self.set_attribute(local::BYTES, self.bytes().to_string().as_bytes());
    }

    /// Records on the file that it was used, as a file that a tool has restored.
    pub(crate) fn mark_used(&self) {
        rustix::fs::removexattr(&self.file, local::NEW).expect("removexattr");
    }

    /// Claims the file, as its controller does when it refuses a deletion.
    pub(crate) fn claim_to_delete(&self) {
        self.set_attribute(local::CLAIM, Claim::Delete.value().as_bytes());
    }

    /// Sets an extended attribute of the file.
    pub(crate) fn set_attribute(&self, name: &str, value: &[u8]) {
        let set = rustix::fs::setxattr(&self.file, name, value, XattrFlags::empty());
        set.expect("setxattr");
    }

    /// Returns an extended attribute of the file; `None` if it does not have it.
    pub(crate) fn attribute(&self, name: &str) -> Option<Vec<u8>> {
        attribute(&self.file, name)
    }

    /// Returns a request to stage the volume.
    pub(crate) fn stage(&self, capability: VolumeCapability) -> csi::NodeStageVolumeRequest {
        requests::stage(&self.id, HashMap::new(), &self.staging, capability)
    }

    /// Returns a request to unstage the volume.
    pub(crate) fn unstage(&self) -> csi::NodeUnstageVolumeRequest {
        requests::unstage(&self.id, &self.staging)
    }

    /// Returns a request to publish the volume to a pod.
    pub(crate) fn publish(
        &self,
        target: &Path,
        capability: VolumeCapability,
    ) -> csi::NodePublishVolumeRequest {
        let none = HashMap::new();
        requests::publish(&self.id, none, &self.staging, target, capability)
    }

    /// Returns a request like [`Volume::publish`], read-only.
    pub(crate) fn publish_read_only(
        &self,
        target: &Path,
        capability: VolumeCapability,
    ) -> csi::NodePublishVolumeRequest {
        csi::NodePublishVolumeRequest {
            readonly: true,
            ..self.publish(target, capability)
        }
    }

    /// Returns a request to unpublish the volume from a pod.
    pub(crate) fn unpublish(&self, target: &Path) -> csi::NodeUnpublishVolumeRequest {
        requests::unpublish(&self.id, target)
    }

    /// Returns a request for the volume's usage.
    pub(crate) fn stats(&self, path: &Path) -> csi::NodeGetVolumeStatsRequest {
        requests::stats(&self.id, path, &self.staging)
    }

    /// Returns a request to expand the volume to the size of its file.
    pub(crate) fn expand(
        &self,
        path: &Path,
        capability: VolumeCapability,
    ) -> csi::NodeExpandVolumeRequest {
        let bytes = i64::try_from(self.bytes()).expect("a size");
        self.expand_to(bytes, path, capability)
    }

    /// Returns a request to expand the volume to at least this size in bytes.
    pub(crate) fn expand_to(
        &self,
        bytes: i64,
        path: &Path,
        capability: VolumeCapability,
    ) -> csi::NodeExpandVolumeRequest {
        requests::expand(&self.id, path, &self.staging, bytes, capability)
    }

    /// Unpublishes these targets and unstages the volume, at the end of a test. Retries like the
    /// kubelet while another process on this machine has the device open.
    #[track_caller]
    pub(crate) fn down(&self, node: &NodeCalls, targets: &[&Path]) {
        for target in targets {
            let what = format!("{} is unpublished", self.id);
            retried(&what, || node.unpublish(self.unpublish(target)));
        }
        let what = format!("{} is unstaged", self.id);
        retried(&what, || node.unstage(self.unstage()));
    }
}

/// Returns an extended attribute of a file; `None` if it does not have it.
pub(crate) fn attribute(file: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0_u8; 64];
    match rustix::fs::getxattr(file, name, &mut value) {
        Ok(length) => Some(value[..length].to_vec()),
        Err(Errno::NODATA) => None,
        Err(errno) => panic!("getxattr {name}: {errno}"),
    }
}
