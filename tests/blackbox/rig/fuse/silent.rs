//! A filesystem whose server stops responding. It contains one file, and responds to all requests
//! until it is silenced; from then on, its callers wait in the kernel.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::super::test_dir::TestDir;
use super::{Attributes, FuseMount, Reply, Request, Server, abort, op};

/// Maximum duration of the silence, longer than any wait of a test.
const SILENT_MAX: Duration = Duration::from_secs(90);

/// The number of the directory (`FUSE_ROOT_ID`); the file's number follows.
const ROOT: u64 = 1;
const FILE: u64 = 2;
const FILE_BYTES: u64 = 1 << 20;

/// The mounted filesystem. Unmounted when this is dropped; its callers then get an error.
pub(crate) struct Fuse {
    mount: FuseMount,
    is_silent: Arc<AtomicBool>,
    /// Ends the silence when this is dropped.
    end: Option<Sender<()>>,
}

impl Fuse {
    /// Mounts the filesystem in the test directory, with a file of this name in it.
    pub(crate) fn mount(test_dir: &TestDir, file: &str) -> Self {
        let is_silent = Arc::new(AtomicBool::new(false));
        let server = OneFile {
            name: file.to_owned(),
            is_silent: Arc::clone(&is_silent),
        };
        Fuse {
            mount: FuseMount::new(&test_dir.directory("fuse"), server),
            is_silent,
            end: None,
        }
    }

    /// Returns the mount point.
    pub(crate) fn point(&self) -> &Path {
        self.mount.point()
    }

    /// Stops responding from now on. The silence ends even if the test fails, since a process that
    /// waits for it cannot be killed.
    pub(crate) fn silence(&mut self) {
        self.is_silent.store(true, Ordering::SeqCst);
        let (end, ended) = mpsc::channel();
        let connection = self.mount.connection();
        std::thread::spawn(move || {
            if ended.recv_timeout(SILENT_MAX) == Err(RecvTimeoutError::Timeout) {
                abort(connection);
            }
        });
        self.end = Some(end);
    }
}

struct OneFile {
    name: String,
    is_silent: Arc<AtomicBool>,
}

impl Server for OneFile {
    fn answer(&mut self, mut request: Request<'_>) -> Option<Result<Vec<u8>, Errno>> {
        if self.is_silent.load(Ordering::SeqCst) {
            return None;
        }
        Some(match request.op() {
            op::LOOKUP if request.name() == self.name => Ok(Reply::entry(&attributes(FILE)).done()),
            op::LOOKUP => Err(Errno::NOENT),
            op::GETATTR => Ok(Reply::attr(&attributes(request.node())).done()),
            op::OPEN | op::OPENDIR => Ok(Reply::default().u64s(&[1, 0]).done()),
            op::READ => {
                request.skip(16);
                Ok(vec![0; usize::try_from(request.u32()).expect("small")])
            }
            op::STATFS => Ok(vec![0; 80]),
            op::RELEASE | op::RELEASEDIR | op::FLUSH => Ok(Vec::new()),
            _ => Err(Errno::NOSYS),
        })
    }
}

fn attributes(ino: u64) -> Attributes {
    let (mode, bytes) = match ino {
        ROOT => (0o040_755, 4096),
        _ => (0o100_644, FILE_BYTES),
    };
    Attributes {
        ino,
        bytes,
        blocks: bytes / 512,
        mode,
        links: 1,
        changed: SystemTime::UNIX_EPOCH,
    }
}
