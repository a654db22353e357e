//! The publish context, in which the controller describes an attached volume to the node (CSI 1.13,
//! `ControllerPublishVolumeResponse.publish_context`). The VolumeAttachment stores the publish
//! context from attach to detach, over months and reboots. The field `content` may therefore be
//! outdated, since a volume may hold more data by now.

use crate::disk::{self, DiskIdentity, WordError};
use crate::drivers::{Profile, TRANSPORT_DISK};
use crate::mark::{self, MarkSecret, SECRETS_MAX};
use belay_server::call::Failure;
use belay_server::request::{Context, VolumeId};

const TRANSPORT: &str = "transport";
const SERIAL: &str = "serial";
const WWN: &str = "wwn";
const NAMES: &str = "names";
const BYTES: &str = "bytes";
const CONTENT: &str = "content";
const READ_ONLY: &str = "read_only";
const ATTACHED_AT: &str = "attached_at";
const MARK: &str = "mark";

/// The time in seconds after the attachment of a disk during which the node trusts
/// [`Content::New`]. After this time, the value may be outdated, since Kubernetes keeps the context
/// for months.
const NEW_SECONDS: u64 = 600;

/// The publish context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishContext {
    /// The transport by which the node reaches the volume.
    pub transport: Transport,
    /// The minimum size of the volume's device, in bytes.
    pub bytes: u64,
    /// The data on the volume, which decides whether it may be formatted.
    pub content: Content,
    /// Whether the node must not write to the volume.
    pub read_only: bool,
    /// The time at which the storage attached the volume, according to the storage's clock, in
    /// seconds since 1970; `None` if unknown.
    pub attached_at: Option<u64>,
    /// The secrets for the format mark on a disk. A new mark contains the first secret, and a mark
    /// with any of the secrets is accepted. If there are no secrets, an interrupted format is not
    /// resumed.
    pub marks: Vec<MarkSecret>,
}

/// The transport by which a node reaches a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A loop device over a file in the node's own directory of volume files.
    Loop,
    /// A disk that is attached to the node.
    Disk(DiskIdentity),
}

/// The backend's knowledge of the data on a volume, which decides whether the node may format the
/// volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The volume never held data. The node may format the volume after checking that the volume is
    /// blank.
    New,
    /// The volume may have held data. The node may format the volume only if all bytes of the
    /// volume are zero.
    Used,
    /// The volume holds data, or was created from a source. The node never formats the volume.
    Populated,
    /// The backend does not know the content of the volume, or a different driver wrote the
    /// context. The volume is formatted only if `--unknown-content` makes the agent treat it as
    /// [`Content::Used`].
    Unknown,
}

impl Content {
    /// All values.
    pub const ALL: [Content; 4] = [
        Content::New,
        Content::Used,
        Content::Populated,
        Content::Unknown,
    ];

    /// Returns the name of this value in the publish context.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Content::New => "new",
            Content::Used => "used",
            Content::Populated => "populated",
            Content::Unknown => "unknown",
        }
    }

    fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|content| content.word() == word)
    }
}

impl PublishContext {
    /// Returns the context of a volume that is a local file. No controller attaches a local file.
    /// All other information is in the extended attributes of the file ([`crate::drivers::local`]).
    #[must_use]
    pub fn of_file() -> Self {
        Self {
            transport: Transport::Loop,
            bytes: 0,
            content: Content::New,
            read_only: false,
            attached_at: None,
            marks: Vec::new(),
        }
    }

    /// Whether the volume is new at the time `now`, in seconds since 1970. A volume is new if it
    /// was created empty, and was attached for the first time at most a few minutes ago. A wrong
    /// clock can only make a new volume count as used.
    #[must_use]
    pub fn is_new_at(&self, now: u64) -> bool {
        let is_recent = |attached: u64| now.abs_diff(attached) <= NEW_SECONDS;
        self.content == Content::New && self.attached_at.is_some_and(is_recent)
    }

    /// Returns the context as keys and values. A missing key means `false` or unknown.
    pub fn entries(&self) -> impl Iterator<Item = (String, String)> {
        let mut entries = Vec::new();
        if let Transport::Disk(identity) = &self.transport {
            entries.push((TRANSPORT, TRANSPORT_DISK.to_owned()));
            entries.push(word_of(identity));
        }
        entries.push((BYTES, self.bytes.to_string()));
        entries.push((CONTENT, self.content.word().to_owned()));
        if self.read_only {
            entries.push((READ_ONLY, true.to_string()));
        }
        if let Some(seconds) = self.attached_at {
            entries.push((ATTACHED_AT, seconds.to_string()));
        }
        if !self.marks.is_empty() {
            entries.push((MARK, mark::list(&self.marks)));
        }
        entries
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
    }

