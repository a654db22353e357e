//! What the controller passes to the node about an attached volume: the publish context (CSI 1.13,
//! `ControllerPublishVolumeResponse.publish_context`). The VolumeAttachment stores it from attach
//! to detach, over months and reboots, so its `content` may be outdated: a volume may hold more
//! data by now.

use crate::disk::DiskIdentity;
use belay_server::call::Failure;
use belay_server::request::{Context, VolumeId};

/// The transport of volumes that are files in the node's own directory.
pub const LOOP: &str = "loop";
/// The transport of volumes that a cloud plugs into the node as disks.
pub const DISK: &str = "disk";

const TRANSPORT: &str = "transport";
const FILE: &str = "file";
const SERIAL: &str = "serial";
const BYTES: &str = "bytes";
const CONTENT: &str = "content";
const READ_ONLY: &str = "read_only";

/// The publish context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishContext {
    /// How the node reaches the volume.
    pub transport: Transport,
    /// The minimum size of its device, in bytes.
    pub bytes: u64,
    /// Whether it may be formatted if it has no filesystem.
    pub content: Content,
    /// The node must not write.
    pub read_only: bool,
}

/// How a node reaches a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By a loop device over a file in the node's own directory of volume files.
    Loop {
        /// Its name in that directory.
        file: String,
    },
    /// By a disk that is plugged into the node.
    Disk(DiskIdentity),
}

/// The data that a volume holds, as far as its backend knows: the permission to format it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Never held data: may be formatted once proven blank.
    New,
    /// May have held data: may be formatted only if all of it reads as zeros.
    Used,
    /// Holds data, or was created from a source: never formatted.
    Populated,
}

impl Content {
    /// All variants.
    pub const ALL: [Content; 3] = [Content::New, Content::Used, Content::Populated];

    /// The word in the context.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Content::New => "new",
            Content::Used => "used",
            Content::Populated => "populated",
        }
    }

    fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|content| content.word() == word)
    }
}

impl PublishContext {
    /// As keys and values. An absent key is `false`.
    pub fn entries(&self) -> impl Iterator<Item = (String, String)> {
        let (transport, (key, value)) = match &self.transport {
            Transport::Loop { file } => (LOOP, (FILE, file.clone())),
            Transport::Disk(DiskIdentity::Serial(serial)) => (DISK, (SERIAL, serial.clone())),
        };
        let mut entries = vec![
            (TRANSPORT, transport.to_owned()),
            (key, value),
            (BYTES, self.bytes.to_string()),
            (CONTENT, self.content.word().to_owned()),
        ];
        if self.read_only {
            entries.push((READ_ONLY, true.to_string()));
        }
        entries
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
    }

    /// Parses the context of this volume's attachment. Unknown keys belong to other programs, and
    /// are ignored.
    ///
    /// # Errors
    /// `Invalid`, naming the key.
    pub fn read(volume: &VolumeId, context: &Context) -> Result<Self, Failure> {
        let transport = match required(context, TRANSPORT)? {
            LOOP => Transport::Loop {
                file: own_file(volume, required(context, FILE)?)?,
            },
            other => {
                let why = format!("{other:?} is not supported by this node");
                return Err(invalid(TRANSPORT, &why));
            }
        };
        let bytes = required(context, BYTES)?
            .parse()
            .map_err(|_| invalid(BYTES, "must be a number of bytes"))?;
        let word = required(context, CONTENT)?;
        let content =
            Content::of(word).ok_or_else(|| invalid(CONTENT, &format!("{word:?} is unknown")))?;
        let read_only = match context.get(READ_ONLY) {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => {
                let why = format!("must be true or false, not {other:?}");
                return Err(invalid(READ_ONLY, &why));
            }
        };
        Ok(Self {
            transport,
            bytes,
            content,
            read_only,
        })
    }
}

/// Whether the context says read-only, for calls that need nothing else from it.
#[must_use]
pub fn says_read_only(context: &Context) -> bool {
    context.get(READ_ONLY) == Some("true")
}

/// The file has the name of its volume.
fn own_file(volume: &VolumeId, file: &str) -> Result<String, Failure> {
    match file == volume.as_str() {
        true => Ok(file.to_owned()),
        false => Err(invalid(
            FILE,
            &format!("{file:?} is not the id of the volume"),
        )),
    }
}

fn required<'a>(context: &'a Context, key: &str) -> Result<&'a str, Failure> {
    context.get(key).ok_or_else(|| {
        invalid(
            key,
            "is missing; the volume must be attached by this driver's controller first",
        )
    })
}

fn invalid(key: &str, why: &str) -> Failure {
    Failure::invalid(&format!("publish_context[{key}]"), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(entries: impl IntoIterator<Item = (String, String)>) -> Context {
        Context::new("publish_context", entries).unwrap()
    }

    fn read(context: Context) -> Result<PublishContext, Failure> {
        PublishContext::read(&VolumeId::new("vol-1").unwrap(), &context)
    }

    fn example() -> PublishContext {
        PublishContext {
            transport: Transport::Loop {
                file: "vol-1".to_owned(),
            },
            bytes: 1 << 30,
            content: Content::New,
            read_only: false,
        }
    }

    #[test]
    fn the_node_reads_the_context_of_the_controller() {
        for content in Content::ALL {
            for (bytes, read_only) in [(0, false), (u64::MAX, true)] {
                let said = PublishContext {
                    bytes,
                    content,
                    read_only,
                    ..example()
                };
                assert_eq!(read(context(said.entries())), Ok(said));
            }
        }
    }

    /// Attachments from every release exist.
    #[test]
    fn the_words_are_those_of_every_release() {
        let words = |context: &PublishContext| {
            let words = context
                .entries()
                .map(|(key, value)| format!("{key}={value}"));
            words.collect::<Vec<_>>().join(" ")
        };
        let mut said = example();
        let expected = "transport=loop file=vol-1 bytes=1073741824 content=new";
        assert_eq!(words(&said), expected);
        said.read_only = true;
        assert_eq!(words(&said), format!("{expected} read_only=true"));
        said.transport = Transport::Disk(DiskIdentity::Serial("0a-1b".to_owned()));
        let expected = "transport=disk serial=0a-1b bytes=1073741824 content=new read_only=true";
        assert_eq!(words(&said), expected);
    }

    #[test]
    fn an_incomplete_or_foreign_context_is_refused_by_key() {
        let whole: Vec<_> = example().entries().collect();
        for (at, (key, _)) in whole.iter().enumerate() {
            let mut less = whole.clone();
            less.remove(at);
            let refused = read(context(less)).unwrap_err().message;
            assert!(
                refused.starts_with(&format!("publish_context[{key}]: is missing")),
                "{refused}"
            );
        }
        for (key, value) in [
            (TRANSPORT, "tape"),
            (BYTES, "-1"),
            (BYTES, ""),
            (CONTENT, "New"),
            (READ_ONLY, "yes"),
            (FILE, "vol-2"),
        ] {
            let wrong = whole.iter().filter(|(known, _)| known != key).cloned();
            let wrong = wrong.chain([(key.to_owned(), value.to_owned())]);
            let refused = read(context(wrong)).unwrap_err().message;
            assert!(
                refused.starts_with(&format!("publish_context[{key}]")),
                "{refused}"
            );
        }
        let more = whole
            .iter()
            .cloned()
            .chain([("theirs".to_owned(), "x".to_owned())]);
        assert_eq!(read(context(more)), Ok(example()));
    }
}
