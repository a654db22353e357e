//! The command lines of cryptsetup. The device and the key are descriptors of the child, so that no
//! name can be swapped, and the key is in no file, argument, environment, log or error.

use std::time::Duration;

use belay_contract::encryption::{Pbkdf, UNFINISHED};
use belay_server::call::{Failure, Kind};

use super::header::{Slots, slots};
use super::{Key, Opening, Wrong};
use crate::kernel::{Child, ChildEnd, KEYS, Kernel};

const PROGRAM: &str = "cryptsetup";
/// The path of the device in the child: its standard input.
const DEVICE: &str = "/proc/self/fd/0";
/// Options of all commands. The agent has a lock for each volume, and the directory for
/// cryptsetup's locks may be read-only. Without its locks, cryptsetup does not repair a damaged
/// copy of a header when it opens a device.
const ALWAYS: [&str; 2] = ["--batch-mode", "--disable-locks"];
/// The format of a header.
const FORMAT: [&str; 9] = [
    "luksFormat",
    "--type",
    "luks2",
    "--cipher",
    "aes-xts-plain64",
    "--key-size",
    "512",
    "--hash",
    "sha256",
];
/// The key derivations of a key slot. Their cost is fixed, so it is the same on every node: a
/// benchmark would depend on the load of the node. argon2id needs 32 MiB. 1000 iterations are the
/// least that cryptsetup accepts.
const ARGON2ID: [&str; 8] = [
    "--pbkdf",
    "argon2id",
    "--pbkdf-memory",
    "32768",
    "--pbkdf-parallel",
    "1",
    "--pbkdf-force-iterations",
    "4",
];
const PBKDF2: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
/// Opens a header of any version, and never with a token of the header instead of the key:
/// cryptsetup tries tokens first, so a wrong key would seem right.
const OPEN: [&str; 5] = ["open", "--type", "luks", "--token-type", "none"];
/// Maximum duration of a command that derives a key; another program's header may ask for much.
const KEY_DEADLINE: Duration = Duration::from_secs(120);
/// Maximum duration of the other commands.
const DEADLINE: Duration = Duration::from_secs(60);

/// The exit code of cryptsetup for a passphrase that opens no key slot, and for any other EPERM.
const WRONG_PASSPHRASE: i32 = 2;
/// The exit code of cryptsetup for ENOMEM.
const TOO_LITTLE_MEMORY: i32 = 3;
/// The exit code of cryptsetup for EEXIST and EBUSY.
const EXISTS: i32 = 5;

pub(super) fn format<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    (key, pbkdf): (&Key<K>, Pbkdf),
    label: &str,
) -> Result<(), Failure> {
    let texts = ["--label", label, "--subsystem", UNFINISHED];
    let rest = ["--key-file", KEYS[0], DEVICE];
    let args = [&FORMAT, derivation(pbkdf), &texts, &rest].concat();
    succeeded(&run(kernel, Some(device), &[key], &args)?, args[0])
}

fn derivation(pbkdf: Pbkdf) -> &'static [&'static str] {
    match pbkdf {
        Pbkdf::Argon2id => &ARGON2ID,
        Pbkdf::Pbkdf2 => &PBKDF2,
    }
}

/// Opens the device, unless the key is [`Wrong`].
pub(super) fn open<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    key: &Key<K>,
    opening: &Opening<'_>,
) -> Result<Result<(), Wrong>, Failure> {
    let mut args = OPEN.to_vec();
    // With the volume key in the kernel's keyring, each later resize would need the passphrase.
    args.push("--disable-keyring");
    if opening.read_only {
        args.push("--readonly");
    }
    if opening.discards {
        args.push("--allow-discards");
    }
    args.extend(["--key-file", KEYS[0], DEVICE, opening.name]);
    let end = run(kernel, Some(device), &[key], &args)?;
    match end.code {
        // sysfs does not show a device without a table, so the agent cannot close it.
        Some(EXISTS) => Err(Failure::precondition(format!(
            "device-mapper has a device {0} already, or the volume's device is in use; if a killed \
             cryptsetup left the device without a table, remove it on the node: dmsetup remove \
             {0}: {1}",
            opening.name, end.stderr
        ))),
        None | Some(0 | WRONG_PASSPHRASE) => unlocked(&end, args[0]),
        Some(_) => unlocked(&end, args[0]).map_err(|failure| {
            let Ok(Some(slots)) = slots(kernel, device) else {
                return failure;
            };
            match (slots, end.memory_max) {
                (Slots { count: 0, .. }, _) => Failure::precondition(
                    "the LUKS header has no key slot, so no passphrase opens the volume: restore \
                     a backup of its header (cryptsetup luksHeaderRestore), or delete the volume \
                     if it was never used",
                ),
                (Slots { memory, .. }, Some(max)) if memory > max => Failure::quota(format!(
                    "cryptsetup open failed: {}; a key slot of the LUKS header needs {} MiB for \
                     its key derivation, and the agent allows {} MiB, half of its memory limit, or \
                     of the node's memory: raise the limit (node.resources of the chart), or lower \
                     the cost (cryptsetup luksConvertKey --pbkdf-memory)",
                    end.stderr,
                    memory >> 20,
                    max >> 20,
                )),
                _ => failure,
            }
        }),
    }
}

