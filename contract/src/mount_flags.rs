//! Mount flags, as in CSI's `mount_flags` and in fstab: their syntax, and the flags that Belay
//! refuses. The node agent applies the accepted flags. The value of a flag can be sensitive, so
//! errors contain only the names of flags.

/// Flags of the mount itself, which have no value (mount(8), "FILESYSTEM-INDEPENDENT MOUNT
/// OPTIONS").
pub const ATTRIBUTES: [&str; 22] = [
    "ro",
    "rw",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noexec",
    "exec",
    "nosymfollow",
    "symfollow",
    "nodiratime",
    "diratime",
    "noatime",
    "strictatime",
    "relatime",
    "atime",
    "norelatime",
    "nostrictatime",
    "user",
    "users",
    "owner",
    "group",
];

/// Flags that only mount(8), fstab or logs use, and that have no effect in the kernel.
const IGNORED: [&str; 18] = [
    "nouser",
    "nousers",
    "noowner",
    "nogroup",
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "comment",
    "silent",
    "loud",
    "async",
    "nolazytime",
    "nomand",
    "iversion",
    "noiversion",
    "seclabel",
];

const OTHER_MOUNT: &str = "it makes a different kind of mount than the volume's";
const PROPAGATION: &str = "mount flags cannot set the propagation of the volume's mounts";
const NO_REPLAY: &str = "without the journal the volume's latest writes are missing; \
                         attach it read-only or set ro instead";
const OTHER_DEVICE: &str = "it refers to another device of the node";

/// Flags that are refused with or without a value, each with the reason. The flags are described in
/// mount(8), ext4(5), xfs(5) and btrfs(5).
const REFUSED: [(&str, &str); 30] = [
    ("mand", "Linux no longer has mandatory locks"),
    ("bind", OTHER_MOUNT),
    ("rbind", OTHER_MOUNT),
    ("move", OTHER_MOUNT),
    ("remount", OTHER_MOUNT),
    ("loop", OTHER_MOUNT),
    ("offset", OTHER_MOUNT),
    ("sizelimit", OTHER_MOUNT),
    ("encryption", OTHER_MOUNT),
    ("shared", PROPAGATION),
    ("rshared", PROPAGATION),
    ("slave", PROPAGATION),
    ("rslave", PROPAGATION),
    ("private", PROPAGATION),
    ("rprivate", PROPAGATION),
    ("unbindable", PROPAGATION),
    ("runbindable", PROPAGATION),
    ("norecovery", NO_REPLAY),
    ("noload", NO_REPLAY),
    ("nologreplay", NO_REPLAY),
    ("rescue", NO_REPLAY),
    ("journal_dev", OTHER_DEVICE),
    ("journal_path", OTHER_DEVICE),
    ("logdev", OTHER_DEVICE),
    ("device", OTHER_DEVICE),
    ("rtdev", OTHER_DEVICE),
    ("source", OTHER_DEVICE),
    ("abort", "it aborts the filesystem at once"),
    (
        "warn_on_error",
        "with panic_on_warn it would let one damaged volume halt the node",
    ),
    (
        "sb",
        "it would mount another superblock than the one that was checked",
    ),
];

/// Flags that set a server's address, which are refused for network filesystems.
const ADDRESSES: [&str; 2] = ["addr", "clientaddr"];
/// Flags that only mount.nfs interprets. Belay drops these flags, since they have no effect in the
/// kernel.
const FOR_MOUNT_NFS: [&str; 3] = ["bg", "fg", "retry"];

/// The maximum length of a string for fsconfig(2), in bytes.
const STRING_BYTES_MAX: usize = 255;

/// An accepted flag: one of [`ATTRIBUTES`], or a parameter that the filesystem validates.
pub struct Flag {
    /// The name of the flag.
    pub name: String,
    /// The value without quotes; `None` if the flag has no value.
    pub value: Option<String>,
}

/// Returns the accepted flags of these lists in their order, without the ignored flags. In each
/// list, commas may separate flags, and values that contain commas are in double quotes.
///
/// # Errors
/// Returns a message that names the refused flag and the reason.
pub fn parse<T: AsRef<str>>(lists: &[T]) -> Result<Vec<Flag>, String> {
    let mut flags = Vec::new();
    for list in lists {
        for flag in split(list.as_ref())? {
            if flag.is_accepted()? {
                flags.push(flag);
            }
        }
    }
    let has = |name: &str| flags.iter().any(|flag| flag.name == name);
    match has("ro") && has("rw") {
        true => Err("ro: contradicts rw; set only one of them".to_owned()),
        false => Ok(flags),
    }
}

/// Parses flags for a network filesystem as [`parse`] does, and also refuses flags that set the
/// server's address.
///
/// # Errors
/// Returns a message that names the refused flag and the reason.
pub fn parse_remote<T: AsRef<str>>(lists: &[T]) -> Result<Vec<Flag>, String> {
    let mut flags = parse(lists)?;
    let is = |flag: &Flag, names: &[&str]| names.contains(&flag.name.as_str());
    if let Some(flag) = flags.iter().find(|flag| is(flag, &ADDRESSES)) {
        let why = "the node agent sets it; give the server's name or address";
        return Err(format!("{}: {why}", flag.name));
    }
    flags.retain(|flag| !is(flag, &FOR_MOUNT_NFS));
    Ok(flags)
}

