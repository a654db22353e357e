//! The command lines of cryptsetup. The device and the key are descriptors of the child, so that no
//! name can be swapped, and the key is in no file, argument, environment, log or error.

use std::time::Duration;

use belay_contract::encryption::UNFINISHED;
use belay_server::call::{Failure, Kind};

use crate::kernel::{Child, ChildEnd, KEY, Kernel};

const PROGRAM: &str = "cryptsetup";
/// The path of the device in the child: its standard input.
const DEVICE: &str = "/proc/self/fd/0";
/// Options of all commands. The agent has a lock for each volume, and the directory for
/// cryptsetup's locks may be read-only. Without its locks, cryptsetup does not repair a damaged
/// copy of a header when it opens a device.
const ALWAYS: [&str; 2] = ["--batch-mode", "--disable-locks"];
/// The format of a header. The cost of the key derivation is fixed, so it is the same on every node
/// and needs 32 MiB: a benchmark would depend on the load of the node.
const FORMAT: [&str; 17] = [
    "luksFormat",
    "--type",
    "luks2",
    "--cipher",
    "aes-xts-plain64",
    "--key-size",
    "512",
    "--hash",
    "sha256",
    "--pbkdf",
    "argon2id",
    "--pbkdf-memory",
    "32768",
    "--pbkdf-parallel",
    "1",
    "--pbkdf-force-iterations",
    "4",
];
/// Maximum duration of a command that derives a key; another program's header may ask for much.
const KEY_DEADLINE: Duration = Duration::from_secs(120);
/// Maximum duration of the other commands.
const DEADLINE: Duration = Duration::from_secs(60);

/// The exit code of cryptsetup for a passphrase that opens no key slot, and for any other EPERM.
const WRONG_PASSPHRASE: i32 = 2;
/// The exit code of cryptsetup for ENOMEM.
const TOO_LITTLE_MEMORY: i32 = 3;

/// A command, without the options in [`ALWAYS`].
struct Command<'a, Fd> {
    device: Option<&'a Fd>,
    key: Option<&'a Fd>,
    args: &'a [&'a str],
}

pub(super) fn format<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    key: &K::Fd,
    label: &str,
) -> Result<(), Failure> {
    let rest = [
        "--label",
        label,
        "--subsystem",
        UNFINISHED,
        "--key-file",
        KEY,
        DEVICE,
    ];
    let args: Vec<&str> = FORMAT.into_iter().chain(rest).collect();
    let command = Command {
        device: Some(device),
        key: Some(key),
        args: &args,
    };
    succeeded(&run(kernel, &command)?, args[0])
}

pub(super) fn open<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    name: &str,
    (key, secret_key): (&K::Fd, &str),
    read_only: bool,
) -> Result<(), Failure> {
    // With the volume key in the kernel's keyring, each later resize would need the passphrase.
    let mut args = vec![
        "open",
        "--type",
        "luks",
        "--disable-keyring",
        "--key-file",
        KEY,
    ];
    if read_only {
        args.push("--readonly");
    }
    args.extend([DEVICE, name]);
    let command = Command {
        device: Some(device),
        key: Some(key),
        args: &args,
    };
    let end = run(kernel, &command)?;
    match end.code {
        Some(WRONG_PASSPHRASE) => Err(Failure::precondition(format!(
            "the passphrase of the Secret's key {secret_key} opens no key slot of the volume's \
             LUKS header; nothing was changed: {}",
            end.stderr
        ))),
        Some(TOO_LITTLE_MEMORY) => Err(Failure::quota(format!(
            "the LUKS header's key derivation needs more than half of the agent's memory limit; \
             raise the limit, or lower the cost of the key slot (cryptsetup luksConvertKey \
             --pbkdf-memory): {}",
            end.stderr
        ))),
        _ => succeeded(&end, "open"),
    }
}

pub(super) fn close<K: Kernel>(kernel: &K, name: &str) -> Result<(), Failure> {
    succeeded(&run(kernel, &Command::of(None, &["close", name]))?, "close")
}

pub(super) fn resize<K: Kernel>(kernel: &K, device: &K::Fd, name: &str) -> Result<(), Failure> {
    let args = ["resize", "--disable-keyring", name];
    succeeded(&run(kernel, &Command::of(Some(device), &args))?, args[0])
}

pub(super) fn clear_label<K: Kernel>(kernel: &K, device: &K::Fd) -> Result<(), Failure> {
    let args = ["config", "--label", "", "--subsystem", "", DEVICE];
    succeeded(&run(kernel, &Command::of(Some(device), &args))?, args[0])
}

impl<'a, Fd> Command<'a, Fd> {
    fn of(device: Option<&'a Fd>, args: &'a [&'a str]) -> Self {
        Command {
            device,
            key: None,
            args,
        }
    }
}

fn run<K: Kernel>(kernel: &K, command: &Command<'_, K::Fd>) -> Result<ChildEnd, Failure> {
    let args = ALWAYS.iter().chain(command.args);
    let end = kernel.run(&Child {
        program: PROGRAM,
        args: args.map(|arg| (*arg).to_owned()).collect(),
        device: command.device,
        key: command.key,
        deadline: match command.key {
            Some(_) => KEY_DEADLINE,
            None => DEADLINE,
        },
        is_given_up: &|| false,
        is_fsck: false,
    })?;
    Ok(end)
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