    /// Reads the publish context of a volume for a driver with this profile. Keys of other drivers
    /// are ignored. A context without Belay's keys is from the controller of the driver that Belay
    /// replaces, and only identifies the volume's disk.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the key.
    pub fn read(volume: &VolumeId, context: &Context, profile: &Profile) -> Result<Self, Failure> {
        let read_only = read_only(context)?;
        if context.get(TRANSPORT).is_none() && !profile.disk_names.is_empty() {
            let names = profile.names_of(named_by(volume, context, profile)?);
            return Ok(Self {
                transport: Transport::Disk(DiskIdentity::Names(names)),
                bytes: 0,
                content: Content::Unknown,
                read_only,
                attached_at: None,
                marks: Vec::new(),
            });
        }
        let transport = match required(context, TRANSPORT)? {
            other if other != profile.transport => {
                let why = format!("{other:?} is not how volumes of {} come", profile.name);
                return Err(invalid(TRANSPORT, &why));
            }
            _ => Transport::Disk(identity(context)?),
        };
        let bytes = required(context, BYTES)?
            .parse()
            .map_err(|_| invalid(BYTES, "must be a number of bytes"))?;
        let word = required(context, CONTENT)?;
        let content =
            Content::of(word).ok_or_else(|| invalid(CONTENT, &format!("{word:?} is not known")))?;
        let attached_at = context.get(ATTACHED_AT).map(str::parse).transpose();
        Ok(Self {
            transport,
            bytes,
            content,
            read_only,
            attached_at: attached_at
                .map_err(|_| invalid(ATTACHED_AT, "must be a number of seconds"))?,
            marks: match context.get(MARK) {
                Some(list) => mark::parse(list).ok_or_else(malformed)?,
                None => Vec::new(),
            },
        })
    }
}

/// Returns the text that the name of the volume's disk contains: the ID of the volume, or the
/// volume's name from the publish context of the replaced driver. The name of the replaced driver,
/// which is part of the context key, is ignored.
fn named_by<'a>(
    volume: &'a VolumeId,
    context: &'a Context,
    profile: &Profile,
) -> Result<&'a str, Failure> {
    let Some(key) = profile.disk_name_key else {
        return Ok(volume.as_str());
    };
    let mut entries = context.iter();
    let is_it = |entry: &str| entry.rsplit_once('/').is_some_and(|(_, own)| own == key);
    let found = entries.find(|(entry, _)| is_it(entry));
    let key = format!("{}/{key}", profile.name);
    let (_, name) = found.ok_or_else(|| missing(&key))?;
    disk::word(name).map_err(|error| invalid(&key, &error.to_string()))?;
    Ok(name)
}

/// Returns the error for malformed secrets. The error does not contain the text of the secrets.
fn malformed() -> Failure {
    invalid(
        MARK,
        &format!("must be at most {SECRETS_MAX} secrets of 64 hexadecimal digits each"),
    )
}

fn word_of(identity: &DiskIdentity) -> (&'static str, String) {
    match identity {
        DiskIdentity::Serial(serial) => (SERIAL, serial.clone()),
        DiskIdentity::Wwn(wwn) => (WWN, wwn.clone()),
        DiskIdentity::Names(names) => (NAMES, disk::list(names)),
    }
}

/// Reads the identity of the disk; fails unless the context contains exactly one of the three keys.
fn identity(context: &Context) -> Result<DiskIdentity, Failure> {
    let bad = |key| move |error: WordError| invalid(key, &error.to_string());
    let word = |key, text| disk::word(text).map_err(bad(key));
    match [SERIAL, WWN, NAMES].map(|key| context.get(key)) {
        [Some(serial), None, None] => Ok(DiskIdentity::Serial(word(SERIAL, serial)?)),
        [None, Some(wwn), None] => Ok(DiskIdentity::Wwn(word(WWN, wwn)?)),
        [None, None, Some(names)] => {
            let names = disk::names(names).map_err(bad(NAMES))?;
            Ok(DiskIdentity::Names(names))
        }
        [None, None, None] => Err(missing(SERIAL)),
        _ => Err(invalid(
            SERIAL,
            "a disk is recognised by one of serial, wwn and names, and here are several",
        )),
    }
}

