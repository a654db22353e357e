//! Classes whose secrets may choose a cloud. What the Secrets contain, the input does not say.

use super::objects::Object;
use super::storage::escaped;
use crate::report::{Report, Verdict};

/// What to do about a Secret that may name a cloud.
pub(super) const CURE: &str = "add each such Secret to `clouds` of the chart's entry, so that the \
                               sidecars may read it, with the name in its key `cloud`, or with \
                               name \"\" if it has none: Belay refuses calls for a cloud that it \
                               does not use";

/// The calls for a volume that change it, by their parameters.
const CALLS: [&str; 3] = ["provisioner", "controller-publish", "controller-expand"];

/// Reports the Secrets of a class, and calls that have none; whether there was anything.
pub(super) fn class(report: &mut Report, class: Object<'_>) -> bool {
    let parameter = |call: &str, part: &str| {
        let key = format!("csi.storage.k8s.io/{call}-secret-{part}");
        class.text(&format!("/parameters/{}", escaped(&key)))
    };
    let (with, without): (Vec<_>, Vec<_>) = CALLS
        .into_iter()
        .partition(|call| !parameter(call, "name").is_empty());
    let secret = |call: &&str| {
        format!(
            "{}/{}",
            parameter(call, "namespace"),
            parameter(call, "name")
        )
    };
    let mut secrets: Vec<_> = with.iter().map(secret).collect();
    secrets.sort();
    secrets.dedup();
    if secrets.is_empty() {
        return false;
    }
    let mut warn = |what: String, cure: &str| {
        let what = format!("{}: {what}", class.name());
        report.cure(Verdict::Warn, "storage classes", what, cure);
    };
    warn(format!("names Secret {}", secrets.join(", ")), CURE);
    if !without.is_empty() {
        let cure = "if the Secret has the key `cloud`, those calls would be for [Global], where \
                    the volumes are not, and fail: use a class that names it for all calls";
        warn(format!("has no Secret for {}", without.join(", ")), cure);
    }
    true
}
