//! Derives health reasons from collected facts. Makes no system call.

use std::path::Path;

use belay_contract::reason::volume;
use belay_server::health::Conditions;
use belay_server::size::{Exact, Rounded};

use super::storage::room;
use crate::device::{Backing, linked};
use crate::kernel::{BtrfsErrors, Error, Ext4Error, Ext4Errors, Usage};

/// Minimum number of allocated bytes in a file that contains a filesystem. The smallest filesystem
/// of mkfs.ext4, with a size of 4 MiB, has 124 KiB allocated.
const FILESYSTEM_BYTES: u64 = 96 << 10;

/// Facts about a mounted volume.
pub(crate) struct Observation<'a> {
    /// The path of the volume's file, or the name of its disk, for messages.
    pub(super) file: &'a Path,
    /// The path where the volume is mounted.
    pub(super) path: &'a Path,
    /// The path of the volume's device node.
    pub(super) device: &'a Path,
    /// The names of partitions that a process has added to the device.
    pub(super) partitions: &'a [String],
    /// Whether a process has set the device read-only.
    pub(super) refuses_writes: bool,
    pub(super) backing: Backing,
    /// The usage of the filesystem that contains the volume's file; `None` if it was not read.
    pub(super) storage: Option<Usage>,
    /// The facts about the filesystem; `None` for a raw device.
    pub(super) filesystem: Option<Filesystem>,
}

/// The kernel's facts about a mounted filesystem.
pub(crate) struct Filesystem {
    pub(super) fs_type: String,
    /// Whether the filesystem refuses writes although it was not staged read-only.
    pub(super) stopped: bool,
    pub(super) shut_down: bool,
    pub(super) ext4: Option<Ext4Errors>,
    pub(super) btrfs: Option<BtrfsErrors>,
}

/// Returns the health of a volume whose file cannot be read (EIO).
pub(super) fn unreadable(error: &Error) -> Conditions {
    let message = format!(
        "{error}: the disk fails, or its filesystem has shut itself down; see the kernel's log, \
         and repair it"
    );
    let mut conditions = Conditions::default();
    conditions.add(volume::BACKING_FILE_UNREADABLE, message);
    conditions
}

/// Returns all health reasons that follow from the facts.
pub(super) fn judge(seen: &Observation<'_>) -> Conditions {
    let mut conditions = Conditions::default();
    backing(seen, &mut conditions);
    space(seen, &mut conditions);
    altered(seen, &mut conditions);
    if let Some(filesystem) = &seen.filesystem {
        state(seen, filesystem, &mut conditions);
        if let Some(errors) = &filesystem.ext4 {
            ext4(seen, errors, &mut conditions);
        }
        if let Some(errors) = &filesystem.btrfs {
            btrfs(seen, errors, &mut conditions);
        }
    }
    conditions
}

fn backing(seen: &Observation<'_>, conditions: &mut Conditions) {
    let (file, path) = (seen.file.display(), seen.path.display());
    let device = seen.device.display();
    if let Backing::There {
        names: Some(names), ..
    } = &seen.backing
        && let Some(why) = linked(seen.file, *names)
    {
        conditions.add(volume::BACKING_FILE_FOREIGN, why);
    }
    match &seen.backing {
        Backing::There {
            bytes,
            device_bytes,
            ..
        } if bytes < device_bytes => conditions.add(
            volume::BACKING_FILE_SHORT,
            format!(
                "{file} has {}, but {device} has {}: the data behind the end of the file is lost; \
                 delete the pod, wait until the volume is unstaged, and restore the file",
                Exact(*bytes),
                Exact(*device_bytes)
            ),
        ),
        Backing::There {
            allocated: Some(allocated),
            ..
        } if seen.filesystem.is_some() && *allocated < FILESYSTEM_BYTES => conditions.add(
            volume::BACKING_FILE_EMPTY,
            format!(
                "{file} has no data, although {path} shows a filesystem in it: it was truncated \
                 and enlarged again; what is in memory can still be read: copy it from the pod, \
                 delete the pod, wait until the volume is unstaged, and restore the file"
            ),
        ),
        // [`unreadable`] reports the health of a volume whose file cannot be read.
        Backing::There { .. } | Backing::Unreadable(_) => {}
        Backing::Unplugged => conditions.add(
            volume::DEVICE_LOST,
            format!(
                "the disk of the volume was removed while the volume is mounted at {path} \
                 ({file}): it was detached by force or failed; delete the pod, so that the volume \
                 is attached and staged again"
            ),
        ),
        Backing::Gone => conditions.add(
            volume::BACKING_FILE_GONE,
            format!(
                "{file} was removed or replaced while {device} at {path} uses it: do not delete \
                 the pod; copy the data out of it first (docs/health.md, A removed file)"
            ),
        ),
        Backing::Lost => conditions.add(
            volume::DEVICE_LOST,
            format!(
                "{device} at {path} is no longer bound to {file}: it was detached by force; delete \
                 the pod, so that the volume is staged again"
            ),
        ),
    }
}

