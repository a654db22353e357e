//! Parses /proc/thread-self/mountinfo (proc_pid_mountinfo(5)): the only complete list of mounts at
//! the start, and the replacement for statmount before Linux 6.8.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::files::{self, MountId};
use crate::kernel::{Dev, Error, MountAttrs, MountEntry, MountFacts, MountSource, Result};

/// The mount table of the calling thread, for the same namespace that statx(2) and umount2(2) use.
const MOUNTINFO: &str = "/proc/thread-self/mountinfo";

/// A parsed line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    entry: MountEntry,
    facts: MountFacts,
}

/// Implements [`crate::kernel::Kernel::mounts`].
pub(super) fn entries() -> Result<Vec<MountEntry>> {
    Ok(read()?.into_iter().map(|line| line.entry).collect())
}

/// Returns the mount on `path`; `None` if `path` is not the root of a mount.
///
/// The line is found by mount ID, not by path, because a path may contain symlinks, and several
/// mounts may be stacked on it.
pub(super) fn facts(path: &Path) -> Result<Option<MountFacts>> {
    facts_of(files::mount_id(path, false)?)
}

/// Returns the directory of the filesystem that is mounted on `path`; `None` if `path` is not the
/// root of a mount.
pub(super) fn root(path: &Path) -> Result<Option<PathBuf>> {
    let Some(MountId::Listed(id) | MountId::Unique(id)) = files::mount_id(path, false)? else {
        return Ok(None);
    };
    let found = read()?.into_iter().find(|line| line.entry.id == id);
    Ok(found.map(|line| line.entry.root))
}

/// Returns the source of the mount on `path`; `None` if `path` is not the root of a mount.
pub(super) fn source(path: &Path) -> Result<Option<MountSource>> {
    let Some(MountId::Listed(id) | MountId::Unique(id)) = files::mount_id(path, false)? else {
        return Ok(None);
    };
    let found = read()?.into_iter().find(|line| line.entry.id == id);
    Ok(found.map(|Line { entry, facts, .. }| MountSource {
        fs_type: entry.fs_type,
        source: entry.source.into_os_string(),
        attrs: facts.attrs,
        superblock_read_only: facts.superblock_read_only,
    }))
}

/// Returns the mount that contains `path`.
pub(super) fn holding(path: &Path) -> Result<Option<MountFacts>> {
    facts_of(files::holding_mount_id(path, false)?)
}

fn facts_of(id: Option<MountId>) -> Result<Option<MountFacts>> {
    let Some(MountId::Listed(id) | MountId::Unique(id)) = id else {
        return Ok(None);
    };
    Ok(read()?
        .into_iter()
        .find(|line| line.entry.id == id)
        .map(|line| line.facts))
}

/// A mount that was found by its ID in mountinfo.
pub(super) struct Listed {
    pub(super) dev: Dev,
    pub(super) facts: MountFacts,
}

/// Returns the mount with this ID, if the mount is on `point`.
pub(super) fn with_id(id: u64, point: &Path) -> Result<Option<Listed>> {
    let found = read()?
        .into_iter()
        .find(|line| line.entry.id == id && line.entry.point == point);
    Ok(found.map(|line| Listed {
        dev: line.entry.dev,
        facts: line.facts,
    }))
}

fn read() -> Result<Vec<Line>> {
    let failed = |errno| Error::at("read", Path::new(MOUNTINFO), errno);
    let text = std::fs::read(MOUNTINFO)
        .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    // A line that cannot be parsed could be a mount of the agent, so it must not be skipped.
    parse(&text).map_err(|line| {
        failed(Errno::INVAL).because(format!("not a mount: {}", String::from_utf8_lossy(line)))
    })
}

/// Parses all lines. Returns the first line that cannot be parsed, if any.
pub(super) fn parse(text: &[u8]) -> std::result::Result<Vec<Line>, &[u8]> {
    text.split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| parse_line(line).ok_or(line))
        .collect()
}