fn read_only(context: &Context) -> Result<bool, Failure> {
    match context.get(READ_ONLY) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => {
            let why = format!("{other:?} is not true or false");
            Err(invalid(READ_ONLY, &why))
        }
    }
}

/// Whether the context forbids the node to write. This function is for calls that need no other
/// part of the context.
#[must_use]
pub fn says_read_only(context: &Context) -> bool {
    context.get(READ_ONLY) == Some("true")
}

fn required<'a>(context: &'a Context, key: &str) -> Result<&'a str, Failure> {
    context.get(key).ok_or_else(|| missing(key))
}

fn missing(key: &str) -> Failure {
    let why = "is missing; the volume must be attached by this driver's controller first";
    invalid(key, why)
}

fn invalid(key: &str, why: &str) -> Failure {
    Failure::invalid(&format!("publish_context[{key}]"), why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::{CIVO, DIGITALOCEAN, OPENSTACK};

    fn context(entries: impl IntoIterator<Item = (String, String)>) -> Context {
        Context::new("publish_context", entries).unwrap()
    }

    fn read_by(profile: &Profile, context: &Context) -> Result<PublishContext, Failure> {
        PublishContext::read(&VolumeId::new("vol-1").unwrap(), context, profile)
    }

    fn read(context: Context) -> Result<PublishContext, Failure> {
        read_by(&OPENSTACK, &context)
    }

    fn example() -> PublishContext {
        PublishContext {
            transport: Transport::Disk(DiskIdentity::Serial("vol-1".to_owned())),
            bytes: 1 << 30,
            content: Content::New,
            read_only: false,
            attached_at: None,
            marks: Vec::new(),
        }
    }

    #[test]
    fn a_disk_is_new_for_ten_minutes_by_either_clock_and_only_if_its_controller_says_so() {
        let attached = 1_800_000_000;
        let said = PublishContext {
            attached_at: Some(attached),
            ..example()
        };
        for (now, is_new) in [
            (attached, true),
            (attached + 600, true),
            (attached + 601, false),
            (attached - 600, true),
            (attached - 601, false),
            (0, false),
            (u64::MAX, false),
        ] {
            assert_eq!(said.is_new_at(now), is_new, "{now}");
            for content in Content::ALL.into_iter().filter(|it| *it != Content::New) {
                let said = PublishContext {
                    content,
                    ..said.clone()
                };
                assert!(!said.is_new_at(now), "{content:?}");
            }
        }
        assert!(!example().is_new_at(attached));
    }

    #[test]
    fn an_attachment_of_csi_digitalocean_names_the_disk_by_the_name_of_the_volume() {
        for key in [
            "dobs.csi.digitalocean.com/volume-name",
            "com.digitalocean.csi.dobs/volume-name",
        ] {
            let context = context([(key.to_owned(), "my-data".to_owned())]);
            let said = read_by(&DIGITALOCEAN, &context).unwrap();
            let names = vec!["scsi-0DO_Volume_my-data".to_owned()];
            assert_eq!(said.transport, Transport::Disk(DiskIdentity::Names(names)));
            assert_eq!((said.content, said.bytes), (Content::Unknown, 0));
        }
        let bad = [("dobs.csi.digitalocean.com/volume-name", "a/b"), ("a", "b")];
        for (key, value) in bad {
            let context = context([(key.to_owned(), value.to_owned())]);
            let failure = read_by(&DIGITALOCEAN, &context).unwrap_err();
            let key = "publish_context[dobs.csi.digitalocean.com/volume-name]";
            assert!(failure.message.starts_with(key), "{failure}");
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

    /// Returns each way to recognise a disk, with the entry that encodes it in the context.
    fn disks() -> [(DiskIdentity, &'static str); 3] {
        let names = ["virtio-a", "scsi-0B_C_d"].map(str::to_owned);
        [
            (DiskIdentity::Serial("s-1".to_owned()), "serial=s-1"),
            (DiskIdentity::Wwn("0x5000".to_owned()), "wwn=0x5000"),
            (
                DiskIdentity::Names(names.to_vec()),
                "names=virtio-a,scsi-0B_C_d",
            ),
        ]
    }

    #[test]
    fn what_is_said_of_a_disk_the_node_reads() {
        for (identity, _) in disks() {
            let said = PublishContext {
                transport: Transport::Disk(identity),
                attached_at: Some(u64::MAX),
                marks: vec![[7; 32].into(), [8; 32].into()],
                ..example()
            };
            let context = context(said.entries());
            assert_eq!(read_by(&OPENSTACK, &context), Ok(said));
        }
    }

    #[test]
    fn a_disk_is_recognised_by_one_word_that_can_be_a_disks() {
        let common = [(TRANSPORT, TRANSPORT_DISK), (BYTES, "1"), (CONTENT, "new")];
        for (words, key) in [
            (&[][..], SERIAL),
            (&[(SERIAL, "a"), (WWN, "0x1")], SERIAL),
            (&[(SERIAL, "")], SERIAL),
            (&[(WWN, "a/b")], WWN),
            (&[(NAMES, "a,,b")], NAMES),
        ] {
            let entries = common.iter().chain(words);
            let entries = entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let refused = read_by(&OPENSTACK, &context(entries)).unwrap_err().message;
            let begin = format!("publish_context[{key}]: ");
            assert!(refused.starts_with(&begin), "{words:?}: {refused}");
        }
    }

    #[test]
    fn a_context_of_the_driver_that_is_replaced_names_the_disk_by_its_volume_alone() {
        let theirs = [("DevicePath".to_owned(), "/dev/vdb".to_owned())];
        let read = read_by(&OPENSTACK, &context(theirs.clone())).unwrap();
        let names = OPENSTACK.names_of("vol-1");
        assert_eq!(
            read,
            PublishContext {
                transport: Transport::Disk(DiskIdentity::Names(names)),
                bytes: 0,
                content: Content::Unknown,
                read_only: false,
                attached_at: None,
                marks: Vec::new(),
            }
        );
    }

    #[test]
    fn a_context_of_civo_csi_is_empty_and_the_disk_has_the_whole_id_of_its_volume() {
        let read = read_by(&CIVO, &context([])).unwrap();
        let names = [
            "scsi-0QEMU_QEMU_HARDDISK_vol-1",
            "scsi-SQEMU_QEMU_HARDDISK_vol-1",
        ];
        let names = names.map(str::to_owned).to_vec();
        assert_eq!(read.transport, Transport::Disk(DiskIdentity::Names(names)));
        assert_eq!((read.bytes, read.content), (0, Content::Unknown));
    }

    /// VolumeAttachments store publish contexts, so the words in a context must not change.
    #[test]
    fn the_words_do_not_change() {
        let words = |context: &PublishContext| {
            let words = context
                .entries()
                .map(|(key, value)| format!("{key}={value}"));
            words.collect::<Vec<_>>().join(" ")
        };
        let mut said = example();
        let expected = "transport=disk serial=vol-1 bytes=1073741824 content=new";
        assert_eq!(words(&said), expected);
        said.read_only = true;
        for (identity, word) in disks() {
            said.transport = Transport::Disk(identity);
            let expected = format!("transport=disk {word} bytes=1073741824 content=new");
            assert_eq!(words(&said), format!("{expected} read_only=true"));
        }
        said.attached_at = Some(7);
        said.marks = vec![[0x5a; 32].into()];
        let mark = "5a".repeat(32);
        let expected = format!(" read_only=true attached_at=7 mark={mark}");
        assert!(words(&said).ends_with(&expected));
    }

    #[test]
    fn an_incomplete_or_foreign_context_is_refused_by_key() {
        let whole: Vec<_> = example().entries().collect();
        // A context without the transport was written by a different driver.
        for (at, (key, _)) in whole.iter().enumerate().skip(1) {
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
            (ATTACHED_AT, "yesterday"),
            (MARK, "canary"),
        ] {
            let wrong = whole.iter().filter(|(known, _)| known != key).cloned();
            let wrong = wrong.chain([(key.to_owned(), value.to_owned())]);
            let refused = read(context(wrong)).unwrap_err().message;
            assert!(
                refused.starts_with(&format!("publish_context[{key}]")),
                "{refused}"
            );
            assert!(!refused.contains("canary"), "{refused}");
        }
        let more = whole
            .iter()
            .cloned()
            .chain([("theirs".to_owned(), "x".to_owned())]);
        assert_eq!(read(context(more)), Ok(example()));
    }
}