/// Adds a health reason if the filesystem that contains the volume's file is nearly full: a write
/// to a hole of the file fails when no space is left.
fn space(seen: &Observation<'_>, conditions: &mut Conditions) {
    let Backing::There {
        bytes,
        allocated: Some(allocated),
        ..
    } = &seen.backing
    else {
        return;
    };
    let Some((free, reserve)) = seen.storage.as_ref().map(room) else {
        return;
    };
    let unwritten = bytes.saturating_sub(*allocated);
    if free < reserve.min(unwritten) {
        conditions.add(
            volume::STORAGE_NEARLY_FULL,
            format!(
                "{}: may still need {} of disk space, but {} are left for all volumes: when none \
                 is left, writes of the pod fail with ENOSPC or EIO, and may have failed already; \
                 delete volumes or snapshots, or enlarge the filesystem",
                seen.file.display(),
                Rounded(unwritten),
                Rounded(free)
            ),
        );
    }
}

fn altered(seen: &Observation<'_>, conditions: &mut Conditions) {
    let (device, path) = (seen.device.display(), seen.path.display());
    let mut changes = Vec::new();
    if !seen.partitions.is_empty() {
        changes.push(format!(
            "a process has added partitions to {device} at {path} ({}): writes to them change the \
             volume; remove them: partx --delete {device}",
            seen.partitions.join(", ")
        ));
    }
    if seen.refuses_writes {
        changes.push(format!(
            "a process has set {device} at {path} read-only, so writes to the device fail; undo \
             it: blockdev --setrw {device}"
        ));
    }
    if !changes.is_empty() {
        conditions.add(volume::DEVICE_ALTERED, changes.join("; "));
    }
}

fn state(seen: &Observation<'_>, filesystem: &Filesystem, conditions: &mut Conditions) {
    let (fs_type, path) = (&filesystem.fs_type, seen.path.display());
    if filesystem.shut_down {
        conditions.add(
            volume::FILESYSTEM_SHUT_DOWN,
            format!(
                "the {fs_type} at {path} has shut itself down: nothing can be read or written; see \
                 the kernel's log for the reason, repair that, and delete the pod: the next stage \
                 of the volume replays the log"
            ),
        );
    } else if filesystem.stopped {
        conditions.add(
            volume::FILESYSTEM_READ_ONLY,
            format!(
                "the {fs_type} at {path} was staged for writing and is read-only now: the kernel \
                 does that after an error, see its log; delete the pod, wait until the volume \
                 is unstaged, check the filesystem on {}, and start the pod again",
                seen.file.display()
            ),
        );
    }
}

