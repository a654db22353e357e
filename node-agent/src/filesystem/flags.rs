//! Mount flags, as in CSI's `mount_flags` and fstab, in one table: attributes of the mount,
//! parameters of the superblock, flags without meaning here, and refused flags.
//!
//! fsconfig(2) accepts only the filesystem's own parameters, so this module interprets the flags
//! that mount(8) would interpret. Values can be sensitive: messages contain only the names.

use std::fmt;

use belay_server::call::Failure;

use super::FsType;
use crate::kernel::MountAttrs;

/// Parsed mount flags.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct MountOptions {
    /// Set on the mount.
    pub(crate) attrs: MountAttrs,
    /// Passed to the filesystem, in this order: name, and value if it has one.
    pub(crate) superblock: Vec<(String, Option<String>)>,
}

impl MountOptions {
    /// The SELinux label that all files get.
    pub(crate) fn label(&self) -> Option<&str> {
        let mut all = self.superblock.iter();
        let (_, label) = all.find(|(name, _)| name == LABEL)?;
        label.as_deref()
    }
}

/// Whether two SELinux labels are equal: the kernel shows the categories, which are separated by
/// commas, in its own order.
pub(crate) fn is_same_label(one: &str, other: &str) -> bool {
    let parts = |label: &str| {
        let (rest, level) = label.rsplit_once(':').unwrap_or(("", label));
        let mut categories: Vec<String> = level.split(',').map(str::to_owned).collect();
        categories.sort_unstable();
        (rest.to_owned(), categories)
    };
    parts(one) == parts(other)
}

impl fmt::Debug for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self
            .superblock
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        f.debug_struct("MountOptions")
            .field("attrs", &self.attrs)
            .field("superblock", &names)
            .finish()
    }
}

