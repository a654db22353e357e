//! A replacement for the part of the kubelet that registers plugins: waits for sockets in its
//! directory, queries the plugin, and calls the driver at the reported endpoint at once.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use belay_bed::patience::{PATIENCE, until};
use belay_proto::csi::v1 as csi;
use belay_proto::pluginregistration::{PluginInfo, RegistrationStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use super::authority::call_by_path;
use super::calls::{NodeCalls, notify, registration_info};

/// An event of a socket in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Made(PathBuf),
    Removed(PathBuf),
}

/// The kubelet, from its start.
pub(crate) struct Kubelet {
    directory: PathBuf,
    inotify: OwnedFd,
    seen: Vec<Change>,
    /// The node ID that the kubelet expects from a driver.
    pub(crate) node_id: &'static str,
}

impl Kubelet {
    /// Starts a kubelet: creates its directory if necessary, and finds existing sockets.
    pub(crate) fn start(directory: &Path) -> Self {
        fs::create_dir_all(directory).expect("mkdir");
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let inotify = inotify::init(flags).expect("inotify");
        let events = WatchFlags::CREATE | WatchFlags::DELETE;
        inotify::add_watch(&inotify, directory, events).expect("a watch");
        let there = fs::read_dir(directory).expect("readdir").flatten();
        Kubelet {
            directory: directory.to_owned(),
            inotify,
            seen: there.map(|entry| Change::Made(entry.path())).collect(),
            node_id: "node-1",
        }
    }

    /// Waits for the next event since the last call.
    #[track_caller]
    pub(crate) fn sees(&mut self) -> Change {
        let end = Instant::now() + PATIENCE;
        while self.seen.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "nothing happened for {PATIENCE:?}");
            let left = Timespec::try_from(left).expect("a time");
            let mut event = [PollFd::new(&self.inotify, PollFlags::IN)];
            poll(&mut event, Some(&left)).expect("poll");
            self.look();
        }
        self.seen.remove(0)
    }

    fn look(&mut self) {
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.inotify, &mut room);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(error) if io::Error::from(error).kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => panic!("inotify: {error}"),
            };
            let Some(name) = event.file_name() else {
                continue;
            };
            let path = self.directory.join(name.to_str().expect("UTF-8"));
            self.seen.push(match event.events() {
                ReadFlags::CREATE => Change::Made(path),
                _ => Change::Removed(path),
            });
        }
    }

    /// Queries the plugin, and calls the driver, as the kubelet does before it registers the
    /// driver.
    pub(crate) fn asks(&self, socket: &Path) -> PluginInfo {
        // The file exists a moment before listen(2), so the kubelet retries for a while.
        until("the registration socket answers", || {
            UnixStream::connect(socket).is_ok()
        });
        call_by_path(socket, "/pluginregistration.Registration/GetInfo");
        let info = registration_info(socket).expect("GetInfo");
        let node = NodeCalls::new(PathBuf::from(&info.endpoint));
        let answer = node.info(csi::NodeGetInfoRequest {});
        assert_eq!(answer.expect("NodeGetInfo").node_id, self.node_id);
        info
    }

    /// Waits for the next socket, queries it, and registers the driver.
    #[track_caller]
    pub(crate) fn registers(&mut self, socket: &Path) -> PluginInfo {
        assert_eq!(self.sees(), Change::Made(socket.to_owned()));
        let info = self.asks(socket);
        let status = RegistrationStatus {
            plugin_registered: true,
            error: String::new(),
        };
        notify(socket, status).expect("NotifyRegistrationStatus");
        info
    }

    /// Waits for the next socket, queries it, and refuses the driver.
    #[track_caller]
    pub(crate) fn refuses(&mut self, socket: &Path, error: &str) {
        assert_eq!(self.sees(), Change::Made(socket.to_owned()));
        self.asks(socket);
        let status = RegistrationStatus {
            plugin_registered: false,
            error: error.to_owned(),
        };
        notify(socket, status).expect("NotifyRegistrationStatus");
    }
}
