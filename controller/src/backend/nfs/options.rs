//! Parses mount options for the controller's own mounts. Makes no system calls. The values of
//! options may be sensitive, so error messages contain only their names.

pub(super) use belay_contract::nfs_mount::Parameter;
use belay_server::call::Failure;
use std::str::FromStr;

/// Mount options of a command-line flag, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions(Vec<Parameter>);

impl MountOptions {
    /// Returns `given`, the options of a call, or the flag's options if `given` is empty.
    pub(super) fn unless(&self, given: Vec<Parameter>) -> Vec<Parameter> {
        match given.is_empty() {
            true => self.0.clone(),
            false => given,
        }
    }
}

impl FromStr for MountOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = parameters("mount options", [text]);
        found.map(Self).map_err(|refused| refused.message)
    }
}

/// Options that are ignored, since they have no effect on the controller's mounts: options for
/// mount(8), fstab(5) or a pod, and mount attributes, for which the controller uses its own values.
const WITHOUT_EFFECT: &[&str] = &[
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "symfollow",
    "nosymfollow",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "auto",
    "noauto",
    "defaults",
    "_netdev",
    "nofail",
    "comment",
    "bg",
    "fg",
    "retry",
    "silent",
    "loud",
    "async",
    "sync",
    "dirsync",
    "intr",
    "nointr",
    "sloppy",
];

/// Options for the client's cache, which are ignored: a tenant selects them for the mounts of pods,
/// but the controller must read the latest changes of other worker processes.
const OF_CACHES: &[&str] = &[
    "ac",
    "noac",
    "acdirmax",
    "acdirmin",
    "acregmax",
    "acregmin",
    "actimeo",
    "cto",
    "nocto",
    "lookupcache",
    "sharecache",
    "nosharecache",
];

/// Options that are refused, since they would make the kernel mount a different share than the
/// share of the class.
const REFUSED: &[&str] = &[
    "addr",
    "clientaddr",
    "mountaddr",
    "source",
    "bind",
    "rbind",
    "move",
    "remount",
    "loop",
    "shared",
    "rshared",
    "slave",
    "rslave",
    "private",
    "rprivate",
    "unbindable",
    "runbindable",
];

/// Parses mount options, which are separated by commas. Errors contain `field`, which names the
/// origin of the options.
///
/// # Errors
/// Returns `Invalid` if an option is refused.
pub(super) fn parameters<'a>(
    field: &str,
    options: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<Parameter>, Failure> {
    let mut found = Vec::new();
    let options = options.into_iter().flat_map(|options| options.split(','));
    for option in options.map(str::trim).filter(|it| !it.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        if REFUSED.contains(&name) {
            let why = format_args!("the mount option {name:?} is not accepted");
            return Err(Failure::invalid(field, why));
        }
        let is_without_effect = WITHOUT_EFFECT.contains(&name) || OF_CACHES.contains(&name);
        if !is_without_effect && !name.starts_with("x-") {
            found.push((name.to_owned(), value.map(str::to_owned)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_filesystem_remain_in_their_order() {
        let given = [
            "nfsvers=4.1,hard",
            " noatime , _netdev,x-systemd.automount",
            "ro",
            "nconnect=4",
            "nocto,actimeo=600,lookupcache=all,sharecache",
        ];
        let found = parameters("secrets", given).unwrap();
        let shown: Vec<_> = found
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect();
        assert_eq!(
            shown,
            [
                ("nfsvers", Some("4.1")),
                ("hard", None),
                ("nconnect", Some("4"))
            ]
        );
        assert_eq!(parameters("secrets", ["", ","]).unwrap(), []);
        let default: MountOptions = given[0].parse().unwrap();
        assert_eq!(default.unless(Vec::new()), found[..2]);
        assert_eq!(default.unless(found[2..].to_vec()), found[2..]);
    }

    #[test]
    fn an_option_that_makes_another_mount_is_refused_without_its_value() {
        for option in ["addr=canary", "hard,remount", "bind", "source=canary"] {
            let refused = parameters("secrets: mountOptions", [option]).unwrap_err();
            assert!(
                refused.message.starts_with("secrets: mountOptions: "),
                "{refused}"
            );
            assert!(!refused.message.contains("canary"), "{refused}");
        }
    }
}