/// Checks the mount options in the superblock of an ext4 (`s_mount_opts`) by the rules for flags.
/// The kernel splits these options at each comma, even between quotes.
///
/// # Errors
/// Returns a message that names the refused option and the reason.
pub fn check_stored(options: &str) -> Result<(), String> {
    let parts = options.split(',').filter(|part| !part.is_empty());
    parts
        .map(flag)
        .try_for_each(|option| option?.is_accepted().map(drop))
}

impl Flag {
    /// Returns whether the flag is accepted (`true`) or ignored (`false`); fails if it is refused.
    fn is_accepted(&self) -> Result<bool, String> {
        let (name, value) = (self.name.as_str(), self.value.as_deref());
        let refuse = |why: &str| Err(format!("{name}: {why}"));
        if name.starts_with("x-") || name.starts_with("X-") || IGNORED.contains(&name) {
            return Ok(false);
        }
        if let Some((_, why)) = REFUSED.iter().find(|(known, _)| *known == name) {
            return refuse(why);
        }
        let is_attribute = ATTRIBUTES.contains(&name);
        match (name, value) {
            (_, Some(_)) if is_attribute => refuse("takes no value"),
            ("errors" | "fatal_errors", Some("panic")) => refuse(
                "panic would let one damaged volume halt the node; use another value or none",
            ),
            (_, Some(value)) if value.len() > STRING_BYTES_MAX => {
                refuse("its value is longer than 255 bytes")
            }
            _ => Ok(true),
        }
    }
}

/// Splits a list at commas outside of double quotes, and each flag at its first equals sign.
fn split(list: &str) -> Result<Vec<Flag>, String> {
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
        return Err("a double quote is not closed".to_owned());
    }
    parts.into_iter().map(flag).collect()
}

fn flag(part: &str) -> Result<Flag, String> {
    let (name, value) = match part.split_once('=') {
        Some((name, value)) => (name, Some(value.replace('"', ""))),
        None => (part, None),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    if name.is_empty() || name.len() > STRING_BYTES_MAX || !name.chars().all(is_name) {
        // The message does not repeat the text, since the text may be a sensitive value without its
        // name.
        return Err("a flag has no name of letters, digits and the characters _ - . :".to_owned());
    }
    if value
        .as_ref()
        .is_some_and(|value| value.contains(char::is_control))
    {
        return Err(format!("{name}: its value contains a control character"));
    }
    Ok(Flag {
        name: name.to_owned(),
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(lists: &[&str]) -> Vec<String> {
        let flags = parse(lists).unwrap().into_iter();
        flags.map(|flag| flag.name).collect()
    }

    #[test]
    fn flags_without_meaning_are_left_out_and_the_others_stay_in_their_order() {
        let lists = ["noatime,_netdev, data=journal", "x-mine=1,,discard,nofail"];
        assert_eq!(names(&lists), ["noatime", "data", "discard"]);
        let lists = ["hard,bg,retry=2,nfsvers=4.1"];
        let flags = parse_remote(&lists).unwrap().into_iter();
        let names: Vec<_> = flags.map(|flag| flag.name).collect();
        assert_eq!(names, ["hard", "nfsvers"]);
    }

    #[test]
    fn a_refused_flag_is_named_with_the_reason_wherever_it_stands() {
        for (lists, part) in [
            (
                &["noatime", "discard,norecovery"][..],
                "norecovery: without",
            ),
            (&["ro", "rw"], "ro: contradicts rw"),
            (&["noexec=recursive"], "noexec: takes no value"),
            (&["errors=panic"], "errors: panic would"),
            (&["loop=/dev/loop0"], "loop: it makes"),
        ] {
            let why = parse(lists).err().unwrap();
            assert!(why.starts_with(part), "{why}");
            assert_eq!(parse_remote(lists).err().unwrap(), why);
        }
        assert!(parse(&["addr=10.0.0.1"]).is_ok());
        assert!(parse_remote(&["addr=10.0.0.1"]).is_err());
    }

    #[test]
    fn options_in_a_superblock_are_split_at_each_comma_and_follow_the_same_rules() {
        for harmless in [
            "",
            "discard",
            "commit=30,,data=journal",
            "errors=remount-ro",
        ] {
            assert_eq!(check_stored(harmless), Ok(()), "{harmless}");
        }
        for (options, part) in [
            ("noload", "noload: without"),
            ("discard,errors=panic", "errors: panic would"),
            ("usrjquota=\"a,errors=panic,b\"", "errors: panic would"),
            ("journal_path=/dev/sda", "journal_path: it refers"),
            ("warn_on_error", "warn_on_error: with panic_on_warn"),
            ("a b", "a flag has no name"),
        ] {
            let why = check_stored(options).unwrap_err();
            assert!(why.starts_with(part), "{options}: {why}");
        }
    }

    #[test]
    fn no_flag_has_two_meanings() {
        let refused = REFUSED.iter().map(|(name, _)| *name);
        let mut all: Vec<_> = refused.chain(ATTRIBUTES).chain(IGNORED).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