/// The meaning of a flag.
#[derive(Clone, Copy)]
enum Meaning {
    /// Sets attributes of the mount.
    Set(MountAttrs),
    /// Clears them.
    Clear(MountAttrs),
    /// Chooses how access times are updated; the last choice counts.
    Atime(MountAttrs),
    /// For mount(8), fstab or a log; without meaning for the kernel.
    Nothing,
    /// Not accepted, for this reason.
    Refused(&'static str),
}

use Meaning::{Atime, Clear, Nothing, Refused, Set};

const NONE: MountAttrs = MountAttrs::from_bits(0);
const UNPRIVILEGED: MountAttrs = MountAttrs::NO_SUID.with(MountAttrs::NO_DEV);

const OTHER_MOUNT: &str = "it makes a different kind of mount than the volume's";
const PROPAGATION: &str = "mount flags cannot set the propagation of the volume's mounts";
const NO_REPLAY: &str = "without the journal the volume's latest writes are missing; \
                         attach it read-only or set ro instead";
const OTHER_DEVICE: &str = "it refers to another device of the node";

/// Flags that are not simply the filesystem's own; mount(8), section "filesystem-independent mount
/// options", and ext4(5), xfs(5), btrfs(5).
#[rustfmt::skip]
const TABLE: &[(&str, Meaning)] = &[
    ("ro", Set(MountAttrs::READ_ONLY)),
    ("rw", Clear(MountAttrs::READ_ONLY)),
    ("nosuid", Set(MountAttrs::NO_SUID)),
    ("suid", Clear(MountAttrs::NO_SUID)),
    ("nodev", Set(MountAttrs::NO_DEV)),
    ("dev", Clear(MountAttrs::NO_DEV)),
    ("noexec", Set(MountAttrs::NO_EXEC)),
    ("exec", Clear(MountAttrs::NO_EXEC)),
    ("nosymfollow", Set(MountAttrs::NO_SYMFOLLOW)),
    ("symfollow", Clear(MountAttrs::NO_SYMFOLLOW)),
    ("nodiratime", Set(MountAttrs::NO_DIR_ATIME)),
    ("diratime", Clear(MountAttrs::NO_DIR_ATIME)),
    ("noatime", Atime(MountAttrs::NO_ATIME)),
    ("strictatime", Atime(MountAttrs::STRICT_ATIME)),
    ("relatime", Atime(NONE)),
    ("atime", Atime(NONE)),
    ("norelatime", Atime(NONE)),
    ("nostrictatime", Atime(NONE)),
    // In fstab these let a user mount, and mount(8) then clears unsafe attributes.
    ("user", Set(UNPRIVILEGED.with(MountAttrs::NO_EXEC))),
    ("users", Set(UNPRIVILEGED.with(MountAttrs::NO_EXEC))),
    ("owner", Set(UNPRIVILEGED)),
    ("group", Set(UNPRIVILEGED)),
    ("nouser", Nothing),
    ("nousers", Nothing),
    ("noowner", Nothing),
    ("nogroup", Nothing),
    ("defaults", Nothing),
    ("auto", Nothing),
    ("noauto", Nothing),
    ("nofail", Nothing),
    ("_netdev", Nothing),
    ("comment", Nothing),
    ("silent", Nothing),
    ("loud", Nothing),
    ("async", Nothing),
    ("nolazytime", Nothing),
    ("nomand", Nothing),
    ("iversion", Nothing),
    ("noiversion", Nothing),
    ("seclabel", Nothing),
    ("mand", Refused("Linux no longer has mandatory locks")),
    ("bind", Refused(OTHER_MOUNT)),
    ("rbind", Refused(OTHER_MOUNT)),
    ("move", Refused(OTHER_MOUNT)),
    ("remount", Refused(OTHER_MOUNT)),
    ("loop", Refused(OTHER_MOUNT)),
    ("offset", Refused(OTHER_MOUNT)),
    ("sizelimit", Refused(OTHER_MOUNT)),
    ("encryption", Refused(OTHER_MOUNT)),
    ("shared", Refused(PROPAGATION)),
    ("rshared", Refused(PROPAGATION)),
    ("slave", Refused(PROPAGATION)),
    ("rslave", Refused(PROPAGATION)),
    ("private", Refused(PROPAGATION)),
    ("rprivate", Refused(PROPAGATION)),
    ("unbindable", Refused(PROPAGATION)),
    ("runbindable", Refused(PROPAGATION)),
    ("norecovery", Refused(NO_REPLAY)),
    ("noload", Refused(NO_REPLAY)),
    ("nologreplay", Refused(NO_REPLAY)),
    ("rescue", Refused(NO_REPLAY)),
    ("journal_dev", Refused(OTHER_DEVICE)),
    ("journal_path", Refused(OTHER_DEVICE)),
    ("logdev", Refused(OTHER_DEVICE)),
    ("device", Refused(OTHER_DEVICE)),
    ("rtdev", Refused(OTHER_DEVICE)),
    ("source", Refused(OTHER_DEVICE)),
    ("abort", Refused("it aborts the filesystem at once")),
];

/// The SELinux label of all files (mount(8), "context").
const LABEL: &str = "context";
/// The labels that need SELinux.
pub(crate) const LABELS: [&str; 4] = [LABEL, "fscontext", "defcontext", "rootcontext"];

/// fsconfig(2) accepts strings of at most this many bytes.
const STRING_BYTES_MAX: usize = 255;

/// Parses mount flags. Each may be a comma-separated list, with double quotes around values that
/// contain commas. For xfs, `nouuid` is always set, once.
/// # Errors
///
/// [`belay_server::call::Kind::Invalid`] that names `mount_flags` and the flag.
pub(crate) fn parse_flags(flags: &[String], fs: FsType) -> Result<MountOptions, Failure> {
    let mut options = parse(flags)?;
    if fs == FsType::Xfs {
        // Snapshots and clones have the UUID of their source, which may be mounted here too.
        options.superblock.retain(|(name, _)| name != "nouuid");
        options.superblock.push(("nouuid".to_owned(), None));
    }
    Ok(options)
}

/// [`parse_flags`] for the filesystem of a server, whose address is not the flags' to set. The
/// parameters `async` and `bg`, `fg` and `retry`, which mount.nfs interprets, have no meaning.
///
/// # Errors
/// As [`parse_flags`].
pub(crate) fn parse_remote_flags(flags: &[String]) -> Result<MountOptions, Failure> {
    let mut options = parse(flags)?;
    let is_address = |(name, _): &&(String, _)| ["addr", "clientaddr"].contains(&name.as_str());
    if let Some((name, _)) = options.superblock.iter().find(is_address) {
        return Err(refuse(
            name,
            "the node agent sets it; give the server's name or address",
        ));
    }
    let is_for_mount = |name: &str| ["bg", "fg", "retry"].contains(&name);
    options.superblock.retain(|(name, _)| !is_for_mount(name));
    Ok(options)
}

fn parse(flags: &[String]) -> Result<MountOptions, Failure> {
    let mut parsed = Parsed::default();
    for list in flags {
        for flag in split(list)? {
            parsed.take(&flag)?;
        }
    }
    if parsed.saw_ro && parsed.saw_rw {
        return Err(refuse("ro", "contradicts rw; set only one of them"));
    }
    Ok(parsed.options)
}

/// One flag: its name, and its value without quotes.
struct Flag {
    name: String,
    value: Option<String>,
}

#[derive(Default)]
struct Parsed {
    options: MountOptions,
    saw_ro: bool,
    saw_rw: bool,
}

impl Parsed {
    fn take(&mut self, flag: &Flag) -> Result<(), Failure> {
        let name = flag.name.as_str();
        if name.starts_with("x-") || name.starts_with("X-") {
            return Ok(());
        }
        let Some((_, meaning)) = TABLE.iter().find(|(known, _)| *known == name) else {
            return self.take_superblock(flag);
        };
        let takes_value = matches!(meaning, Nothing | Refused(_));
        if flag.value.is_some() && !takes_value {
            return Err(refuse(name, "takes no value"));
        }
        self.saw_ro |= name == "ro";
        self.saw_rw |= name == "rw";
        let attrs = &mut self.options.attrs;
        match *meaning {
            Set(more) => *attrs = attrs.with(more),
            Clear(less) => *attrs = attrs.without(less),
            Atime(choice) => *attrs = attrs.without(MountAttrs::ATIME_CHOICE).with(choice),
            Nothing => {}
            Refused(reason) => return Err(refuse(name, reason)),
        }
        Ok(())
    }

