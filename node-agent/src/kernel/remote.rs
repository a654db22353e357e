//! Filesystems of servers. A call that a server must answer may never return, so a helper process
//! makes it: the agent can kill a process, but not a thread. Defines what a helper is asked and
//! answers, and how both are sent. Knows no protocol of a server.

use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use belay_server::call::{Failure, Kind};

use super::{Descriptors, MountAttrs, Result, Usage};

/// A call that may wait for a server.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum RemoteCall {
    /// Makes a detached mount.
    Mount(RemoteMount),
    /// umount2(2).
    Unmount(PathBuf),
    /// umount2(2) with `MNT_DETACH`.
    Detach(PathBuf),
    /// statfs(2).
    Usage(PathBuf),
}

/// The mount to make.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RemoteMount {
    /// The host's name or address, without brackets.
    pub(crate) server: String,
    /// What the kernel calls the source.
    pub(crate) source: String,
    /// Attributes of the mount.
    pub(crate) attrs: MountAttrs,
    /// Parameters of the filesystem, in this order: name, and value if it has one.
    pub(crate) options: Vec<(String, Option<String>)>,
    /// The mode that the root of the mount must have; `None` leaves it as it is.
    pub(crate) permissions: Option<u32>,
}

/// What a helper process returns.
pub(crate) enum Answer<Fd> {
    /// A detached mount. The helper holds it as well until [`Helper::close`], so that the agent
    /// never closes the last descriptor of a mount, which may wait for the server.
    Mount(Fd),
    /// The mount was removed.
    Unmounted,
    /// The usage of the filesystem.
    Usage(Usage),
}

/// What a helper process returns, or why not.
pub(crate) type Answered<Fd> = std::result::Result<Answer<Fd>, Failure>;

/// The source of a mount, as the filesystem itself reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountSource {
    /// The filesystem type, as in /proc/filesystems.
    pub(crate) fs_type: String,
    /// The source; of a server's filesystem, with the directory that is mounted.
    pub(crate) source: OsString,
    /// The attributes of the mount.
    pub(crate) attrs: MountAttrs,
    /// The filesystem itself is read-only.
    pub(crate) superblock_read_only: bool,
}

/// A running helper process.
pub(crate) trait Helper<Fd>: Send + Sync + 'static {
    /// Waits for the answer. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The failure of the call; `System` if the process has ended without an answer.
    fn answer(&mut self) -> impl Future<Output = Answered<Fd>> + Send;
    /// Closes the connection, at which a process that has answered exits.
    fn close(&mut self);
    /// Sends SIGKILL. The process may remain until its server answers.
    fn kill(&self);
    /// Waits until the process has exited, and reaps it.
    fn exited(&mut self) -> impl Future<Output = ()> + Send;
}

/// The system calls for filesystems of servers.
pub(crate) trait Remotes: Descriptors {
    /// A helper process.
    type Helper: Helper<Self::Fd>;
    /// Starts a process for one call. Quick.
    fn start_helper(&self, call: &RemoteCall) -> Result<Self::Helper>;
    /// getaddrinfo(3): the addresses of a host, at least one; else the resolver's message, since
    /// it returns no errno. For a helper.
    fn addresses(&self, host: &str) -> std::result::Result<Vec<IpAddr>, String>;
    /// umount2(2) with `UMOUNT_NOFOLLOW | MNT_DETACH`. For a helper: if nothing uses the
    /// filesystem, it waits for the server as a plain umount2 does.
    fn umount_lazily(&self, path: &std::path::Path) -> Result<()>;
    /// The permissions of an open directory (fstat(2)). For a helper.
    fn mode(&self, fd: &Self::Fd) -> Result<u32>;
    /// fchmod(2). For a helper.
    fn chmod(&self, fd: &Self::Fd, mode: u32) -> Result<()>;
    /// The source of the mount whose root is `path`; `None` if it is not the root of a mount.
    /// statmount(2) where it shows sources (Linux 6.13), else mountinfo. Quick.
    fn mount_source(&self, path: &std::path::Path) -> Result<Option<MountSource>>;
}

