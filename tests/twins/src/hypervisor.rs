//! The disks behind the volumes of a twin: files in a directory, which `belay-guest-cloud` plugs
//! into its guests. Independent of the clouds.

use crate::lock;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// Maximum time for a response: plugging a disk takes a moment, but it takes a minute if the guest
/// has stopped.
const ANSWER_MAX: Duration = Duration::from_secs(90);

/// The SCSI vendor and product that a guest sees for a disk. `_` represents a space.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// The vendor, at most 8 characters.
    pub vendor: &'static str,
    /// The product, at most 16 characters.
    pub product: &'static str,
}

/// The disks of a twin. The hypervisor makes one change at a time.
#[derive(Debug)]
pub struct Hypervisor {
    socket: PathBuf,
    directory: PathBuf,
    model: Model,
    plugged: Mutex<BTreeMap<String, Plugged>>,
}

#[derive(Clone, Debug)]
struct Plugged {
    server: String,
    serial: String,
}

impl Hypervisor {
    /// Creates a hypervisor that controls guests by the operator's socket of `belay-guest-cloud`.
    /// The files of the disks will be in `directory`.
    #[must_use]
    pub fn new(socket: PathBuf, directory: PathBuf, model: Model) -> Self {
        Self {
            socket,
            directory,
            model,
            plugged: Mutex::default(),
        }
    }

    fn file(&self, id: &str) -> PathBuf {
        self.directory.join(id)
    }

    /// Creates a disk of zeros.
    ///
    /// # Errors
    /// Fails if the file exists, or cannot be created.
    pub fn create(&self, id: &str, bytes: u64) -> io::Result<()> {
        File::create_new(self.file(id))?.set_len(bytes)
    }

    /// Copies the current content of a disk, even while it is plugged into a guest.
    ///
    /// # Errors
    /// Fails if the disk cannot be copied.
    pub fn copy(&self, from: &str, to: &str) -> io::Result<()> {
        let plugged = lock(&self.plugged);
        let copy = self.file(to);
        if let Some(Plugged { server, serial }) = plugged.get(from) {
            return self.ask(&["copy", server, serial, &copy.to_string_lossy()]);
        }
        let mut cp = Command::new("cp");
        cp.args(["--reflink=auto", "--sparse=always", "--"]);
        let status = cp.arg(self.file(from)).arg(copy).stdin(Stdio::null());
        match status.status()? {
            status if status.success() => Ok(()),
            status => Err(io::Error::other(format!("cp: {status}"))),
        }
    }

    /// Grows a disk, even while it is plugged into a guest.
    ///
    /// # Errors
    /// Fails if the disk cannot be grown.
    pub fn grow(&self, id: &str, bytes: u64) -> io::Result<()> {
        let plugged = lock(&self.plugged);
        match plugged.get(id) {
            Some(Plugged { server, serial }) => {
                self.ask(&["grow", server, serial, &bytes.to_string()])
            }
            None => {
                let file = File::options().write(true).open(self.file(id))?;
                file.set_len(bytes)
            }
        }
    }

    /// Removes a disk that is not plugged into a guest.
    ///
    /// # Errors
    /// Fails if the disk cannot be removed.
    pub fn remove(&self, id: &str) -> io::Result<()> {
        fs::remove_file(self.file(id))
    }

    /// Plugs a disk with this serial into the guest with this name.
    ///
    /// # Errors
    /// Fails if the disk was not plugged.
    pub fn plug(&self, id: &str, serial: &str, server: &str) -> io::Result<()> {
        let mut plugged = lock(&self.plugged);
        let Model { vendor, product } = self.model;
        let file = self.file(id);
        self.ask(&[
            "plug",
            server,
            serial,
            &file.to_string_lossy(),
            vendor,
            product,
        ])?;
        let place = Plugged {
            server: server.to_owned(),
            serial: serial.to_owned(),
        };
        plugged.insert(id.to_owned(), place);
        Ok(())
    }

    /// Unplugs a disk from its guest, if any.
    ///
    /// # Errors
    /// Fails if the disk was not unplugged.
    pub fn unplug(&self, id: &str) -> io::Result<()> {
        let mut plugged = lock(&self.plugged);
        if let Some(Plugged { server, serial }) = plugged.get(id) {
            self.ask(&["unplug", server, serial])?;
        }
        plugged.remove(id);
        Ok(())
    }

    /// Sends an operator's request to `belay-guest-cloud`. The response is an exit code on a line,
    /// and a text.
    fn ask(&self, words: &[&str]) -> io::Result<()> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        writeln!(stream, "{}", words.join(" "))?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        match answer.split_once('\n') {
            Some(("0", _)) => Ok(()),
            _ => Err(io::Error::other(format!("{}: {answer}", words.join(" ")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::{Receiver, channel};

    const MODEL: Model = Model {
        vendor: "DO",
        product: "Volume",
    };

    /// Serves an operator's socket with these responses, and returns the requests that it receives.
    fn operator(socket: &std::path::Path, answers: Vec<&'static str>) -> Receiver<String> {
        let listener = UnixListener::bind(socket).unwrap();
        let (asked, requests) = channel();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                asked.send(io::read_to_string(&stream).unwrap()).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        requests
    }

    #[test]
    fn a_disk_is_changed_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let requests = operator(&path("socket"), vec!["0\n", "1\nfull", "0\n", "0\n", "0\n"]);
        let disks = Hypervisor::new(path("socket"), dir.path().to_owned(), MODEL);
        disks.create("v", 4096).unwrap();
        disks.create("v", 4096).unwrap_err();
        disks.plug("v", "pvc-1", "node2").unwrap();
        let full = disks.plug("w", "pvc-2", "node2").unwrap_err();
        assert!(full.to_string().contains("full"), "{full}");
        disks.grow("v", 8192).unwrap();
        disks.copy("v", "s").unwrap();
        disks.unplug("v").unwrap();
        // Unplugging a disk that is not plugged succeeds.
        disks.unplug("v").unwrap();
        disks.grow("v", 16384).unwrap();
        disks.copy("v", "s").unwrap();
        assert_eq!(fs::metadata(path("s")).unwrap().len(), 16384);
        disks.remove("v").unwrap();
        let file = |name: &str| path(name).display().to_string();
        let expected = [
            format!("plug node2 pvc-1 {} DO Volume\n", file("v")),
            format!("plug node2 pvc-2 {} DO Volume\n", file("w")),
            "grow node2 pvc-1 8192\n".to_owned(),
            format!("copy node2 pvc-1 {}\n", file("s")),
            "unplug node2 pvc-1\n".to_owned(),
        ];
        assert_eq!(requests.iter().collect::<Vec<_>>(), expected);
    }
}
