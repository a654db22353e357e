//! Mount options that the node agent refuses: volumes with one are not mounted.

use std::collections::BTreeMap;

use belay_contract::mount_flags;

use super::Names;
use super::objects::Object;
use crate::report::{Report, Verdict};

/// Which of these options is refused, and why.
fn refusal(object: Object<'_>, pointer: &str) -> Option<String> {
    let options: Vec<_> = object.texts(pointer).collect();
    mount_flags::parse(&options).err()
}

/// Reports such volumes, those with the same option together; whether there are any.
pub(super) fn volumes<'a>(report: &mut Report, volumes: impl Iterator<Item = Object<'a>>) -> bool {
    let mut refused = BTreeMap::<_, Vec<_>>::new();
    // A raw volume is not mounted.
    for volume in volumes.filter(|it| it.text("/spec/volumeMode") != "Block") {
        if let Some(why) = refusal(volume, "/spec/mountOptions") {
            refused.entry(why).or_default().push(volume.full_name());
        }
    }
    for (why, names) in &refused {
        let what = format!("{}: mountOptions, {why}", Names(names.clone()));
        let cure = "kubectl edit persistentvolume NAME, and change spec.mountOptions: they count \
                    from the next mount on. Until then, Belay does not mount the volume";
        report.cure(Verdict::No, "volumes", what, cure);
    }
    !refused.is_empty()
}

/// Reports a class whose new volumes would have such an option; whether it has.
pub(super) fn class(report: &mut Report, class: Object<'_>) -> bool {
    let Some(why) = refusal(class, "/mountOptions") else {
        return false;
    };
    let what = format!("{}: mountOptions, {why}", class.name());
    let cure = "kubectl edit storageclass NAME, and change mountOptions: else Belay does not mount \
                its new volumes";
    report.cure(Verdict::Warn, "storage classes", what, cure);
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{expect, volume};

    #[test]
    fn a_volume_whose_mount_options_belay_refuses_is_named_with_the_option() {
        for (options, part) in [
            (
                json!(["noatime", "norecovery"]),
                "norecovery: without the journal",
            ),
            (json!(["noatime,noload"]), "noload: without the journal"),
            (json!(["errors=panic"]), "errors: panic would"),
            (json!(["ro", "rw"]), "ro: contradicts rw"),
        ] {
            let odd = volume("odd", |it| it["spec"]["mountOptions"] = options);
            let part = format!("odd: mountOptions, {part}");
            expect("NO", "volumes", &part, |all| all.push(odd));
        }
    }

    #[test]
    fn options_that_belay_accepts_or_nobody_reads_are_no_obstacle() {
        for (mode, options) in [
            (
                "Filesystem",
                json!(["noatime", "_netdev,nofail", "discard"]),
            ),
            ("Block", json!(["remount"])),
        ] {
            let other = volume("other", |it| {
                it["spec"]["mountOptions"] = options;
                it["spec"]["volumeMode"] = json!(mode);
            });
            expect("ok", "volumes", "2 can be taken over", |all| {
                all.push(other)
            });
        }
    }

    #[test]
    fn a_class_whose_volumes_would_have_such_an_option_is_a_warning() {
        let part = "fast: mountOptions, loop: it makes";
        expect("warn", "storage classes", part, |all| {
            all[6]["mountOptions"] = json!(["loop"]);
        });
    }
}