/// Checks that the key opens a key slot, without a mapper.
pub(super) fn test_key<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    key: &Key<K>,
) -> Result<Result<(), Wrong>, Failure> {
    let rest = ["--test-passphrase", "--key-file", KEYS[0], DEVICE];
    let args = [&OPEN[..], &rest].concat();
    unlocked(
        &run(kernel, Some(device), &[key], &args)?,
        "open --test-passphrase",
    )
}

/// Adds a key slot for `new`. `pbkdf` is `None` for a header of the first version, which has its
/// own key derivation.
pub(super) fn add_key<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    (known, new): (&Key<K>, &Key<K>),
    pbkdf: Option<Pbkdf>,
) -> Result<(), Failure> {
    let derivation = pbkdf.map_or(&[][..], derivation);
    let args = [
        &["luksAddKey"],
        derivation,
        &["--key-file", KEYS[0], DEVICE, KEYS[1]],
    ]
    .concat();
    succeeded(&run(kernel, Some(device), &[known, new], &args)?, args[0])
}

/// Removes a key slot that the key opens, even if it is the last one.
pub(super) fn remove_key<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    key: &Key<K>,
) -> Result<Result<(), Wrong>, Failure> {
    let args = ["luksRemoveKey", DEVICE, KEYS[0]];
    unlocked(&run(kernel, Some(device), &[key], &args)?, args[0])
}

pub(super) fn close<K: Kernel>(kernel: &K, name: &str) -> Result<(), Failure> {
    let args = ["close", name];
    succeeded(&run(kernel, None, &[], &args)?, args[0])
}

pub(super) fn resize<K: Kernel>(kernel: &K, device: &K::Fd, name: &str) -> Result<(), Failure> {
    let args = ["resize", "--disable-keyring", name];
    succeeded(&run(kernel, Some(device), &[], &args)?, args[0])
}

pub(super) fn clear_label<K: Kernel>(kernel: &K, device: &K::Fd) -> Result<(), Failure> {
    let args = ["config", "--label", "", "--subsystem", "", DEVICE];
    succeeded(&run(kernel, Some(device), &[], &args)?, args[0])
}

/// Runs a command, whose arguments do not contain the options in [`ALWAYS`].
fn run<K: Kernel>(
    kernel: &K,
    device: Option<&K::Fd>,
    keys: &[&Key<K>],
    args: &[&str],
) -> Result<ChildEnd, Failure> {
    let keys: Vec<_> = keys.iter().map(|key| &key.file).collect();
    let args = ALWAYS.iter().chain(args);
    let end = kernel.run(&Child {
        program: PROGRAM,
        args: args.map(|arg| (*arg).to_owned()).collect(),
        device,
        keys: &keys,
        deadline: match keys.is_empty() {
            true => DEADLINE,
            false => KEY_DEADLINE,
        },
        is_given_up: &|| false,
        is_fsck: false,
    })?;
    Ok(end)
}

/// Returns the result of a command that needs a key which opens a key slot.
fn unlocked(end: &ChildEnd, action: &str) -> Result<Result<(), Wrong>, Failure> {
    match end.code {
        Some(WRONG_PASSPHRASE) => Ok(Err(Wrong(end.stderr.clone()))),
        Some(TOO_LITTLE_MEMORY) => Err(Failure::quota(format!(
            "the LUKS header's key derivation needs more than half of the agent's memory limit; \
             raise the limit, or lower the cost of the key slot (cryptsetup luksConvertKey \
             --pbkdf-memory): {}",
            end.stderr
        ))),
        _ => succeeded(end, action).map(Ok),
    }
}

fn succeeded(end: &ChildEnd, action: &str) -> Result<(), Failure> {
    let how = match end.code {
        Some(0) => return Ok(()),
        Some(code) => format!("failed with exit code {code}"),
        None if end.timed_out => {
            let text = format!("cryptsetup {action} exceeded its deadline");
            return Err(Failure::timeout(text).may_be_running());
        }
        None => "was killed by a signal".to_owned(),
    };
    let text = format!("cryptsetup {action} {how}: {}", end.stderr);
    Err(Failure::new(Kind::System, text))
}