fn parse_line(line: &[u8]) -> Option<Line> {
    // Fields may be empty (a mount without a source), so two adjacent spaces enclose an empty
    // field.
    let mut fields = line.split(|&byte| byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let mut numbers = fields.next()?.split(|&byte| byte == b':');
    let dev = Dev {
        major: number(numbers.next()?)?,
        minor: number(numbers.next()?)?,
    };
    if numbers.next().is_some() {
        return None;
    }
    let root = path(fields.next()?);
    let point = path(fields.next()?);
    let attrs = attributes(fields.next()?);
    // Any number of optional fields follows, ended by a lone hyphen.
    let mut peer_group = 0;
    loop {
        match fields.next()? {
            b"-" => break,
            field => {
                if let Some(group) = field.strip_prefix(b"shared:") {
                    peer_group = number(group)?;
                }
            }
        }
    }
    let fs_type = String::from_utf8_lossy(&unescape(fields.next()?)).into_owned();
    let source = path(fields.next()?);
    let options = fields.next()?;
    let facts = MountFacts {
        fs_type: fs_type.clone(),
        attrs,
        superblock_read_only: has_option(options, b"ro") || is_emergency(options),
        shut_down: is_shut_down(options),
        counts_in_memory: false,
        peer_group,
        label: label(&unescape(options)),
    };
    Some(Line {
        entry: MountEntry {
            id,
            parent,
            dev,
            root,
            point,
            fs_type,
            source,
            peer_group,
        },
        facts,
    })
}

/// Whether an ext4 has become read-only after an error. Linux 6.15 and later show this state only
/// by this option.
pub(super) fn is_emergency(options: &[u8]) -> bool {
    has_option(options, b"emergency_ro")
}

/// Whether an ext4 was shut down by force (`EXT4_IOC_SHUTDOWN`).
pub(super) fn is_shut_down(options: &[u8]) -> bool {
    has_option(options, b"shutdown")
}

/// Whether an ext4 or xfs enforces project quotas.
pub(super) fn has_project_quotas(options: &[u8]) -> bool {
    has_option(options, b"prjquota")
}

/// Returns the value of the option `context`, which is quoted if it contains commas (Linux:
/// security/selinux/hooks.c).
pub(super) fn label(options: &[u8]) -> Option<String> {
    let options = String::from_utf8_lossy(options);
    let mut is_quoted = false;
    let mut each = options.split(|c: char| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    });
    let label = each.find_map(|option| option.strip_prefix("context="))?;
    Some(label.replace('"', ""))
}

/// Converts the options of the mount itself to the attribute bits that statmount returns.
fn attributes(options: &[u8]) -> MountAttrs {
    const BY_NAME: &[(&[u8], MountAttrs)] = &[
        (b"ro", MountAttrs::READ_ONLY),
        (b"nosuid", MountAttrs::NO_SUID),
        (b"nodev", MountAttrs::NO_DEV),
        (b"noexec", MountAttrs::NO_EXEC),
        (b"noatime", MountAttrs::NO_ATIME),
        (b"nodiratime", MountAttrs::NO_DIR_ATIME),
        (b"nosymfollow", MountAttrs::NO_SYMFOLLOW),
    ];
    let named = BY_NAME
        .iter()
        .filter(|(name, _)| has_option(options, name))
        .fold(MountAttrs::default(), |all, (_, one)| all.with(*one));
    // strictatime is in effect if neither relatime nor noatime is shown.
    if has_option(options, b"relatime") || named.contains(MountAttrs::NO_ATIME) {
        named
    } else {
        named.with(MountAttrs::STRICT_ATIME)
    }
}

fn has_option(options: &[u8], name: &[u8]) -> bool {
    options
        .split(|&byte| byte == b',')
        .any(|option| option == name)
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(field)))
}

