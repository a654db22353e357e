//! Why agent and controller complain of volumes and of storage: every reason once, with how bad it
//! is and who complains. `docs/health.md` has the causes and what to do; monitors match the names,
//! so none ever changes.

/// Who complains. A volume may have a complaint of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teller {
    /// The node agent.
    Node,
    /// The controller.
    Controller,
}

/// Declares each reason as a constant, and the list of all.
macro_rules! reasons {
    ($severity:ident: $(
        $(#[$doc:meta])+
        $constant:ident = $name:literal, $how_bad:ident, $tellers:expr;
    )+) => {
        use super::Teller::{self, *};
        use belay_server::health::{Reason, $severity};

        $(
            $(#[$doc])+
            pub const $constant: Reason<$severity> = Reason::new($name, $severity::$how_bad);
        )+

        /// Every reason, with those who complain for it.
        pub const ALL: &[(Reason<$severity>, &[Teller])] = &[$(($constant, &$tellers)),+];
    };
}

/// Of one volume.
pub mod volume {
    reasons! { Severity:
        /// The kernel takes no more writes.
        FILESYSTEM_READ_ONLY = "FilesystemReadOnly", Degraded, [Node];
        /// ext4 found itself damaged.
        FILESYSTEM_ERRORS = "FilesystemErrors", Degraded, [Node];
        /// The filesystem answers nothing any more.
        FILESYSTEM_SHUT_DOWN = "FilesystemShutDown", Inaccessible, [Node];
        /// btrfs could not read or write its device.
        DEVICE_ERRORS = "DeviceErrors", Degraded, [Node];
        /// btrfs read something else than it had written.
        DATA_CORRUPTED = "DataCorrupted", DataLoss, [Node];
        /// The file is smaller than its device, or than the volume.
        BACKING_FILE_SHORT = "BackingFileShort", DataLoss, [Node, Controller];
        /// The file behind the device has no name any more, or its name is another file's.
        BACKING_FILE_GONE = "BackingFileGone", DataLoss, [Node];
        /// The file cannot even be looked at.
        BACKING_FILE_UNREADABLE = "BackingFileUnreadable", Inaccessible, [Node, Controller];
        /// An operation does not come back.
        OPERATION_HUNG = "OperationHung", Inaccessible, [Node];
        /// How full the volume is was read before an operation hung.
        STATISTICS_OLD = "StatisticsOld", Degraded, [Node];
        /// A raw device is not bound to the volume's file any more.
        DEVICE_LOST = "DeviceLost", Inaccessible, [Node];
        /// The file has no name any more.
        BACKING_FILE_MISSING = "BackingFileMissing", DataLoss, [Controller];
        /// Something else has its name.
        BACKING_FILE_FOREIGN = "BackingFileForeign", Inaccessible, [Controller];
        /// It holds no data, though its filesystem was in use.
        BACKING_FILE_EMPTY = "BackingFileEmpty", DataLoss, [Controller];
        /// The volume's record cannot be read.
        RECORD_UNREADABLE = "RecordUnreadable", Inaccessible, [Controller];
        /// The filesystem of all files does not answer.
        STORAGE_UNREADABLE = "StorageUnreadable", Inaccessible, [Controller];
        /// It takes no writes.
        STORAGE_READ_ONLY = "StorageReadOnly", Degraded, [Controller];
        /// What is still to be written into the file may find no room there.
        STORAGE_NEARLY_FULL = "StorageNearlyFull", Degraded, [Controller];
    }
}

/// Of the storage behind all volumes.
pub mod storage {
    reasons! { StorageSeverity:
        /// Hardly any room is left.
        STORAGE_NEARLY_FULL = "StorageNearlyFull", Degraded, [Node];
        /// Its filesystem takes no writes.
        STORAGE_READ_ONLY = "StorageReadOnly", Degraded, [Node];
        /// It cannot be read.
        STORAGE_UNREADABLE = "StorageUnreadable", Unreachable, [Node];
        /// The folder, or its filesystem, is not there.
        STORAGE_MISSING = "StorageMissing", Unreachable, [Node];
        /// Another folder has its name by now.
        STORAGE_REPLACED = "StorageReplaced", Unreachable, [Node];
        /// The look at it does not come back.
        STORAGE_HANGS = "StorageHangs", Unreachable, [Node];
        /// A volume is to be detached, and a mount keeps it.
        DETACH_PENDING = "DetachPending", Degraded, [Node];
        /// Operations on several volumes do not come back.
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

    /// Reason and status of each row.
    type Rows = Vec<(String, &'static str)>;

    fn sorted(mut rows: Rows) -> Rows {
        rows.sort_unstable();
        rows
    }

    /// The rows of the table beneath a heading of `docs/health.md`.
    fn table(heading: &str) -> Rows {
        let (_, section) = HEALTH.split_once(&format!("\n## {heading}\n")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            Some((cells.next()?.strip_suffix('`')?.to_owned(), cells.next()?))
        });
        sorted(rows.collect())
    }

    /// The reasons for which `teller` complains, with the status in CSI's words.
    fn listed<S: Copy>(
        all: &[(Reason<S>, &[Teller])],
        teller: Teller,
        status: impl Fn(S) -> &'static str,
    ) -> Rows {
        let theirs = all.iter().filter(|(_, tellers)| tellers.contains(&teller));
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
                listed(volume::ALL, Teller::Node, of_volume),
            ),
            (
                "Volume conditions reported by the controller (`local`)",
                listed(volume::ALL, Teller::Controller, of_volume),
            ),
            (
                "Storage conditions reported by the node agent",
                listed(storage::ALL, Teller::Node, of_storage),
            ),
        ] {
            assert_eq!(table(heading), listed, "{heading}");
        }
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

    /// `FilesystemErrors` begins with `Filesystem`; an alert's or a metric's name with nothing.
    fn first_hump(word: &str) -> Option<&str> {
        let hump = |(at, c): (usize, char)| (at > 0 && c.is_ascii_uppercase()).then_some(at);
        let end = word.char_indices().find_map(hump)?;
        word.chars()
            .all(char::is_alphanumeric)
            .then(|| &word[..end])
    }

    #[test]
    fn what_operators_read_names_only_reasons_that_exist() {
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
                // What is no file is a folder, with texts of its own.
                let Ok(text) = fs::read_to_string(&path) else {
                    continue;
                };
                let words = text.split(|c: char| !c.is_alphanumeric());
                for word in
                    words.filter(|word| first_hump(word).is_some_and(|it| humps.contains(it)))
                {
                    // Kinds of Kubernetes.
                    if word.starts_with("StorageClass") {
                        continue;
                    }
                    assert!(
                        names.contains(word),
                        "{}: {word} is no reason",
                        path.display()
                    );
                    mentions += 1;
                }
            }
        }
        assert!(mentions > names.len(), "{mentions}");
    }
}
