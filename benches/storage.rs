//! The storage of a volume: a file of this run, a disk of the machine, or a directory of an NFS
//! server. Finds the disks and the server, and does not call belay-node.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use belay_bed::mounts;
use belay_contract::disk::DiskIdentity;
use belay_contract::publish_context::{Content, PublishContext, Transport};

use crate::bench_dir::{BenchDir, at};
use crate::volume::VOLUME_BYTES;

/// The serial numbers of the disks, and the names of the directories on an NFS server: for the
/// volume of belay-node, and for the volume of the bare system calls.
const NAMES: [&str; 2] = ["belay-bench-ours", "belay-bench-bare"];
/// The environment variable with the exported directory, as `ADDRESS:/DIRECTORY`.
const EXPORT: &str = "BELAY_BENCH_NFS";
/// The version of NFS, which is the first version that belay-node tries.
const NFS_VERSION: &str = "4.2";

/// The storage of two similar volumes, or the reason why this machine has none.
pub type Pair = Result<[Storage; 2], String>;

/// The storage of a volume.
#[derive(Clone, Debug)]
pub enum Storage {
    /// A file, which each stage binds to a loop device.
    File(PathBuf),
    /// A disk with a serial number, as a cloud attaches it.
    Disk {
        /// The path of the device node.
        device: PathBuf,
        /// The serial number, by which the agent finds the disk.
        serial: &'static str,
    },
    /// A directory of an NFS server, which is published without a stage.
    Directory {
        /// The directory that the server exports.
        export: Export,
        /// The name of the volume's directory in the exported directory.
        name: &'static str,
    },
}

/// A directory that an NFS server exports.
#[derive(Clone, Debug)]
pub struct Export {
    address: String,
    share: String,
}

impl Storage {
    /// Finds two virtio disks by their serial numbers.
    ///
    /// # Errors
    /// Fails if sysfs cannot be read.
    pub fn disks() -> io::Result<Pair> {
        let [ours, bare] = NAMES;
        Ok(match (disk(ours)?, disk(bare)?) {
            (Some(ours), Some(bare)) => Ok([ours, bare]),
            _ => Err(format!(
                "this machine lacks virtio disks with the serial numbers {ours} and {bare}"
            )),
        })
    }

    /// Creates two directories on an NFS server. The exported directory stays mounted, so that no
    /// other mount has to connect to the server.
    ///
    /// # Errors
    /// Fails if the exported directory cannot be mounted or written.
    pub fn directories(bench_dir: &BenchDir) -> io::Result<Pair> {
        let Ok(text) = std::env::var(EXPORT) else {
            return Ok(Err(format!("{EXPORT} is not set to an NFS export")));
        };
        let Some((address, share)) = text.split_once(":/") else {
            return Err(io::Error::other(format!(
                "{EXPORT}: {text:?} is not ADDRESS:/DIRECTORY"
            )));
        };
        let export = Export {
            address: address.to_owned(),
            share: format!("/{}", share.trim_matches('/')),
        };
        let root = bench_dir.directory("export")?;
        let mounted = export.mount("", &root);
        mounted.map_err(|error| at("mount the export on", &root, error))?;
        for name in NAMES {
            bench_dir.directory(&format!("export/{name}"))?;
        }
        Ok(Ok(NAMES.map(|name| Storage::Directory {
            export: export.clone(),
            name,
        })))
    }

    /// Returns the publish context that the volume's controller would send.
    pub(crate) fn publish_context(&self) -> HashMap<String, String> {
        let Storage::Disk { serial, .. } = self else {
            return HashMap::new();
        };
        let context = PublishContext {
            transport: Transport::Disk(DiskIdentity::Serial((*serial).to_owned())),
            bytes: VOLUME_BYTES,
            content: Content::New,
            read_only: false,
            attached_at: None,
            marks: Vec::new(),
        };
        context.entries().collect()
    }

    /// Returns the volume context that the volume's controller would send.
    pub(crate) fn volume_context(&self) -> HashMap<String, String> {
        let Storage::Directory { export, name } = self else {
            return HashMap::new();
        };
        let entries = [
            ("server", export.address.as_str()),
            ("share", &export.share),
            ("subDir", name),
        ];
        entries
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }
}

impl Export {
    /// Mounts the directory `name` of the exported directory, with the system calls and the
    /// parameters of belay-node.
    ///
    /// # Errors
    /// Fails if a system call fails.
    pub(crate) fn mount(&self, name: &str, point: &Path) -> io::Result<()> {
        let directory = format!("{}/{name}", self.share);
        let source = format!("{}:/{}", self.address, directory.trim_matches('/'));
        let parameters = [
            ("source", source.as_str()),
            ("addr", &self.address),
            ("vers", NFS_VERSION),
        ];
        mounts::mount_with("nfs", &parameters, point)
    }
}

/// Returns the disk with this serial number; `None` if there is no such disk.
fn disk(serial: &'static str) -> io::Result<Option<Storage>> {
    let block = Path::new("/sys/block");
    for entry in fs::read_dir(block).map_err(|error| at("read", block, error))? {
        let entry = entry?;
        // Other kinds of devices do not have this attribute.
        let shown = fs::read_to_string(entry.path().join("serial")).unwrap_or_default();
        if shown.trim_end() == serial {
            let device = Path::new("/dev").join(entry.file_name());
            return Ok(Some(Storage::Disk { device, serial }));
        }
    }
    Ok(None)
}
