//! Metrics of NodeStageVolume: counts filesystems that were formatted or checked, and filesystems
//! that could not be formatted or grown.

use std::path::Path;
use std::sync::Once;

use crate::filesystem::FsType;

const FORMATS: &str = "belay_formats_total";
const FORMAT_REFUSALS: &str = "belay_format_refusals_total";
const CHECKS: &str = "belay_filesystem_checks_total";
const GROW_REFUSALS: &str = "belay_grow_refusals_total";
const PASSPHRASES: &str = "belay_passphrase_replacements_total";
const OPENERS_UNCHECKED: &str = "belay_openers_unchecked_total";

/// The reason why a volume was not formatted, which is the value of the metric's label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The volume is blank although it was restored or cloned, so its data is lost.
    Populated,
    /// The volume is blank although it was in use, so its data is lost.
    Emptied,
    /// The volume is blank, but it is unknown whether it ever contained data.
    Unknown,
    /// An earlier format was interrupted, and it is unknown whether the volume was used since.
    Interrupted,
    /// The volume has no filesystem and is requested read-only.
    ReadOnly,
    /// The volume contains something other than a known filesystem.
    Foreign,
    /// The volume could not be read completely.
    Unreadable,
    /// The filesystem on the volume has a different type than requested.
    OtherFilesystem,
    /// The device is in use by a mount or by a different mkfs.
    InUse,
    /// The device is too small for the filesystem.
    Unfit,
}

impl Refusal {
    const ALL: [Refusal; 10] = [
        Refusal::Populated,
        Refusal::Emptied,
        Refusal::Unknown,
        Refusal::Interrupted,
        Refusal::ReadOnly,
        Refusal::Foreign,
        Refusal::Unreadable,
        Refusal::OtherFilesystem,
        Refusal::InUse,
        Refusal::Unfit,
    ];

    fn name(self) -> &'static str {
        match self {
            Refusal::Populated => "populated",
            Refusal::Emptied => "emptied",
            Refusal::Unknown => "unknown",
            Refusal::Interrupted => "interrupted",
            Refusal::ReadOnly => "read_only",
            Refusal::Foreign => "foreign",
            Refusal::Unreadable => "unreadable",
            Refusal::OtherFilesystem => "other_filesystem",
            Refusal::InUse => "in_use",
            Refusal::Unfit => "unfit",
        }
    }

    pub(super) fn count(self) {
        metrics::counter!(FORMAT_REFUSALS, "reason" => self.name()).increment(1);
    }
}

/// The result of e2fsck before a mount, which is the value of the metric's label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// The filesystem has no errors.
    Clean,
    /// The filesystem had errors, and e2fsck has corrected them.
    Corrected,
    /// The filesystem has errors that e2fsck does not correct automatically.
    Damaged,
    /// e2fsck failed, was killed, or exceeded its deadline.
    Failed,
    /// The program e2fsck is not installed on the node.
    NotInstalled,
}

impl Check {
    const ALL: [Check; 5] = [
        Check::Clean,
        Check::Corrected,
        Check::Damaged,
        Check::Failed,
        Check::NotInstalled,
    ];

    fn name(self) -> &'static str {
        match self {
            Check::Clean => "clean",
            Check::Corrected => "corrected",
            Check::Damaged => "damaged",
            Check::Failed => "failed",
            Check::NotInstalled => "not_installed",
        }
    }

    pub(super) fn count(self) {
        metrics::counter!(CHECKS, "result" => self.name()).increment(1);
    }
}

/// Counts a volume that was formatted.
pub(super) fn formatted(fs: FsType) {
    metrics::counter!(FORMATS, "fs" => fs.name()).increment(1);
}

/// Counts a filesystem that kept its size because the kernel refused to grow it.
pub(super) fn not_grown(fs: FsType) {
    metrics::counter!(GROW_REFUSALS, "fs" => fs.name()).increment(1);
}

/// Counts an attempt to replace the passphrase of a volume.
pub(super) fn replaced_passphrase(is_done: bool) {
    metrics::counter!(PASSPHRASES, "result" => replacement(is_done)).increment(1);
}

fn replacement(is_done: bool) -> &'static str {
    match is_done {
        true => "done",
        false => "failed",
    }
}

/// Counts an attachment for which the agent could not check whether another process had the
/// volume's file open. Logs a warning only once, because the cause is the type of the filesystem of
/// `folder`.
pub(super) fn openers_unchecked(file: &Path) {
    static SAID: Once = Once::new();
    metrics::counter!(OPENERS_UNCHECKED).increment(1);
    SAID.call_once(|| {
        tracing::warn!(
            "the filesystem of {} grants no leases to this process (fcntl(2)), so volumes are \
             staged without checking whether another process has their files open",
            file.display()
        );
    });
}

/// Registers the descriptions of the metrics, and exports every series with the value 0: the
/// function `rate()` of Prometheus includes the first event only if the series existed before that
/// event.
pub(in crate::operation) fn announce() {
    metrics::describe_counter!(FORMATS, "Blank volumes that were formatted.");
    metrics::describe_counter!(
        FORMAT_REFUSALS,
        "Attempts to stage a volume that was, for this reason, not formatted."
    );
    metrics::describe_counter!(
        CHECKS,
        "Checks of an ext4 whose superblock asked for one, before it was mounted."
    );
    metrics::describe_counter!(
        GROW_REFUSALS,
        "Stages of a volume whose filesystem the kernel refused to grow to its device."
    );
    metrics::describe_counter!(
        PASSPHRASES,
        "Attempts to replace the passphrase of an encrypted volume when it was staged."
    );
    metrics::describe_counter!(
        OPENERS_UNCHECKED,
        "Stages without a check whether another process had the volume's file open."
    );
    metrics::counter!(OPENERS_UNCHECKED).increment(0);
    for is_done in [true, false] {
        metrics::counter!(PASSPHRASES, "result" => replacement(is_done)).increment(0);
    }
    for fs in FsType::ALL {
        metrics::counter!(FORMATS, "fs" => fs.name()).increment(0);
        metrics::counter!(GROW_REFUSALS, "fs" => fs.name()).increment(0);
    }
    for check in Check::ALL {
        metrics::counter!(CHECKS, "result" => check.name()).increment(0);
    }
    for refusal in Refusal::ALL {
        metrics::counter!(FORMAT_REFUSALS, "reason" => refusal.name()).increment(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_in_the_documentation() {
        let runbook = include_str!("../../../../docs/runbook.md");
        for refusal in Refusal::ALL {
            let item = format!("\n* `{}`", refusal.name());
            assert!(runbook.contains(&item), "{item}");
        }
        let documentation = include_str!("../../../../docs/metrics.md");
        for check in Check::ALL {
            let row = format!("\n| {} | ", check.name());
            assert!(documentation.contains(&row), "{row}");
        }
    }
}