/// Separates fields, which therefore cannot contain it.
const END: u8 = 0;
/// The longest message about a failure, in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;

/// The call as bytes.
pub(crate) fn encode_call(call: &RemoteCall) -> Vec<u8> {
    let mut fields: Vec<Vec<u8>> = Vec::new();
    let (verb, path) = match call {
        RemoteCall::Mount(mount) => {
            let permissions = mount
                .permissions
                .map_or_else(String::new, |it| it.to_string());
            let attrs = mount.attrs.bits().to_string();
            let head = ["mount", &mount.server, &mount.source, &attrs, &permissions];
            fields.extend(head.map(|field| field.as_bytes().to_vec()));
            let options = mount.options.iter().map(|(name, value)| match value {
                Some(value) => format!("{name}={value}").into_bytes(),
                None => name.clone().into_bytes(),
            });
            fields.extend(options);
            return fields.join(&END);
        }
        RemoteCall::Unmount(path) => ("unmount", path),
        RemoteCall::Detach(path) => ("detach", path),
        RemoteCall::Usage(path) => ("usage", path),
    };
    [verb.as_bytes(), path.as_os_str().as_bytes()].join(&END)
}

/// The call from bytes; `None` if they are none.
pub(crate) fn decode_call(bytes: &[u8]) -> Option<RemoteCall> {
    let mut fields = bytes.split(|byte| *byte == END);
    let verb = fields.next()?;
    let mut text = || String::from_utf8(fields.next()?.to_vec()).ok();
    if verb == b"mount" {
        let (server, source) = (text()?, text()?);
        let attrs = MountAttrs::from_bits(text()?.parse().ok()?);
        let permissions = match text()?.as_str() {
            "" => None,
            mode => Some(mode.parse().ok()?),
        };
        let options = fields.map(|option| {
            let option = String::from_utf8(option.to_vec()).ok()?;
            Some(match option.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (option, None),
            })
        });
        return Some(RemoteCall::Mount(RemoteMount {
            server,
            source,
            attrs,
            options: options.collect::<Option<_>>()?,
            permissions,
        }));
    }
    let path = OsString::from_vec(fields.next()?.to_vec()).into();
    match (verb, fields.next()) {
        (b"unmount", None) => Some(RemoteCall::Unmount(path)),
        (b"detach", None) => Some(RemoteCall::Detach(path)),
        (b"usage", None) => Some(RemoteCall::Usage(path)),
        _ => None,
    }
}

/// The answer as bytes. The descriptor of a mount is sent separately.
pub(crate) fn encode_answer<Fd>(answered: &Answered<Fd>) -> Vec<u8> {
    let text = match answered {
        Ok(Answer::Mount(_)) => "mounted".to_owned(),
        Ok(Answer::Unmounted) => "unmounted".to_owned(),
        Ok(Answer::Usage(usage)) => format!(
            "usage\0{}\0{}\0{}\0{}\0{}\0{}",
            usage.total_bytes,
            usage.used_bytes,
            usage.available_bytes,
            usage.total_inodes,
            usage.used_inodes,
            usage.free_inodes
        ),
        Err(failure) => {
            let kind = Kind::ALL.iter().position(|kind| *kind == failure.kind);
            let kind = kind.unwrap_or_default();
            let message = failure.message.replace('\0', " ");
            format!("failed\0{kind}\0{}", cut(&message))
        }
    };
    text.into_bytes()
}

/// As much of the message as an answer may have.
fn cut(message: &str) -> &str {
    let is_end = |end: &usize| message.is_char_boundary(*end);
    let end = (0..=message.len().min(MESSAGE_BYTES_MAX))
        .rev()
        .find(is_end);
    &message[..end.unwrap_or_default()]
}

