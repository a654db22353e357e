//! The volumes of the cloud, with Cinder's states: files that are plugged into servers. A call such
//! as [`Volumes::attach`] begins a change, and [`Volumes::perform`] completes it. Independent of
//! the protocol.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use belay_guest::Medium;

use crate::server::{Host, lock};

const GIB: u64 = 1 << 30;
/// `VIRTIO_BLK_ID_BYTES` of Linux, to which libvirt truncates serials.
const SERIAL_BYTES: usize = 20;

/// A volume, in the state that the API reports.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) gib: u64,
    pub(crate) status: &'static str,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) attachment: Option<Attachment>,
    medium: Arc<Medium>,
}

/// The server of an attached volume, and the time of the attachment.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    pub(crate) server: String,
    pub(crate) at: SystemTime,
}

/// The reason why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The volume, server or attachment does not exist.
    NotFound(String),
    /// The request is invalid, or is impossible in the volume's state.
    Invalid(String),
    /// A limit is reached.
    Forbidden(String),
}

/// The part of a change that is performed after the response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Plug { volume: String, server: String },
    Unplug { volume: String, server: String },
}

/// All volumes, and the servers.
pub(crate) struct Volumes<S> {
    pub(crate) servers: Vec<S>,
    directory: PathBuf,
    all: Mutex<BTreeMap<String, Volume>>,
}

fn not_found(what: &str) -> Refusal {
    Refusal::NotFound(format!("{what} could not be found."))
}

fn status(volume: &Volume, must: &str) -> Refusal {
    let is = volume.status;
    let attached = match volume.attachment {
        // Clients recognise this error by these words, which Nova uses.
        Some(_) => ", it is already attached to instances",
        None => "",
    };
    Refusal::Invalid(format!("status must be {must}, but it is {is}{attached}"))
}

/// Returns the serial of the disk of the volume with this ID.
pub(crate) fn serial(id: &str) -> &str {
    id.get(..SERIAL_BYTES).unwrap_or(id)
}

/// Returns a random UUID (random(4)).
fn uuid() -> io::Result<String> {
    let line = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(line.trim_end().to_owned())
}

impl<S: Host> Volumes<S> {
    /// Creates an empty set of volumes. The files of later volumes will be in this directory.
    pub(crate) fn new(servers: Vec<S>, directory: PathBuf) -> Self {
        Volumes {
            servers,
            directory,
            all: Mutex::default(),
        }
    }

    pub(crate) fn server(&self, id: &str) -> Result<&S, Refusal> {
        let found = self.servers.iter().find(|server| server.id() == id);
        found.ok_or_else(|| not_found(&format!("Instance {id}")))
    }

    /// Returns all volumes, ordered by ID.
    pub(crate) fn list(&self) -> Vec<(String, Volume)> {
        let all = lock(&self.all);
        all.iter()
            .map(|(id, it)| (id.clone(), it.clone()))
            .collect()
    }

    pub(crate) fn get(&self, id: &str) -> Result<Volume, Refusal> {
        self.with(id, |volume| Ok(volume.clone()))
    }

    fn with<T>(
        &self,
        id: &str,
        act: impl FnOnce(&mut Volume) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut all = lock(&self.all);
        let volume = all.get_mut(id);
        act(volume.ok_or_else(|| not_found(&format!("Volume {id}")))?)
    }

    /// Creates an empty volume, and returns its ID.
    pub(crate) fn create(
        &self,
        name: &str,
        gib: u64,
        metadata: BTreeMap<String, String>,
    ) -> Result<String, Refusal> {
        if gib == 0 || gib > 1024 {
            return Err(Refusal::Invalid(format!("no volume has {gib} GiB")));
        }
        let id = uuid().map_err(|error| Refusal::Forbidden(error.to_string()))?;
        let volume = Volume {
            name: name.to_owned(),
            gib,
            status: "available",
            metadata,
            attachment: None,
            medium: Arc::new(Medium::new(&self.directory.join(&id), gib * GIB)),
        };
        lock(&self.all).insert(id.clone(), volume);
        Ok(id)
    }

