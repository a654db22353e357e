//! A slot for a disk in a machine: a socket that a guest's kernel connects to when it binds the
//! slot's driver. An empty slot refuses connections.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::session::Session;
use super::{Disk, Inserted};

/// Maximum time until the connections of a killed guest are closed.
const END_MAX: Duration = Duration::from_secs(60);

/// A slot for a disk: the socket, and the thread that serves the socket.
#[derive(Debug)]
pub struct Slot {
    shared: Arc<Shared>,
    path: PathBuf,
    is_scsi: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    inserted: Mutex<Option<Arc<Inserted>>>,
    is_connected: Mutex<bool>,
    disconnected: Condvar,
    wake: OwnedFd,
    is_closing: AtomicBool,
}

impl Slot {
    pub(crate) fn new(path: &Path, is_scsi: bool) -> Self {
        let listener = UnixListener::bind(path).expect("the socket of a slot");
        let shared = Arc::new(Shared {
            inserted: Mutex::new(None),
            is_connected: Mutex::new(false),
            disconnected: Condvar::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd"),
            is_closing: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || theirs.serve_all(&listener));
        Slot {
            shared,
            path: path.to_owned(),
            is_scsi,
            thread: Some(thread),
        }
    }

    /// Inserts a disk. A running guest notices the disk only at
    /// [`Guest::attach`](crate::Guest::attach).
    ///
    /// # Panics
    /// Panics if the slot is for the other kind of disk.
    pub fn insert(&self, disk: Disk) {
        assert_eq!(disk.is_scsi(), self.is_scsi, "a slot for another kind");
        let inserted = Inserted {
            disk,
            is_held: AtomicBool::new(false),
        };
        *self.shared.inserted() = Some(Arc::new(inserted));
    }

    /// Removes the disk, without notice to a running guest.
    pub fn remove(&self) {
        *self.shared.inserted() = None;
        self.shared.wake();
    }

    /// Removes the disk once no guest is connected to it. A guest that has unbound the disk may
    /// keep the connection while a program has the disk open. The guest's kernel crashes if the
    /// connection ends during that time (vu_conn_broken).
    pub fn eject(&self) {
        self.wait_for_end();
        self.remove();
    }

    /// Grows the medium to this size in bytes, and notifies the guest.
    ///
    /// # Panics
    /// Panics if the slot is empty.
    pub fn grow(&self, bytes: u64) {
        self.disk().disk.medium.resize(bytes);
        self.shared.wake();
    }

    /// Leaves all requests without a response until [`Slot::release`].
    ///
    /// # Panics
    /// Panics if the slot is empty.
    pub fn hold(&self) {
        self.disk().is_held.store(true, Ordering::SeqCst);
    }

    /// Responds to requests again, first to the held requests.
    ///
    /// # Panics
    /// Panics if the slot is empty.
    pub fn release(&self) {
        self.disk().is_held.store(false, Ordering::SeqCst);
        self.shared.wake();
    }

    /// Waits until no guest is connected: from then on no write of a killed guest reaches the disk.
    pub(crate) fn wait_for_end(&self) {
        let shared = &self.shared;
        let connected = shared.connected();
        let waited = shared
            .disconnected
            .wait_timeout_while(connected, END_MAX, |connected| *connected);
        let waited = waited.unwrap_or_else(PoisonError::into_inner).1;
        if waited.timed_out() {
            eprintln!("a killed guest still has {}", self.path.display());
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_scsi(&self) -> bool {
        self.is_scsi
    }

    fn disk(&self) -> Arc<Inserted> {
        let inserted = self.shared.inserted().clone();
        inserted.expect("a disk in the slot")
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        self.shared.wake();
        // The thread may be waiting for a connection, so open one to end the wait.
        let woken = UnixStream::connect(&self.path);
        if let Some(thread) = self.thread.take()
            && woken.is_ok()
            && thread.join().is_err()
        {
            eprintln!("the disk in {} has panicked", self.path.display());
        }
    }
}

impl Shared {
    fn inserted(&self) -> MutexGuard<'_, Option<Arc<Inserted>>> {
        self.inserted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connected(&self) -> MutexGuard<'_, bool> {
        let connected = self.is_connected.lock();
        connected.unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).expect("write to an eventfd");
    }

    /// Serves connections, one after the other.
    fn serve_all(&self, listener: &UnixListener) {
        for stream in listener.incoming() {
            if self.is_closing.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            let inserted = self.inserted().clone();
            let Some(inserted) = inserted else { continue };
            *self.connected() = true;
            // Do not report a killed guest, which may close its end in the middle of a message.
            if let Err(error) = self.serve(stream, &inserted)
                && error.kind() != io::ErrorKind::UnexpectedEof
                && error.kind() != io::ErrorKind::ConnectionReset
            {
                eprintln!("a disk drops its guest: {error}");
            }
            *self.connected() = false;
            self.disconnected.notify_all();
        }
    }

    fn serve(&self, stream: UnixStream, inserted: &Arc<Inserted>) -> io::Result<()> {
        let is_over = || {
            let now = self.inserted();
            let is_there = now.as_ref().is_some_and(|now| Arc::ptr_eq(now, inserted));
            self.is_closing.load(Ordering::SeqCst) || !is_there
        };
        Session::new(stream, inserted).serve(self.wake.as_fd(), is_over)
    }
}
