//! The kernel's uevents of disks: netlink(7), `NETLINK_KOBJECT_UEVENT`. The kernel's
//! events reach the network namespace of a pod; the events of udev do not.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;

/// The multicast group that the kernel sends to; udevd sends to a different group (udev(7)).
const KERNEL_GROUP: u32 = 1;
/// Size of the receive buffer: four times the maximum that the kernel sends, `UEVENT_BUFFER_SIZE`
/// (include/linux/kobject.h).
const MESSAGE_BYTES: usize = 8192;
/// The sysfs directory of block devices without hardware: loop, device-mapper, MD, zram. On a node
/// that mounts images, these devices without hardware cause hundreds of events.
const VIRTUAL: &[u8] = b"/devices/virtual/block/";

/// A subscription to uevents.
#[derive(Debug)]
pub(crate) struct Uevents(AsyncFd<OwnedFd>);

impl Uevents {
    /// Subscribes to uevents. Needs no privilege. Must be called in the Tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the kernel was built without netlink, or is out of memory.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::KOBJECT_UEVENT);
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
        #[expect(
            deprecated,
            reason = "its replacement is unsafe because of types that may return another \
                      descriptor later; an OwnedFd does not"
        )]
        let socket = AsyncFd::new(socket)?;
        Ok(Uevents(socket))
    }

    /// Waits until a disk was added, changed or removed since the last call, or until events were
    /// lost, after which any disk may have changed. Consumes all queued events.
    ///
    /// # Errors
    /// Returns the kernel's error, after which no more events are received.
    pub(crate) async fn changed(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(drained) = ready.try_io(|socket| drain(socket.get_ref())) {
                return drained;
            }
        }
    }
}

/// Consumes all queued events. Fails with EAGAIN if no event was about a disk and no event was
/// lost.
fn drain(socket: &OwnedFd) -> io::Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    let mut has_changed = false;
    loop {
        let received = rustix::net::recvfrom(socket, &mut message[..], RecvFlags::TRUNC);
        match received {
            Ok((_, bytes, sender)) => {
                let sender = sender.and_then(|it| SocketAddrNetlink::try_from(it).ok());
                let is_kernel = sender.is_some_and(|sender| sender.pid() == 0);
                // A message that is longer than the buffer was truncated, so assume that a disk has
                // changed.
                let text = message.get(..bytes);
                has_changed |= is_kernel && text.is_none_or(is_of_disk);
            }
            // The queue was full, and the kernel dropped events.
            Err(Errno::NOBUFS) => has_changed = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if has_changed => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Whether the message is about a block device with hardware. A message is `ACTION@DEVPATH` and
/// `KEY=VALUE` pairs, each terminated by a zero (lib/kobject_uevent.c).
pub(super) fn is_of_disk(message: &[u8]) -> bool {
    let mut fields = message.split(|byte| *byte == 0);
    let mut head = fields
        .next()
        .unwrap_or_default()
        .splitn(2, |byte| *byte == b'@');
    let path = head.nth(1);
    path.is_some_and(|path| !path.starts_with(VIRTUAL))
        && fields.any(|field| field == b"SUBSYSTEM=block")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADD: &[u8] = b"add@/devices/pci0000:00/0000:00:07.0/virtio4/block/vdb\0ACTION=add\0\
        DEVPATH=/devices/pci0000:00/0000:00:07.0/virtio4/block/vdb\0SUBSYSTEM=block\0\
        MAJOR=252\0DISKSEQ=7\0";

    #[test]
    fn an_event_of_a_disk_is_one_whatever_happened_to_it() {
        assert!(is_of_disk(ADD));
        // The multipath head of an NVMe disk.
        assert!(is_of_disk(
            b"add@/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1\0SUBSYSTEM=block\0"
        ));
        for action in ["remove", "change", "move", "offline"] {
            let other = String::from_utf8(ADD.to_vec()).unwrap();
            let other = other.replace("add", action);
            assert!(is_of_disk(other.as_bytes()), "{action}");
        }
        for other in [
            &b""[..],
            b"\0\0\0",
            b"libudev\0\xfe\xed\xca\xfeSUBSYSTEM=block\0",
            b"change@/devices/virtual/block/loop3\0ACTION=change\0SUBSYSTEM=block\0",
            b"add@/devices/a\0SUBSYSTEM=net\0",
            b"add@/devices/a\0SUBSYSTEM=blocks\0",
            b"add@/devices/a\0X=SUBSYSTEM=block\0",
        ] {
            assert!(!is_of_disk(other), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn no_message_makes_it_panic(message in proptest::collection::vec(any::<u8>(), 0..300)) {
            is_of_disk(&message);
            let headed = [&b"add@"[..], &message].concat();
            is_of_disk(&headed);
        }
    }

    #[tokio::test]
    async fn what_another_process_sends_is_no_event() {
        let events = Uevents::open().unwrap();
        let own = rustix::net::getsockname(events.0.get_ref()).unwrap();
        let own = SocketAddrNetlink::try_from(own).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let protocol = Some(netlink::KOBJECT_UEVENT);
        let kind = SocketType::DGRAM;
        let other = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, protocol);
        let to = SocketAddrNetlink::new(own.pid(), 0);
        let sent = rustix::net::sendto(other.unwrap(), ADD, rustix::net::SendFlags::empty(), &to);
        // Some kernels reject the message in sendto(2).
        if sent.is_ok() {
            let drained = drain(events.0.get_ref());
            assert!(drained.is_err(), "an event that the kernel did not send");
        }
    }
}