    /// Adds entries to the metadata, and returns all metadata.
    pub(crate) fn mark(
        &self,
        id: &str,
        more: BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, Refusal> {
        self.with(id, |volume| {
            volume.metadata.extend(more);
            Ok(volume.metadata.clone())
        })
    }

    pub(crate) fn delete(&self, id: &str) -> Result<(), Refusal> {
        self.with(id, |volume| match volume.status {
            "available" => Ok(()),
            _ => Err(status(volume, "available or error")),
        })?;
        lock(&self.all).remove(id);
        if let Err(error) = fs::remove_file(self.directory.join(id)) {
            eprintln!("the file of volume {id}: {error}");
        }
        Ok(())
    }

    /// Grows the volume, even while the volume is plugged into a server.
    pub(crate) fn extend(&self, id: &str, gib: u64) -> Result<(), Refusal> {
        let volume = self.with(id, |volume| match volume.status {
            "available" | "in-use" if gib > volume.gib => {
                volume.gib = gib;
                Ok(volume.clone())
            }
            "available" | "in-use" => {
                let message = format!("New size must be greater than {}.", volume.gib);
                Err(Refusal::Invalid(message))
            }
            _ => Err(status(volume, "available or in-use")),
        })?;
        match &volume.attachment {
            Some(attachment) => {
                let server = self.server(&attachment.server)?;
                server.grow(serial(id), gib * GIB);
            }
            None => volume.medium.resize(gib * GIB),
        }
        Ok(())
    }

    pub(crate) fn attach(&self, id: &str, server: &str) -> Result<Work, Refusal> {
        self.server(server)?;
        self.with(id, |volume| match volume.status {
            "available" => {
                volume.status = "attaching";
                Ok(Work::Plug {
                    volume: id.to_owned(),
                    server: server.to_owned(),
                })
            }
            _ => Err(status(volume, "available")),
        })
    }

    pub(crate) fn detach(&self, id: &str, server: &str) -> Result<Work, Refusal> {
        self.server(server)?;
        self.with(id, |volume| {
            let attached = volume.attachment.as_ref();
            if attached.is_none_or(|attachment| attachment.server != server) {
                return Err(not_found(&format!("volume_id {id}")));
            }
            if volume.status != "in-use" {
                return Err(status(volume, "in-use"));
            }
            volume.status = "detaching";
            Ok(Work::Unplug {
                volume: id.to_owned(),
                server: server.to_owned(),
            })
        })
    }

    /// Performs the part of a change that follows the response. A volume for which there is no free
    /// slot becomes available again.
    pub(crate) fn perform(&self, work: &Work) {
        let done = match work {
            Work::Plug { volume, server } => self.plug(volume, server),
            Work::Unplug { volume, server } => self.unplug(volume, server),
        };
        if let Err(refusal) = done {
            eprintln!("{work:?}: {refusal:?}");
        }
    }

    fn plug(&self, id: &str, server: &str) -> Result<(), Refusal> {
        let medium = self.get(id)?.medium;
        let plugged = self.server(server)?.plug(serial(id), &medium);
        self.with(id, |volume| {
            let attachment = Attachment {
                server: server.to_owned(),
                at: SystemTime::now(),
            };
            volume.status = match &plugged {
                Ok(()) => "in-use",
                Err(_) => "available",
            };
            volume.attachment = plugged.is_ok().then_some(attachment);
            plugged.map_err(Refusal::Forbidden)
        })
    }

    fn unplug(&self, id: &str, server: &str) -> Result<(), Refusal> {
        self.server(server)?.unplug(serial(id));
        self.with(id, |volume| {
            volume.status = "available";
            volume.attachment = None;
            Ok(())
        })
    }
}