    /// Passes flags that are not in the table to the filesystem, which checks them.
    fn take_superblock(&mut self, flag: &Flag) -> Result<(), Failure> {
        let on_errors = ["errors", "fatal_errors"];
        if on_errors.contains(&flag.name.as_str()) && flag.value.as_deref() == Some("panic") {
            let reason = "panic would let one damaged volume halt the node; \
                          use another value or none";
            return Err(refuse(&flag.name, reason));
        }
        if flag
            .value
            .as_ref()
            .is_some_and(|value| value.len() > STRING_BYTES_MAX)
        {
            return Err(refuse(&flag.name, "its value is longer than 255 bytes"));
        }
        self.options
            .superblock
            .push((flag.name.clone(), flag.value.clone()));
        Ok(())
    }
}

/// Splits at commas outside of double quotes, and each part at its first equals sign.
fn split(list: &str) -> Result<Vec<Flag>, Failure> {
    let mut is_quoted = false;
    let parts = list.split(|c: char| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    });
    let parts: Vec<&str> = parts
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect();
    if is_quoted {
        return Err(Failure::invalid(
            "mount_flags",
            "a double quote is not closed",
        ));
    }
    parts.into_iter().map(flag).collect()
}

fn flag(part: &str) -> Result<Flag, Failure> {
    let (name, value) = match part.split_once('=') {
        Some((name, value)) => (name, Some(value.replace('"', ""))),
        None => (part, None),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    if name.is_empty() || name.len() > STRING_BYTES_MAX || !name.chars().all(is_name) {
        // Not repeated in the message: it may be a value without its name.
        let why = "a flag has no name of letters, digits and the characters _ - . :";
        return Err(Failure::invalid("mount_flags", why));
    }
    if value
        .as_ref()
        .is_some_and(|value| value.contains(char::is_control))
    {
        return Err(refuse(name, "its value contains a control character"));
    }
    Ok(Flag {
        name: name.to_owned(),
        value,
    })
}

fn refuse(name: &str, why: &str) -> Failure {
    Failure::invalid("mount_flags", format!("{name}: {why}"))
}

#[cfg(test)]
mod tests {
    use belay_server::call::Kind;
    use proptest::prelude::*;

    use super::*;

    fn parse(flags: &[&str], fs: FsType) -> Result<MountOptions, Failure> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        parse_flags(&flags, fs)
    }

    fn superblock(flags: &[&str]) -> Vec<(String, Option<String>)> {
        parse(flags, FsType::Ext4).unwrap().superblock
    }

    fn pair(name: &str, value: &str) -> (String, Option<String>) {
        (name.to_owned(), Some(value.to_owned()))
    }

    #[test]
    fn attributes_are_set_and_the_last_word_counts() {
        let cases: &[(&[&str], MountAttrs)] = &[
            (&[], NONE),
            (&["defaults", "rw", "relatime"], NONE),
            (&["ro"], MountAttrs::READ_ONLY),
            (&["noexec", "exec"], NONE),
            (&["exec,noexec"], MountAttrs::NO_EXEC),
            (&["noatime", "strictatime"], MountAttrs::STRICT_ATIME),
            (&["strictatime", "noatime"], MountAttrs::NO_ATIME),
            (&["noatime", "relatime"], NONE),
            (
                &["noatime", "nodiratime"],
                MountAttrs::NO_ATIME.with(MountAttrs::NO_DIR_ATIME),
            ),
            (&["owner"], UNPRIVILEGED),
            (&["user,exec"], UNPRIVILEGED),
            (&["nosymfollow"], MountAttrs::NO_SYMFOLLOW),
        ];
        for (flags, expected) in cases {
            let options = parse(flags, FsType::Ext4).unwrap();
            assert_eq!(
                (options.attrs, options.superblock),
                (*expected, vec![]),
                "{flags:?}"
            );
        }
    }

    #[test]
    fn what_is_for_others_is_ignored() {
        let flags = [
            "_netdev,nofail",
            "auto",
            "x-systemd.device-timeout=10",
            "comment=mine",
            ",",
        ];
        assert_eq!(
            parse(&flags, FsType::Ext4).unwrap(),
            MountOptions::default()
        );
    }

    #[test]
    fn the_rest_goes_to_the_filesystem_in_its_order() {
        let expected = vec![
            ("discard".to_owned(), None),
            pair("data", "journal"),
            pair("commit", "30"),
            ("nosuchflag".to_owned(), None),
        ];
        assert_eq!(
            superblock(&["discard,data=journal", "commit=30", "nosuchflag"]),
            expected
        );
    }

    #[test]
    fn commas_in_quotes_do_not_split_and_quotes_go() {
        let context = "context=\"system_u:object_r:container_file_t:s0:c1,c2\",noexec";
        let options = parse(&[context], FsType::Ext4).unwrap();
        let expected = pair("context", "system_u:object_r:container_file_t:s0:c1,c2");
        assert_eq!(
            (options.superblock, options.attrs),
            (vec![expected], MountAttrs::NO_EXEC)
        );
        assert_eq!(superblock(&["a=b=c"]), vec![pair("a", "b=c")]);
    }

    #[test]
    fn the_label_of_all_files_is_known_and_the_order_of_its_categories_is_ignored() {
        let label = |flags: &[&str]| {
            let options = parse(flags, FsType::Ext4).unwrap();
            options.label().map(str::to_owned)
        };
        assert_eq!(label(&["noatime,rootcontext=a:b:c:s0"]), None);
        let quoted = ["noatime", "context=\"a:b:c:s0:c1,c2\""];
        assert_eq!(label(&quoted), Some("a:b:c:s0:c1,c2".to_owned()));
        assert!(is_same_label("a:b:c:s0:c1,c2", "a:b:c:s0:c2,c1"));
        for other in ["a:b:c:s0:c1", "a:b:c:s0", "a:b:d:s0:c1,c2", "c1,c2", ""] {
            assert!(!is_same_label("a:b:c:s0:c1,c2", other), "{other}");
        }
    }

    #[test]
    fn xfs_has_nouuid_exactly_once() {
        for flags in [&[][..], &["nouuid"], &["nouuid,nouuid", "noatime"]] {
            let options = parse(flags, FsType::Xfs).unwrap();
            assert_eq!(
                options.superblock,
                vec![("nouuid".to_owned(), None)],
                "{flags:?}"
            );
        }
    }

    #[test]
    fn flags_for_a_server_are_attributes_or_parameters_and_never_its_address() {
        let parse = |flags: &str| parse_remote_flags(&[flags.to_owned()]);
        let options =
            parse("_netdev,nofail,nodev,noatime,nfsvers=4.1,hard,bg,retry=2,odd").unwrap();
        assert_eq!(options.attrs, MountAttrs::NO_DEV.with(MountAttrs::NO_ATIME));
        let parameters = [
            pair("nfsvers", "4.1"),
            ("hard".to_owned(), None),
            ("odd".to_owned(), None),
        ];
        assert_eq!(options.superblock, parameters);
        for address in ["addr=10.0.0.1", "clientaddr=10.0.0.2", "source=s:/a"] {
            let refused = parse(address).unwrap_err();
            assert_eq!(refused.kind, Kind::Invalid);
            assert!(!refused.message.contains("10.0.0"), "{refused}");
        }
    }

    #[test]
    fn refused_flags_are_named_and_values_are_not() {
        let cases = [
            ("remount", "remount"),
            ("bind", "bind"),
            ("loop=/dev/loop-s3cret", "loop"),
            ("norecovery", "latest writes"),
            ("noload", "ro instead"),
            ("rescue=s3cret", "latest writes"),
            ("device=/dev/s3cret", "device"),
            ("journal_path=/dev/s3cret", "journal_path"),
            ("logdev=/dev/s3cret", "logdev"),
            ("ro,rw", "contradicts rw"),
            ("noexec=s3cret", "noexec"),
            ("errors=panic", "halt the node"),
            ("fatal_errors=panic", "halt the node"),
            ("context=\"s3cret", "quote"),
            ("=s3cret", "no name"),
            ("s3 cret", "no name"),
            ("a=s3cret\0", "control character"),
        ];
        for (flag, part) in cases {
            let failure = parse(&["noatime", flag], FsType::Xfs).unwrap_err();
            assert_eq!(failure.kind, Kind::Invalid, "{flag:?}");
            assert!(
                failure.message.starts_with("mount_flags: "),
                "{}",
                failure.message
            );
            assert!(failure.message.contains(part), "{}", failure.message);
            assert!(!failure.message.contains("cret"), "{}", failure.message);
        }
        for name in ["errors", "fatal_errors"] {
            assert!(parse(&[&format!("{name}=continue")], FsType::Ext4).is_ok());
        }
        assert!(parse(&["data=panic"], FsType::Ext4).is_ok());
        // fsconfig(2) takes as many bytes.
        let longest = "s".repeat(STRING_BYTES_MAX);
        assert!(parse(&[&format!("a={longest}")], FsType::Ext4).is_ok());
        assert!(parse(&[&longest], FsType::Ext4).is_ok());
        assert!(parse(&[&format!("{longest}s")], FsType::Ext4).is_err());
        let long = format!("a={}", "s".repeat(STRING_BYTES_MAX + 1));
        assert!(
            parse(&[&long], FsType::Ext4)
                .unwrap_err()
                .message
                .contains("255 bytes")
        );
    }

    #[test]
    fn no_debug_view_shows_a_value() {
        let options = parse(&["context=s3cret"], FsType::Ext4).unwrap();
        let text = format!("{options:?}");
        assert!(
            text.contains("context") && !text.contains("s3cret"),
            "{text}"
        );
    }

    #[test]
    fn no_flag_is_in_the_table_twice() {
        for (index, (name, _)) in TABLE.iter().enumerate() {
            assert!(
                TABLE[index + 1..].iter().all(|(other, _)| other != name),
                "{name}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_flags_make_it_panic(flags in proptest::collection::vec(".{0,40}", 0..5)) {
            let parsed = parse_flags(&flags, FsType::Xfs);
            if let Ok(options) = parsed {
                let nouuid = options.superblock.iter().filter(|(name, _)| name == "nouuid");
                prop_assert_eq!(nouuid.count(), 1);
            }
        }
    }
}
