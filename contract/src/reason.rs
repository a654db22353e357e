//! The health reasons of volumes and of storage, each with its severity and reporters.
//! `docs/health.md` lists causes and remedies. Monitors match the names, so they never change.

/// A program that reports health reasons. The controller and the node agent may report the same
/// volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reporter {
    /// The node agent.
    Node,
    /// The controller of `local`.
    Controller,
    /// The controller of a cloud, or of NFS servers.
    Remote,
}

impl Reporter {
    /// Returns the reasons for which this program reports a volume as unhealthy.
    #[must_use]
    pub fn volume_reasons(self) -> Vec<&'static str> {
        let all = volume::ALL.iter();
        let ours = all.filter(|(_, reporters)| reporters.contains(&self));
        ours.map(|(reason, _)| reason.name()).collect()
    }
}

/// Declares each reason as a constant, and the list of all reasons.
macro_rules! reasons {
    ($severity:ident: $(
        $(#[$doc:meta])+
        $constant:ident = $name:literal, $how_bad:ident, $reporters:expr;
    )+) => {
        use super::Reporter::{self, *};
        use belay_server::health::{Reason, $severity};

        $(
            $(#[$doc])+
            pub const $constant: Reason<$severity> = Reason::new($name, $severity::$how_bad);
        )+

        /// Every health reason, with the programs that report it.
        pub const ALL: &[(Reason<$severity>, &[Reporter])] = &[$(($constant, &$reporters)),+];
    };
}

/// Reasons of a volume.
pub mod volume {
    reasons! { Severity:
        /// The kernel refuses writes to the filesystem.
        FILESYSTEM_READ_ONLY = "FilesystemReadOnly", Degraded, [Node];
        /// ext4 has detected damage.
        FILESYSTEM_ERRORS = "FilesystemErrors", Degraded, [Node];
        /// The filesystem no longer responds.
        FILESYSTEM_SHUT_DOWN = "FilesystemShutDown", Inaccessible, [Node];
        /// ext4 or btrfs could not write to its device, or btrfs could not read from it.
        DEVICE_ERRORS = "DeviceErrors", Degraded, [Node];
        /// btrfs has read data that differs from the data that it had written.
        DATA_CORRUPTED = "DataCorrupted", DataLoss, [Node];
        /// The backing file is smaller than its loop device, or smaller than the volume.
        BACKING_FILE_SHORT = "BackingFileShort", DataLoss, [Node, Controller];
        /// The backing file of the device no longer has a name, or its name now refers to another
        /// file.
        BACKING_FILE_GONE = "BackingFileGone", DataLoss, [Node];
        /// The backing file cannot be inspected.
        BACKING_FILE_UNREADABLE = "BackingFileUnreadable", Inaccessible, [Node, Controller];
        /// The volume's server does not respond, or no longer has the volume's directory.
        SERVER_UNREACHABLE = "ServerUnreachable", Inaccessible, [Node, Remote];
        /// The volume's server has no space left for the volume's files.
        SHARE_FULL = "ShareFull", Degraded, [Node, Remote];
        /// An operation on the volume hangs.
        OPERATION_HUNG = "OperationHung", Inaccessible, [Node];
        /// The reported usage of the volume is outdated, since an operation hangs.
        STATISTICS_OLD = "StatisticsOld", Degraded, [Node];
        /// A process has added partitions to a volume's loop device, or set it read-only.
        DEVICE_ALTERED = "DeviceAltered", Degraded, [Node];
        /// A raw device is no longer bound to the volume's file.
        DEVICE_LOST = "DeviceLost", Inaccessible, [Node];
        /// The volume was unpublished before all of its data was written to its disk.
        DATA_UNSYNCED = "DataUnsynced", Degraded, [Node];
        /// The backing file does not exist.
        BACKING_FILE_MISSING = "BackingFileMissing", DataLoss, [Controller];
        /// The name of the backing file does not refer to a regular file, or the file may also
        /// belong to another volume.
        BACKING_FILE_FOREIGN = "BackingFileForeign", Inaccessible, [Node, Controller];
        /// The backing file holds no data, although its filesystem was in use.
        BACKING_FILE_EMPTY = "BackingFileEmpty", DataLoss, [Node, Controller];
        /// The controller's record of the volume cannot be read.
        RECORD_UNREADABLE = "RecordUnreadable", Inaccessible, [Controller];
        /// The filesystem of all backing files does not respond.
        STORAGE_UNREADABLE = "StorageUnreadable", Inaccessible, [Controller];
        /// The filesystem of all backing files refuses writes.
        STORAGE_READ_ONLY = "StorageReadOnly", Degraded, [Controller];
        /// The store of the volume's disk no longer reports, so the volume cannot be changed.
        STORE_SILENT = "StoreSilent", Degraded, [Controller];
        /// The filesystem may have no space for writes to the backing file.
        STORAGE_NEARLY_FULL = "StorageNearlyFull", Degraded, [Node, Controller];
        /// The cloud reports that an operation on the volume has failed.
        CLOUD_ERROR = "CloudError", Inaccessible, [Remote];
        /// The cloud reports that the volume is being deleted.
        CLOUD_DELETING = "CloudDeleting", Inaccessible, [Remote];
        /// The cloud has locked the volume for maintenance.
        CLOUD_MAINTENANCE = "CloudMaintenance", Degraded, [Remote];
    }
}

/// Health reasons of the storage behind all volumes.
pub mod storage {
    reasons! { StorageSeverity:
        /// The storage is nearly out of space.
        STORAGE_NEARLY_FULL = "StorageNearlyFull", Degraded, [Node];
        /// The filesystem of the storage refuses writes.
        STORAGE_READ_ONLY = "StorageReadOnly", Degraded, [Node];
        /// The storage cannot be read.
        STORAGE_UNREADABLE = "StorageUnreadable", Unreachable, [Node];
        /// The storage directory, or its filesystem, does not exist.
        STORAGE_MISSING = "StorageMissing", Unreachable, [Node];
        /// The storage directory was replaced.
        STORAGE_REPLACED = "StorageReplaced", Unreachable, [Node];
        /// An inspection of the storage hangs.
        STORAGE_HANGS = "StorageHangs", Unreachable, [Node];
        /// A volume cannot be deleted yet, since it is still mounted on this node.
        UNSTAGE_PENDING = "UnstagePending", Degraded, [Node];
        /// Operations on several volumes hang.
        OPERATIONS_HUNG = "OperationsHung", Degraded, [Node];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::health::{Reason, Severity, StorageSeverity};
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    const HEALTH: &str = include_str!("../../docs/health.md");

    /// The reason and status of each row.
    type Rows = Vec<(String, &'static str)>;

    fn sorted(mut rows: Rows) -> Rows {
        rows.sort_unstable();
        rows
    }

    /// Returns the rows of the table below a heading of `docs/health.md`.
    fn table(heading: &str) -> Rows {
        let (_, section) = HEALTH.split_once(&format!("\n## {heading}\n")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            Some((cells.next()?.strip_suffix('`')?.to_owned(), cells.next()?))
        });
        sorted(rows.collect())
    }

    /// Returns the reasons that `reporter` reports, with their status as CSI names it.
    fn listed<S: Copy>(
        all: &[(Reason<S>, &[Reporter])],
        reporter: Reporter,
        status: impl Fn(S) -> &'static str,
    ) -> Rows {
        let theirs = all
            .iter()
            .filter(|(_, reporters)| reporters.contains(&reporter));
        let rows = theirs.map(|(it, _)| (it.name().to_owned(), status(it.severity())));
        sorted(rows.collect())
    }

    fn of_volume(severity: Severity) -> &'static str {
        match severity {
            Severity::Degraded => "DEGRADED",
            Severity::Inaccessible => "INACCESSIBLE",
            Severity::DataLoss => "DATA_LOSS",
        }
    }

    fn of_storage(severity: StorageSeverity) -> &'static str {
        match severity {
            StorageSeverity::Degraded => "STORAGE_DEGRADED",
            StorageSeverity::Unreachable => "STORAGE_UNREACHABLE",
        }
    }

    #[test]
    fn each_reason_has_its_row_in_the_documentation_and_each_row_a_reason() {
        for (heading, listed) in [
            (
                "Volume conditions reported by the node agent",
                listed(volume::ALL, Reporter::Node, of_volume),
            ),
            (
                "Volume conditions reported by the controller (`local`)",
                listed(volume::ALL, Reporter::Controller, of_volume),
            ),
            (
                "Volume conditions reported by the controller (clouds, `nfs`)",
                listed(volume::ALL, Reporter::Remote, of_volume),
            ),
            (
                "Storage conditions reported by the node agent",
                listed(storage::ALL, Reporter::Node, of_storage),
            ),
        ] {
            assert_eq!(table(heading), listed, "{heading}");
        }
    }

    /// Returns the reasons that an alert selects or excludes.
    fn named_by(alert: &str, operator: &str) -> BTreeSet<&'static str> {
        const RULES: &str = include_str!("../../deploy/monitoring/rules.yaml");
        let (_, rule) = RULES.split_once(&format!("- alert: {alert}\n")).unwrap();
        let selector = format!("belay_volumes_unhealthy{{reason{operator}\"");
        let (_, names) = rule.split_once(&selector).unwrap();
        names.split('"').next().unwrap().split('|').collect()
    }

    #[test]
    fn every_reason_has_one_alert_and_lost_data_a_critical_one() {
        let lost = volume::ALL.iter().map(|(it, _)| it);
        let lost = lost.filter(|it| it.severity() == Severity::DataLoss);
        let mut named: BTreeSet<_> = lost.map(|it| it.name()).collect();
        assert_eq!(named_by("BelayDataLoss", "=~"), named);
        // Other alerts already report these reasons: BelayOperationsHung, BelayStorageFull and
        // BelayDiskUnusable.
        let covered = [
            volume::OPERATION_HUNG,
            volume::STATISTICS_OLD,
            volume::STORAGE_NEARLY_FULL,
            volume::STORE_SILENT,
        ];
        named.extend(covered.map(Reason::name));
        assert_eq!(named_by("BelayVolumesUnhealthy", "!~"), named);
    }

    #[test]
    fn no_reason_is_listed_twice() {
        let unique = |names: Vec<&'static str>| {
            let count = names.len();
            assert_eq!(BTreeSet::from_iter(names).len(), count);
        };
        unique(volume::ALL.iter().map(|(it, _)| it.name()).collect());
        unique(storage::ALL.iter().map(|(it, _)| it.name()).collect());
    }

    /// Returns the first part of a name in camel case: `Filesystem` of `FilesystemErrors`. Names of
    /// alerts and metrics do not start with the first part of a reason.
    fn first_hump(word: &str) -> Option<&str> {
        let hump = |(at, c): (usize, char)| (at > 0 && c.is_ascii_uppercase()).then_some(at);
        let end = word.char_indices().find_map(hump)?;
        word.chars()
            .all(char::is_alphanumeric)
            .then(|| &word[..end])
    }

    #[test]
    fn texts_for_operators_name_only_reasons_that_exist() {
        let volumes = volume::ALL.iter().map(|(it, _)| it.name());
        let storages = storage::ALL.iter().map(|(it, _)| it.name());
        let names: BTreeSet<_> = volumes.chain(storages).collect();
        let humps: BTreeSet<_> = names.iter().filter_map(|name| first_hump(name)).collect();
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut mentions = 0;
        for folder in [
            "docs",
            "docs/adr",
            "deploy/monitoring",
            "deploy/chart/templates",
        ] {
            for entry in fs::read_dir(top.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                // An entry that is not a file is a directory, which is searched separately.
                let Ok(text) = fs::read_to_string(&path) else {
                    continue;
                };
                let words = text.split(|c: char| !c.is_alphanumeric());
                for word in
                    words.filter(|word| first_hump(word).is_some_and(|it| humps.contains(it)))
                {
                    // These words are kinds of objects in Kubernetes.
                    if word.starts_with("StorageClass") {
                        continue;
                    }
                    assert!(
                        names.contains(word),
                        "{}: {word} is not a reason",
                        path.display()
                    );
                    mentions += 1;
                }
            }
        }
        assert!(mentions > names.len(), "{mentions}");
    }
}