/// The answer from bytes, and the descriptor that came with them; `None` if they are no answer.
pub(crate) fn decode_answer<Fd>(bytes: &[u8], mount: Option<Fd>) -> Option<Answered<Fd>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut fields = text.split('\0');
    let answered = match fields.next()? {
        "mounted" => Ok(Answer::Mount(mount?)),
        "unmounted" => Ok(Answer::Unmounted),
        "usage" => {
            let mut number = || fields.next()?.parse().ok();
            Ok(Answer::Usage(Usage {
                total_bytes: number()?,
                used_bytes: number()?,
                available_bytes: number()?,
                total_inodes: number()?,
                used_inodes: number()?,
                free_inodes: number()?,
            }))
        }
        "failed" => {
            let kind = Kind::ALL.get(fields.next()?.parse::<usize>().ok()?)?;
            Err(Failure::new(*kind, fields.next()?))
        }
        _ => return None,
    };
    fields.next().is_none().then_some(answered)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mount(options: &[(&str, Option<&str>)], permissions: Option<u32>) -> RemoteCall {
        let owned =
            |(name, value): &(&str, Option<&str>)| ((*name).to_owned(), value.map(str::to_owned));
        RemoteCall::Mount(RemoteMount {
            server: "fd00::1".to_owned(),
            source: "[fd00::1]:/a b/\u{e9}".to_owned(),
            attrs: MountAttrs::READ_ONLY.with(MountAttrs::NO_SYMFOLLOW),
            options: options.iter().map(owned).collect(),
            permissions,
        })
    }

    #[test]
    fn every_call_arrives_as_it_was_sent() {
        let odd = PathBuf::from(OsString::from_vec(b"/a\xff/=b".to_vec()));
        for call in [
            mount(&[], None),
            mount(&[("hard", None), ("vers", Some("4.1"))], Some(0o1777)),
            mount(
                &[
                    ("context", Some("a:b:c:s0:c1,c2")),
                    ("x", Some("")),
                    ("y", Some("a=b")),
                ],
                None,
            ),
            RemoteCall::Unmount(odd.clone()),
            RemoteCall::Detach("/b".into()),
            RemoteCall::Usage(odd),
        ] {
            assert!(decode_call(&encode_call(&call)) == Some(call));
        }
    }

    fn round_trip(answered: Answered<u8>) -> Option<Answered<u8>> {
        let fd = match &answered {
            Ok(Answer::Mount(fd)) => Some(*fd),
            _ => None,
        };
        decode_answer(&encode_answer(&answered), fd)
    }

    #[test]
    fn every_answer_arrives_as_it_was_sent() {
        assert!(matches!(
            round_trip(Ok(Answer::Mount(7))),
            Some(Ok(Answer::Mount(7)))
        ));
        let unmounted = round_trip(Ok(Answer::Unmounted));
        assert!(matches!(unmounted, Some(Ok(Answer::Unmounted))));
        let usage = Usage {
            total_bytes: 1,
            used_bytes: 2,
            available_bytes: 3,
            total_inodes: 4,
            used_inodes: 5,
            free_inodes: u64::MAX,
        };
        let Some(Ok(Answer::Usage(found))) = round_trip(Ok(Answer::Usage(usage))) else {
            panic!("no usage")
        };
        assert_eq!(found, usage);
        for kind in Kind::ALL {
            let failure = Failure::new(*kind, "mount: ECONNREFUSED; start it");
            assert_eq!(
                round_trip(Err(failure.clone())).unwrap().err(),
                Some(failure)
            );
        }
        // Cut, not refused.
        let long = Failure::bug("\u{e9}".repeat(MESSAGE_BYTES_MAX));
        let cut = round_trip(Err(long)).unwrap().err().unwrap();
        assert_eq!(cut.message.len(), MESSAGE_BYTES_MAX);
    }

    #[test]
    fn an_answer_without_its_descriptor_or_with_more_fields_is_none() {
        for bad in [
            &b"mounted"[..],
            b"",
            b"unmounted\0",
            b"usage\x001",
            b"failed\x0099\0m",
            b"\xff",
        ] {
            assert!(decode_answer::<u8>(bad, None).is_none(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes: Vec<u8>) {
            let _call = decode_call(&bytes);
            let _answer = decode_answer(&bytes, Some(1_u8));
        }
    }
}
