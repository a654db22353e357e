//! The effects of the accepted mount flags: attributes of the mount, and parameters of the
//! superblock.
//!
//! fsconfig(2) accepts only the filesystem's own parameters, so this module interprets the flags
//! that mount(8) would interpret. The contract defines which flags are accepted.

use std::fmt;

use belay_contract::mount_flags::{self, ATTRIBUTES, Flag};
use belay_server::call::Failure;

use super::FsType;
use crate::kernel::MountAttrs;

/// Parsed mount flags.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct MountOptions {
    /// The attributes of the mount.
    pub(crate) attrs: MountAttrs,
    /// The parameters of the filesystem, in the order in which they are set: name, and value if
    /// there is one.
    pub(crate) superblock: Vec<(String, Option<String>)>,
}

impl MountOptions {
    /// Overrides `errors=panic` in the superblock of an ext4, unless a flag sets `errors` already.
    pub(crate) fn override_panic(&mut self) {
        if !self.superblock.iter().any(|(name, _)| name == ERRORS) {
            let value = Some("remount-ro".to_owned());
            self.superblock.push((ERRORS.to_owned(), value));
        }
    }

    /// Returns the SELinux label for all files; `None` without the flag `context`.
    pub(crate) fn label(&self) -> Option<&str> {
        let mut all = self.superblock.iter();
        let (_, label) = all.find(|(name, _)| name == LABEL)?;
        label.as_deref()
    }
}

/// Whether two SELinux labels are equal. The kernel shows the categories, which are separated by
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

/// The effect of a mount flag.
#[derive(Clone, Copy)]
enum Effect {
    /// Sets attributes.
    Set(MountAttrs),
    /// Clears attributes.
    Clear(MountAttrs),
    /// Selects when access times are updated. If there are several such flags, the last takes
    /// effect.
    Atime(MountAttrs),
}

use Effect::{Atime, Clear, Set};

const NONE: MountAttrs = MountAttrs::from_bits(0);
const UNPRIVILEGED: MountAttrs = MountAttrs::NO_SUID.with(MountAttrs::NO_DEV);

/// The flags that set attributes of the mount. A test compares them with the contract's list.
const EFFECTS: [(&str, Effect); ATTRIBUTES.len()] = [
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
    // In fstab, these flags allow mounts by ordinary users, for which mount(8) sets safe
    // attributes.
    ("user", Set(UNPRIVILEGED.with(MountAttrs::NO_EXEC))),
    ("users", Set(UNPRIVILEGED.with(MountAttrs::NO_EXEC))),
    ("owner", Set(UNPRIVILEGED)),
    ("group", Set(UNPRIVILEGED)),
];

/// The parameter that selects the reaction of an ext4 to a metadata error (ext4(5)).
const ERRORS: &str = "errors";
/// The parameter with the SELinux label of all files (mount(8), "context").
const LABEL: &str = "context";
/// The parameters for SELinux labels, which need SELinux.
pub(crate) const LABELS: [&str; 4] = [LABEL, "fscontext", "defcontext", "rootcontext"];

/// Parses mount flags. Each element of `flags` may be a comma-separated list, with double quotes
/// around values that contain commas. For xfs, sets `nouuid` exactly once.
/// # Errors
///
/// Returns [`belay_server::call::Kind::Invalid`], which names `mount_flags` and the flag, if a flag
/// is not accepted.
pub(crate) fn parse_flags(flags: &[String], fs: FsType) -> Result<MountOptions, Failure> {
    let mut options = MountOptions::of(mount_flags::parse(flags))?;
    if fs == FsType::Xfs {
        // Snapshots and clones have the UUID of their source, which may be mounted on this node
        // too.
        options.superblock.retain(|(name, _)| name != "nouuid");
        options.superblock.push(("nouuid".to_owned(), None));
    }
    Ok(options)
}

/// Parses mount flags like [`parse_flags`], for a network filesystem. Flags cannot set the server's
/// address. The flags `async`, `bg`, `fg` and `retry`, which mount.nfs interprets, have no effect.
///
/// # Errors
/// Returns the same error as [`parse_flags`].
pub(crate) fn parse_remote_flags(flags: &[String]) -> Result<MountOptions, Failure> {
    MountOptions::of(mount_flags::parse_remote(flags))
}

impl MountOptions {
    fn of(flags: Result<Vec<Flag>, String>) -> Result<Self, Failure> {
        let flags = flags.map_err(|why| Failure::invalid("mount_flags", why))?;
        let mut options = Self::default();
        for flag in flags {
            let effect = EFFECTS.iter().find(|(name, _)| *name == flag.name);
            let Some((_, effect)) = effect else {
                options.superblock.push((flag.name, flag.value));
                continue;
            };
            let attrs = options.attrs;
            options.attrs = match *effect {
                Set(more) => attrs.with(more),
                Clear(less) => attrs.without(less),
                Atime(choice) => attrs.without(MountAttrs::ATIME_CHOICE).with(choice),
            };
        }
        Ok(options)
    }
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
    fn a_flag_for_errors_wins_over_the_override_of_panic() {
        for (flag, expected) in [("noatime", "remount-ro"), ("errors=continue", "continue")] {
            let mut options = parse(&[flag], FsType::Ext4).unwrap();
            options.override_panic();
            assert_eq!(options.superblock, vec![pair("errors", expected)], "{flag}");
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
        // fsconfig(2) accepts values of up to 255 bytes.
        let longest = "s".repeat(255);
        assert!(parse(&[&format!("a={longest}")], FsType::Ext4).is_ok());
        assert!(parse(&[&longest], FsType::Ext4).is_ok());
        assert!(parse(&[&format!("{longest}s")], FsType::Ext4).is_err());
        let long = format!("a={}", "s".repeat(256));
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
    fn every_flag_of_the_mount_has_an_effect() {
        assert_eq!(EFFECTS.map(|(name, _)| name), ATTRIBUTES);
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
