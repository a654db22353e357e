//! Runs mkfs.btrfs: one device, two copies of the metadata, the features of Linux 5.14.

use std::ops::Range;
use std::time::{Duration, Instant};

use belay_server::call::{Failure, Kind};

use super::{DEVICE, Recipe, run};
use crate::filesystem::probe::{DeviceUnderTest, Identity, identify};
use crate::kernel::Kernel;

const PROGRAM: &str = "mkfs.btrfs";
/// The error of mkfs.btrfs if a loop device of an unrelated mount is freed while mkfs.btrfs
/// searches all mounts for its own device. At that time, mkfs.btrfs has written nothing.
const DISTURBED: &str = "cannot check mount status";
const TRIES: usize = 5;
/// The features that btrfs-progs 5.15 enables by default, and mixed-bg, which must be disabled on a
/// small device too. All these features are older than Linux 5.0. btrfs-progs also enables the free
/// space tree, whose option differs between versions.
const FEATURES: &str = "extref,skinny-metadata,no-holes,^mixed-bg";
/// The resulting `incompat_flags`: mixed backrefs, big metadata, extended iref, skinny metadata, no
/// holes; and `compat_ro_flags`: free space tree, and its valid flag (Linux:
/// include/uapi/linux/btrfs.h).
const INCOMPAT: u64 = 0x1 | 0x20 | 0x40 | 0x100 | 0x200;
const COMPAT_RO: u64 = 0x1 | 0x2;

/// Features newer than Linux 5.14 that may become defaults. An older mkfs.btrfs fails on an unknown
/// name, so a feature is disabled only after mkfs.btrfs has enabled it.
const NEWER: &[Feature] = &[
    Feature {
        incompat: 0,
        compat_ro: 0x8,
        no: "^block-group-tree",
    },
    Feature {
        incompat: 0x4000,
        compat_ro: 0,
        no: "^raid-stripe-tree",
    },
    Feature {
        incompat: 0x1_0000,
        compat_ro: 0,
        no: "^squota",
    },
];

/// A feature: its bits, and the name that disables it.
struct Feature {
    incompat: u64,
    compat_ro: u64,
    no: &'static str,
}

/// The device sizes in bytes at which the second copy of the metadata, which begins at 37 MiB plus
/// a twentieth of the size, could overwrite the format mark. These devices get a filesystem of
/// [`SAFE_BYTES`] bytes; NodeStageVolume then grows the filesystem to the size of the device.
const UNSAFE_BYTES: Range<u64> = (1 << 30) + 1..3 << 29;
const SAFE_BYTES: &str = "1073741824";

/// Runs mkfs.btrfs, and repeats it if it has enabled an unsupported feature.
pub(super) fn mkfs<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    recipe: &Recipe<'_>,
    deadline: Duration,
) -> Result<(), Failure> {
    let node_bytes = recipe.options.node_bytes;
    let begun = Instant::now();
    let plain = args(device.bytes, node_bytes, recipe.over_leftovers, &[]);
    undisturbed(|| run(kernel, device, PROGRAM, plain.clone(), deadline))?;
    let (incompat, compat_ro) = unwanted(kernel, device)?;
    if (incompat, compat_ro) == (0, 0) {
        return Ok(());
    }
    let refused = refusals(incompat, compat_ro);
    let left = deadline.saturating_sub(begun.elapsed());
    let refusing = args(device.bytes, node_bytes, true, &refused);
    undisturbed(|| run(kernel, device, PROGRAM, refusing.clone(), left))?;
    match unwanted(kernel, device)? {
        (0, 0) => Ok(()),
        (incompat, compat_ro) => Err(Failure::new(
            Kind::System,
            format!(
                "{PROGRAM} turns on features that Linux 5.14 cannot mount (incompat {incompat:#x}, \
                 compat_ro {compat_ro:#x}); install btrfs-progs that this release supports"
            ),
        )),
    }
}

/// Returns the option names that disable the features with these bits.
fn refusals(incompat: u64, compat_ro: u64) -> Vec<&'static str> {
    let is_on =
        |feature: &&Feature| incompat & feature.incompat != 0 || compat_ro & feature.compat_ro != 0;
    NEWER.iter().filter(is_on).map(|f| f.no).collect()
}