fn ext4(seen: &Observation<'_>, errors: &Ext4Errors, conditions: &mut Conditions) {
    if errors.warnings > 0 {
        let message = format!(
            "the ext4 at {} has warned {} times since it was mounted: of failed writes, whose data \
             is lost, or of a full directory; see the kernel's log; after failed writes, repair \
             the disk or free space on it, check the files, delete the pod, wait until the volume \
             is unstaged, and start the pod again",
            seen.path.display(),
            errors.warnings
        );
        conditions.add(volume::DEVICE_ERRORS, message);
    }
    if errors.count == 0 {
        return;
    }
    let told = |which: &str, error: &Option<Ext4Error>| {
        let error = error.as_ref().map(ext4_error);
        error.map_or_else(String::new, |error| format!(", the {which} {error}"))
    };
    let message = format!(
        "the ext4 at {} has counted {} errors since it was last checked{}{}: it may be damaged; \
         delete the pod, wait until the volume is unstaged, and start the pod again: the next \
         stage runs e2fsck on {}",
        seen.path.display(),
        errors.count,
        told("first", &errors.first),
        told("last", &errors.last),
        seen.file.display()
    );
    conditions.add(volume::FILESYSTEM_ERRORS, message);
}

fn ext4_error(error: &Ext4Error) -> String {
    let mut text = match error.seconds {
        0 => String::from("at a time not kept"),
        seconds => format!("at {}", utc(seconds)),
    };
    if let Some(name) = ext4_error_name(error.code) {
        text.push_str(&format!(" ({name})"));
    }
    if !error.function.is_empty() {
        text.push_str(&format!(" in {}:{}", error.function, error.line));
    }
    text
}

/// Returns the errno name of an ext4 error code (`EXT4_ERR_*` in fs/ext4/ext4.h). Returns `None`
/// for other codes.
fn ext4_error_name(code: u64) -> Option<&'static str> {
    const NAMES: [&str; 16] = [
        "EIO",
        "ENOMEM",
        "EFSBADCRC",
        "EFSCORRUPTED",
        "ENOSPC",
        "ENOKEY",
        "EROFS",
        "EFBIG",
        "EEXIST",
        "ERANGE",
        "EOVERFLOW",
        "EBUSY",
        "ENOTDIR",
        "ENOTEMPTY",
        "ESHUTDOWN",
        "EFAULT",
    ];
    // In ext4, code 0 means no error, and code 1 means an unknown error.
    let index = usize::try_from(code.checked_sub(2)?).ok()?;
    NAMES.get(index).copied()
}

fn btrfs(seen: &Observation<'_>, errors: &BtrfsErrors, conditions: &mut Conditions) {
    let path = seen.path.display();
    let BtrfsErrors {
        write,
        read,
        flush,
        corruption,
        generation,
    } = errors;
    if corruption + generation > 0 {
        let message = format!(
            "the btrfs at {path} has found {corruption} blocks with a wrong checksum and \
             {generation} that are too old: run btrfs scrub there to find the files, restore them, \
             and reset the counters with btrfs device stats -z"
        );
        conditions.add(volume::DATA_CORRUPTED, message);
    }
    if write + read + flush > 0 {
        let message = format!(
            "the btrfs at {path} has counted {write} failed writes, {read} failed reads and \
             {flush} failed flushes: see the kernel's log, repair the disk or free space on it, \
             and reset the counters with btrfs device stats -z"
        );
        conditions.add(volume::DEVICE_ERRORS, message);
    }
}