/// Replaces the escapes of mountinfo: space, tab, newline, backslash and `#` are shown as a
/// backslash and three octal digits. A backslash that is not part of an escape is literal.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        match (first, after) {
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    behind @ ..,
                ],
            ) => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = behind;
            }
            _ => {
                plain.push(first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn only(line: &str) -> Line {
        let mut lines = parse(line.as_bytes()).unwrap();
        assert_eq!(lines.len(), 1);
        lines.remove(0)
    }

    #[test]
    fn a_line_with_optional_fields_gives_device_root_point_and_type() {
        let line = only("36 35 98:0 /sub /mnt rw,noatime shared:1 master:2 - ext3 /dev/root rw\n");
        assert_eq!(
            line.entry,
            MountEntry {
                id: 36,
                parent: 35,
                dev: Dev {
                    major: 98,
                    minor: 0
                },
                root: "/sub".into(),
                point: "/mnt".into(),
                fs_type: "ext3".into(),
                source: "/dev/root".into(),
                peer_group: 1,
            }
        );
        assert_eq!(line.facts.attrs, MountAttrs::NO_ATIME);
        assert!(!line.facts.superblock_read_only);
    }

    #[test]
    fn attributes_are_the_bits_that_statmount_would_give() {
        let cases = [
            ("rw,relatime", MountAttrs::default()),
            ("rw", MountAttrs::STRICT_ATIME),
            (
                "ro,noatime",
                MountAttrs::READ_ONLY.with(MountAttrs::NO_ATIME),
            ),
            (
                "rw,nosuid,nodev,noexec,nodiratime,relatime,nosymfollow",
                MountAttrs::NO_SUID
                    .with(MountAttrs::NO_DEV)
                    .with(MountAttrs::NO_EXEC)
                    .with(MountAttrs::NO_DIR_ATIME)
                    .with(MountAttrs::NO_SYMFOLLOW),
            ),
        ];
        for (options, attrs) in cases {
            let line = only(&format!("1 1 0:1 / /m {options} - tmpfs none rw"));
            assert_eq!(line.facts.attrs, attrs, "{options}");
        }
    }

    #[test]
    fn a_read_only_superblock_is_told_from_a_read_only_mount() {
        assert!(
            only("1 1 7:0 / /m rw - ext4 /dev/loop0 ro,errors=remount-ro")
                .facts
                .superblock_read_only
        );
        let stopped = only("1 1 7:0 / /m rw - ext4 /dev/loop0 rw,emergency_ro").facts;
        assert!(stopped.superblock_read_only && !stopped.shut_down);
        let dead = only("1 1 7:0 / /m rw - ext4 /dev/loop0 rw,shutdown").facts;
        assert!(!dead.superblock_read_only && dead.shut_down);
        assert!(
            !only("1 1 7:0 / /m ro - ext4 /dev/loop0 rw,errors=remount-ro")
                .facts
                .superblock_read_only
        );
    }

    #[test]
    fn the_label_of_all_files_is_shown_and_other_labels_are_not() {
        let of = |options: &str| {
            only(&format!("1 1 7:0 / /m rw - ext4 /dev/loop0 {options}"))
                .facts
                .label
        };
        let label = Some("system_u:object_r:container_file_t:s0:c1,c2".to_owned());
        let shown = "context=\"system_u:object_r:container_file_t:s0:c1,c2\"";
        for options in [
            shown.to_owned(),
            format!("rw,{shown},discard"),
            format!("rw,{shown}"),
        ] {
            assert_eq!(of(&options), label, "{options}");
        }
        assert_eq!(
            of("rw,context=u:r:t:s0,noquota"),
            Some("u:r:t:s0".to_owned())
        );
        for options in [
            "rw,seclabel",
            "rw,rootcontext=u:r:t:s0,fscontext=u:r:t:s0",
            "rw",
        ] {
            assert_eq!(of(options), None, "{options}");
        }
    }

    #[test]
    fn escaped_characters_come_back_and_other_backslashes_stay() {
        let cases = [
            (r"/with\040blank", "/with blank"),
            (r"/tab\011newline\012", "/tab\tnewline\n"),
            (r"/back\134slash\043", "/back\\slash#"),
            (r"/not\04", r"/not\04"),
            (r"/not\9", r"/not\9"),
            (r"/end\", r"/end\"),
        ];
        for (escaped, plain) in cases {
            let line = only(&format!("1 1 0:1 / {escaped} rw - tmpfs none rw"));
            assert_eq!(line.entry.point, Path::new(plain));
        }
    }

    #[test]
    fn an_empty_source_does_not_shift_the_fields() {
        assert!(
            only("1 1 0:1 / /m rw - tmpfs  ro")
                .facts
                .superblock_read_only
        );
    }

    #[test]
    fn a_line_that_is_not_a_mount_is_reported_whole() {
        for broken in [
            "nonsense",
            "1 1 0:1 / /m rw tmpfs none rw",
            "1 1 0 / /m rw - tmpfs none rw",
            "1 1 0:1:2 / /m rw - tmpfs none rw",
            "x 1 0:1 / /m rw - tmpfs none rw",
            "1 1 0:1 / /m rw - tmpfs none",
        ] {
            let text = format!("1 1 0:1 / /m rw - tmpfs none rw\n{broken}\n");
            assert_eq!(parse(text.as_bytes()), Err(broken.as_bytes()), "{broken}");
        }
    }

    proptest! {
        #[test]
        fn no_text_at_all_makes_it_panic(text in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Err(line) = parse(&text) {
                prop_assert!(!line.is_empty());
            }
        }

        #[test]
        fn any_path_survives_the_escaping(name in proptest::collection::vec(1_u8.., 1..60)) {
            let mut escaped = Vec::new();
            for &byte in &name {
                match byte {
                    b' ' | b'\t' | b'\n' | b'\\' | b'#' => {
                        escaped.extend(format!("\\{byte:03o}").bytes());
                    }
                    _ => escaped.push(byte),
                }
            }
            let mut text = b"1 1 0:1 / ".to_vec();
            text.extend(&escaped);
            text.extend(b" rw - tmpfs none rw\n");
            let lines = parse(&text).map_err(|line| TestCaseError::fail(format!("{line:?}")))?;
            prop_assert_eq!(&lines[0].entry.point, &PathBuf::from(OsString::from_vec(name)));
        }
    }
}