/// Runs mkfs.btrfs, and repeats it if it has failed because another process changed a loop device.
fn undisturbed(mut run: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    for _ in 1..TRIES {
        match run() {
            Err(failure) if failure.message.contains(DISTURBED) => {}
            ended => return ended,
        }
    }
    run()
}

/// Returns the bits of unsupported features: incompat and compat_ro.
fn unwanted<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Result<(u64, u64), Failure> {
    match identify(kernel, device)? {
        Identity::Btrfs(found) => Ok((found.incompat & !INCOMPAT, found.compat_ro & !COMPAT_RO)),
        // The filesystem type is not checked here, because `format` checks the result of mkfs.
        _ => Ok((0, 0)),
    }
}

fn args(
    bytes: u64,
    node_bytes: Option<u32>,
    over_leftovers: bool,
    refused: &[&str],
) -> Vec<String> {
    let node_bytes = node_bytes.unwrap_or(16_384).to_string();
    let features = [&[FEATURES], refused].concat().join(",");
    let mut args = vec!["-q", "-K", "-d", "single", "-m", "dup"];
    args.extend([
        "-s",
        "4096",
        "-n",
        &node_bytes,
        "--csum",
        "crc32c",
        "-O",
        &features,
    ]);
    if UNSAFE_BYTES.contains(&bytes) {
        args.extend(["-b", SAFE_BYTES]);
    }
    if over_leftovers {
        args.push("-f");
    }
    args.push(DEVICE);
    args.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An older mkfs.btrfs fails on the name of an unknown feature.
    #[test]
    fn only_what_was_enabled_is_refused_by_name() {
        assert_eq!(refusals(0, 0), [""; 0]);
        assert_eq!(refusals(INCOMPAT, COMPAT_RO), [""; 0]);
        assert_eq!(refusals(0, 0x8), ["^block-group-tree"]);
        assert_eq!(refusals(0x4000, 0), ["^raid-stripe-tree"]);
        assert_eq!(refusals(0x1_4000, 0x8).len(), NEWER.len());
    }

    #[test]
    fn nodes_have_the_requested_size() {
        let of = |node_bytes| args(1 << 30, node_bytes, false, &[]).join(" ");
        assert!(of(None).contains("-s 4096 -n 16384 "));
        assert_eq!(of(Some(65_536)), of(None).replace("-n 16384", "-n 65536"));
    }

    #[test]
    fn it_is_forced_only_over_leftovers() {
        assert!(!args(1 << 30, None, false, &[]).contains(&"-f".to_owned()));
        assert!(args(1 << 30, None, true, &[]).contains(&"-f".to_owned()));
    }

    #[test]
    fn a_newer_feature_is_refused_by_name_only_when_known() {
        let plain = args(1 << 30, None, false, &[]).join(" ");
        for feature in NEWER {
            assert!(!plain.contains(feature.no));
            let refusing = args(1 << 30, None, false, &[feature.no]).join(" ");
            assert!(
                refusing.contains(&format!("^mixed-bg,{} ", feature.no)),
                "{refusing}"
            );
            assert_eq!(
                (feature.incompat & INCOMPAT, feature.compat_ro & COMPAT_RO),
                (0, 0)
            );
            assert_ne!((feature.incompat, feature.compat_ro), (0, 0));
        }
    }

    #[test]
    fn only_the_sizes_that_could_cover_the_mark_are_made_smaller() {
        for (bytes, is_smaller) in [
            (1 << 30, false),
            ((1 << 30) + 512, true),
            (1260 << 20, true),
            (1536 << 20, false),
            (1 << 40, false),
        ] {
            let args = args(bytes, None, false, &[]);
            assert_eq!(args.contains(&SAFE_BYTES.to_owned()), is_smaller, "{bytes}");
        }
    }

    #[test]
    fn what_others_disturb_is_tried_again_and_nothing_else_is() {
        let failing = |message: &str, times: usize| {
            let mut runs = 0;
            let ended = undisturbed(|| {
                runs += 1;
                match runs <= times {
                    true => Err(Failure::new(Kind::System, message)),
                    false => Ok(()),
                }
            });
            (ended.is_ok(), runs)
        };
        let disturbed = format!("mkfs.btrfs failed with exit code 1: ERROR: {DISTURBED} of it");
        assert_eq!(failing(&disturbed, 2), (true, 3));
        assert_eq!(failing(&disturbed, TRIES), (false, TRIES));
        assert_eq!(failing("mkfs.btrfs failed with exit code 1", 1), (false, 1));
    }
}