/// Formats seconds since 1970 as a date and time in UTC. The computation counts days from 1 March
/// of year 0, because the leap day is then the last day of a year. Each cycle of 400 years has
/// 146,097 days.
fn utc(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let day = day - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::health::Reason;

    fn seen(backing: Backing, filesystem: Option<Filesystem>) -> Conditions {
        judge(&Observation {
            file: Path::new("/volumes/vol-1"),
            path: Path::new("/staging"),
            device: Path::new("/dev/loop3"),
            partitions: &[],
            refuses_writes: false,
            backing,
            storage: None,
            filesystem,
        })
    }

    fn filesystem(fs_type: &str) -> Filesystem {
        Filesystem {
            fs_type: fs_type.to_owned(),
            stopped: false,
            shut_down: false,
            ext4: None,
            btrfs: None,
        }
    }

    const WHOLE: Backing = Backing::There {
        bytes: 1 << 20,
        device_bytes: 1 << 20,
        allocated: Some(FILESYSTEM_BYTES),
        names: Some(1),
    };

    fn told(conditions: &Conditions) -> Vec<Reason> {
        conditions
            .iter()
            .map(|condition| condition.reason)
            .collect()
    }

    #[test]
    fn what_is_whole_is_not_complained_of() {
        let mut well = filesystem("ext4");
        well.ext4 = Some(Ext4Errors::default());
        assert!(seen(WHOLE, Some(well)).is_empty());
        let mut well = filesystem("btrfs");
        well.btrfs = Some(BtrfsErrors::default());
        assert!(seen(WHOLE, Some(well)).is_empty());
        // The file has grown, but its device has not adopted the new size yet.
        let grown = Backing::There {
            bytes: 200,
            device_bytes: 100,
            allocated: Some(0),
            names: None,
        };
        assert!(seen(grown, None).is_empty());
    }

    #[test]
    fn a_failed_write_of_an_ext4_is_an_error_of_its_device_and_not_of_the_filesystem() {
        let mut lost = filesystem("ext4");
        lost.ext4 = Some(Ext4Errors {
            warnings: 10,
            ..Ext4Errors::default()
        });
        let conditions = seen(WHOLE, Some(lost));
        assert_eq!(told(&conditions), [volume::DEVICE_ERRORS]);
        let message = &conditions.iter().next().unwrap().message;
        assert!(
            message.contains("/staging has warned 10 times"),
            "{message}"
        );
    }

    #[test]
    fn each_cause_has_a_word_of_its_own() {
        let short = Backing::There {
            bytes: 99,
            device_bytes: 100,
            allocated: None,
            names: Some(1),
        };
        let emptied = Backing::There {
            bytes: 1 << 20,
            device_bytes: 1 << 20,
            allocated: Some(FILESYSTEM_BYTES - 1),
            names: Some(1),
        };
        let linked = Backing::There {
            bytes: 100,
            device_bytes: 100,
            allocated: None,
            names: Some(2),
        };
        // A user of a raw volume may discard all blocks of the device.
        assert!(seen(emptied.clone(), None).is_empty());
        let expected = [volume::BACKING_FILE_EMPTY];
        assert_eq!(told(&seen(emptied, Some(filesystem("ext4")))), expected);
        let backing = [
            (short, volume::BACKING_FILE_SHORT),
            (linked, volume::BACKING_FILE_FOREIGN),
            (Backing::Gone, volume::BACKING_FILE_GONE),
            (Backing::Lost, volume::DEVICE_LOST),
        ];
        for (backing, reason) in backing {
            assert_eq!(told(&seen(backing, None)), [reason]);
        }
        let mut stopped = filesystem("ext4");
        stopped.stopped = true;
        let expected = volume::FILESYSTEM_READ_ONLY;
        assert_eq!(told(&seen(WHOLE, Some(stopped))), [expected]);
        let mut dead = filesystem("xfs");
        (dead.stopped, dead.shut_down) = (true, true);
        let expected = volume::FILESYSTEM_SHUT_DOWN;
        assert_eq!(told(&seen(WHOLE, Some(dead))), [expected]);
    }

    #[test]
    fn a_file_with_more_holes_than_the_disk_has_room_is_reported() {
        const GIB: u64 = 1 << 30;
        let is_reported = |allocated, free| {
            let usage = Usage {
                total_bytes: 100 * GIB,
                used_bytes: 100 * GIB - free,
                available_bytes: 0,
                total_inodes: 0,
                used_inodes: 0,
                free_inodes: 0,
            };
            let conditions = judge(&Observation {
                file: Path::new("/volumes/vol-1"),
                path: Path::new("/staging"),
                device: Path::new("/dev/loop3"),
                partitions: &[],
                refuses_writes: false,
                backing: Backing::There {
                    bytes: 10 * GIB,
                    device_bytes: 10 * GIB,
                    allocated: Some(allocated),
                    names: Some(1),
                },
                storage: Some(usage),
                filesystem: None,
            });
            told(&conditions) == [volume::STORAGE_NEARLY_FULL]
        };
        assert!(is_reported(GIB, 0) && is_reported(GIB, 5 * GIB - 1));
        assert!(!is_reported(GIB, 5 * GIB));
        // The free space is below the reserve, but sufficient for this volume.
        assert!(is_reported(9 * GIB, GIB - 1) && !is_reported(9 * GIB, GIB));
        assert!(!is_reported(10 * GIB, 0));
    }

    #[test]
    fn each_change_of_a_device_is_reported_with_the_command_that_undoes_it() {
        let names = ["loop3p1".to_owned(), "loop3p7".to_owned()];
        let conditions = judge(&Observation {
            file: Path::new("/volumes/vol-1"),
            path: Path::new("/staging"),
            device: Path::new("/dev/loop3"),
            partitions: &names,
            refuses_writes: true,
            backing: WHOLE,
            storage: None,
            filesystem: None,
        });
        assert_eq!(told(&conditions), [volume::DEVICE_ALTERED]);
        let text = &conditions.iter().next().unwrap().message;
        for part in [
            "(loop3p1, loop3p7)",
            "partx --delete /dev/loop3",
            "blockdev --setrw /dev/loop3",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn each_error_that_a_btrfs_has_counted_is_reported() {
        let (corrupted, errors) = (volume::DATA_CORRUPTED, volume::DEVICE_ERRORS);
        let cases: [([u64; 5], &[Reason]); 8] = [
            ([0, 0, 0, 0, 0], &[]),
            ([1, 0, 0, 0, 0], &[errors]),
            ([0, 1, 0, 0, 0], &[errors]),
            ([0, 0, 1, 0, 0], &[errors]),
            ([0, 0, 0, 1, 0], &[corrupted]),
            ([0, 0, 0, 0, 1], &[corrupted]),
            ([1, 1, 1, 1, 1], &[corrupted, errors]),
            ([0, 1, 0, 0, 1], &[corrupted, errors]),
        ];
        for (counts, expected) in cases {
            let [write, read, flush, corruption, generation] = counts;
            let mut rotten = filesystem("btrfs");
            rotten.btrfs = Some(BtrfsErrors {
                write,
                read,
                flush,
                corruption,
                generation,
            });
            assert_eq!(told(&seen(WHOLE, Some(rotten))), expected, "{counts:?}");
        }
    }

    #[test]
    fn the_errors_of_an_ext4_are_told_with_their_times() {
        let error = |seconds, code| {
            Some(Ext4Error {
                seconds,
                function: "ext4_lookup".to_owned(),
                line: 1780,
                code,
            })
        };
        let mut damaged = filesystem("ext4");
        damaged.ext4 = Some(Ext4Errors {
            warnings: 0,
            count: 2,
            first: error(1_709_164_800, 5),
            last: error(0, 1),
        });
        let conditions = seen(WHOLE, Some(damaged));
        assert_eq!(told(&conditions), [volume::FILESYSTEM_ERRORS]);
        let message = &conditions.iter().next().unwrap().message;
        let expected = "has counted 2 errors since it was last checked, the first at \
                        2024-02-29 00:00:00 UTC (EFSCORRUPTED) in ext4_lookup:1780, the last at a \
                        time not kept in ext4_lookup:1780: ";
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn seconds_are_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_795_262_578, "2026-11-21 12:02:58 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
    }

    #[test]
    fn each_day_until_2401_has_the_date_that_counting_gives() {
        let is_leap = |year: u64| {
            let is = |of: u64| year.is_multiple_of(of);
            is(4) && (!is(100) || is(400))
        };
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0.. {
            let expected = format!("{year:04}-{month:02}-{day:02} 00:00:00 UTC");
            assert_eq!(utc(days * 86_400), expected);
            let last = match month {
                2 => 28 + u64::from(is_leap(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > last {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
            if year > 2400 {
                return;
            }
        }
    }
}
