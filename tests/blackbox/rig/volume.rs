//! A volume as its users see it: its file, its paths on the node, and its requests.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use belay_bed::requests;
use belay_bed::tools::{run, text};
use belay_proto::csi::v1 as csi;
use csi::VolumeCapability;

use super::calls::NodeCalls;
use super::contents::Contents;
use super::refusal::retried;
use super::test_dir::TestDir;

/// Every volume of a test run has another id.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A file in `--loop-dir`, and its staging path.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    /// Its id, and the name of its file.
    pub(crate) id: String,
    /// Its file.
    pub(crate) file: PathBuf,
    /// An existing directory, as the kubelet creates it.
    pub(crate) staging: PathBuf,
    /// The controller's value for its content: `new`, `used` or `populated`.
    pub(crate) content: &'static str,
    /// The publish context from a controller; else it is derived from the rest.
    pub(crate) context: Option<HashMap<String, String>>,
    pods: PathBuf,
}

impl Volume {
    pub(super) fn blank(test_dir: &TestDir, volumes: &Path, bytes: u64) -> Self {
        let volume = Volume::named(test_dir, volumes);
        File::create_new(&volume.file)
            .and_then(|file| file.set_len(bytes))
            .expect("a sparse file");
        volume
    }

    pub(super) fn copied(test_dir: &TestDir, volumes: &Path, file: &Path) -> Self {
        let volume = Volume::named(test_dir, volumes);
        let (from, to) = (text(file), text(&volume.file));
        run("cp", &["--sparse=always", "--reflink=auto", from, to]);
        volume
    }

    fn named(test_dir: &TestDir, volumes: &Path) -> Self {
        let id = format!("vol-{:032x}", NEXT.fetch_add(1, Ordering::Relaxed));
        Volume::made(test_dir.path(), volumes, id)
    }

    /// The volume that a controller created; its paths on the node are in `top`.
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
            content: "new",
            context: None,
            id,
        }
    }

    /// An unused path in an existing directory.
    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.pods.join(name)
    }

    /// Where a raw device appears once it is staged.
    pub(crate) fn device(&self) -> PathBuf {
        self.staging.join("device")
    }

    /// The size of its file in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        fs::metadata(&self.file).expect("stat").len()
    }

    /// Enlarges its file, as the controller's expansion does.
    pub(crate) fn grow(&self, bytes: u64) {
        let file = File::options().write(true).open(&self.file).expect("open");
        file.set_len(bytes).expect("ftruncate");
    }

    /// The content of its file.
    pub(crate) fn contents(&self) -> Contents {
        Contents::of(&self.file)
    }

    /// Writes into its file, bypassing the agent.
    pub(crate) fn write(&self, at: u64, data: &[u8]) {
        let file = File::options().write(true).open(&self.file).expect("open");
        file.write_all_at(data, at).expect("write");
        file.sync_all().expect("fsync");
    }

    /// Reads from its file, bypassing the agent.
    pub(crate) fn read(&self, at: u64, count: usize) -> Vec<u8> {
        let mut data = vec![0; count];
        let file = File::open(&self.file).expect("open");
        file.read_exact_at(&mut data, at).expect("read");
        data
    }

    /// The publish context that the controller would return.
    pub(crate) fn publish_context(&self) -> HashMap<String, String> {
        if let Some(context) = &self.context {
            return context.clone();
        }
        let entry = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        HashMap::from([
            entry("transport", "loop"),
            entry("file", &self.id),
            entry("bytes", &self.bytes().to_string()),
            entry("content", self.content),
        ])
    }

    /// A request to stage it.
    pub(crate) fn stage(&self, capability: VolumeCapability) -> csi::NodeStageVolumeRequest {
        requests::stage(&self.id, self.publish_context(), &self.staging, capability)
    }

    /// A request to unstage it.
    pub(crate) fn unstage(&self) -> csi::NodeUnstageVolumeRequest {
        requests::unstage(&self.id, &self.staging)
    }

    /// A request to publish it to a pod.
    pub(crate) fn publish(
        &self,
        target: &Path,
        capability: VolumeCapability,
    ) -> csi::NodePublishVolumeRequest {
        let context = self.publish_context();
        requests::publish(&self.id, context, &self.staging, target, capability)
    }

    /// [`Volume::publish`], read-only.
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

    /// A request to unpublish it from a pod.
    pub(crate) fn unpublish(&self, target: &Path) -> csi::NodeUnpublishVolumeRequest {
        requests::unpublish(&self.id, target)
    }

    /// A query of its usage.
    pub(crate) fn stats(&self, path: &Path) -> csi::NodeGetVolumeStatsRequest {
        requests::stats(&self.id, path, &self.staging)
    }

    /// A request to grow to the size of its file.
    pub(crate) fn expand(
        &self,
        path: &Path,
        capability: VolumeCapability,
    ) -> csi::NodeExpandVolumeRequest {
        let bytes = i64::try_from(self.bytes()).expect("a size");
        self.expand_to(bytes, path, capability)
    }

    /// A request to grow to at least that size in bytes.
    pub(crate) fn expand_to(
        &self,
        bytes: i64,
        path: &Path,
        capability: VolumeCapability,
    ) -> csi::NodeExpandVolumeRequest {
        requests::expand(&self.id, path, &self.staging, bytes, capability)
    }

    /// Unpublishes these targets and unstages it, at the end of a test. Like the kubelet, it
    /// retries while another process on this machine has the device open.
    #[track_caller]
    pub(crate) fn down(&self, node: &NodeCalls, targets: &[&Path]) {
        for target in targets {
            node.unpublish(self.unpublish(target)).expect("unpublish");
        }
        let what = format!("{} is unstaged", self.id);
        retried(&what, || node.unstage(self.unstage()));
    }
}
