//! A machine for guests: slots for disks, and a User-mode Linux that boots in it. A power cut is a
//! SIGKILL to the process group of User-mode Linux: everything that the guest had in memory is
//! lost.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::channel::{Channel, Gone, Output};
use crate::disk::slot;
use crate::kernel::Kernel;

pub use slot::Slot;

/// Maximum time of a boot, which takes two seconds on an idle machine.
const BOOT_MAX: Duration = Duration::from_secs(120);
/// The default time limit of a call.
const CALL_MAX: Duration = Duration::from_secs(120);

/// The virtio device ID of a block device (virtio 1.2, 5).
const VIRTIO_BLOCK: u32 = 2;
const VIRTIO_SCSI: u32 = 8;

/// The hardware of a machine.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// The number of virtio-blk slots. These slots have the first slot numbers.
    pub blocks: usize,
    /// The number of SCSI slots. The numbers of these slots follow the numbers of the virtio-blk
    /// slots.
    pub scsis: usize,
    /// The memory, in MiB.
    pub memory: u64,
    /// Additional kernel arguments: disks from files (`ubd0=FILE`), network interfaces
    /// (`vec0:transport=tap,...`), and the host name (`belay.name=`).
    pub more: Vec<String>,
}

impl Default for Hardware {
    fn default() -> Self {
        Hardware {
            blocks: 1,
            scsis: 0,
            memory: 512,
            more: Vec::new(),
        }
    }
}

/// A machine: slots for disks, and the kernel of the guests. Guests boot in it one after the other.
#[derive(Debug)]
pub struct Machine {
    hardware: Hardware,
    kernel: Kernel,
    slots: Vec<Slot>,
    directory: TempDir,
    boots: AtomicUsize,
}

/// A running guest. When this value is dropped, the power of the guest is cut.
#[derive(Debug)]
pub struct Guest<'a> {
    machine: &'a Machine,
    channel: Channel,
    power: Power,
    release: String,
    console: PathBuf,
}

/// The power switch of one guest. A clone of the switch can cut the power from a different thread.
#[derive(Clone, Debug)]
pub struct Power {
    child: Arc<Mutex<Child>>,
}

impl Machine {
    /// Creates a machine with empty slots.
    ///
    /// # Panics
    /// Panics if the directory or the sockets of the machine cannot be created.
    #[must_use]
    pub fn new(kernel: Kernel, hardware: Hardware) -> Self {
        let directory = tempfile::Builder::new().prefix("belay-guest-").tempdir();
        let directory = directory.expect("a temporary directory");
        let socket = |index: usize| directory.path().join(format!("disk{index}"));
        let slots = (0..hardware.blocks + hardware.scsis)
            .map(|index| Slot::new(&socket(index), index >= hardware.blocks))
            .collect();
        Machine {
            hardware,
            kernel,
            slots,
            directory,
            boots: AtomicUsize::new(0),
        }
    }

    /// Returns the slot with this number.
    ///
    /// # Panics
    /// Panics if there is no slot with this number.
    #[must_use]
    pub fn slot(&self, index: usize) -> &Slot {
        &self.slots[index]
    }

    /// Returns the machine's own directory, for the files of disks.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Boots a guest; the disks in the slots are attached from the start.
    ///
    /// # Panics
    /// Panics with the end of the console if the guest does not boot.
    #[must_use]
    pub fn boot(&self) -> Guest<'_> {
        let number = self.boots.fetch_add(1, Ordering::SeqCst);
        let console = self.directory().join(format!("console{number}"));
        let (ours, theirs) = UnixStream::pair().expect("socketpair");
        let child = self.command(&console, theirs).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot run taskset: {error}"));
        let mut guest = Guest {
            machine: self,
            channel: Channel::new(ours),
            power: Power {
                child: Arc::new(Mutex::new(child)),
            },
            release: String::new(),
            console,
        };
        match guest.channel.ready(BOOT_MAX) {
            Ok(release) => guest.release = release,
            Err(Gone) => panic!("the guest does not boot:\n{}", guest.console()),
        }
        guest
    }

    fn command(&self, console: &Path, channel: UnixStream) -> Command {
        let kernel = &self.kernel;
        let log = File::create(console).expect("a file for the console");
        let errors = log.try_clone().expect("dup");
        // User-mode Linux uses one processor, and is twice as fast if it stays on one CPU of the
        // host.
        let cpu = next_cpu().to_string();
        let mut command = Command::new("taskset");
        command
            .args(["--cpu-list", &cpu])
            .arg(&kernel.program)
            .args(self.arguments())
            .args(kernel.arguments)
            .env("HOME", self.directory())
            .env("TMPDIR", self.directory_for_memory())
            .envs(kernel.preload.iter().map(|file| ("LD_PRELOAD", file)))
            .current_dir(self.directory())
            .stdin(Stdio::from(OwnedFd::from(channel)))
            .stdout(log)
            .stderr(errors)
            // User-mode Linux tries to leave its process group with setsid(2), which fails for the
            // leader of a group.
            .process_group(0);
        command
    }

    /// Returns the directory for the file with the guest's memory, which User-mode Linux maps as
    /// executable and unlinks: /dev/shm, unless /dev/shm is mounted noexec or is too small, as in
    /// many containers.
    fn directory_for_memory(&self) -> &Path {
        let memory = Path::new("/dev/shm");
        let is_fit = statvfs(memory).is_ok_and(|shm| {
            let is_executable = !shm.f_flag.contains(StatVfsMountFlags::NOEXEC);
            is_executable && shm.f_bavail * shm.f_frsize >= self.hardware.memory << 20
        });
        if is_fit { memory } else { self.directory() }
    }

    fn arguments(&self) -> Vec<String> {
        let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("init.sh");
        let modules = self.kernel.modules.display();
        let directory = self.directory().display();
        let mut arguments = vec![
            format!("mem={}M", self.hardware.memory),
            format!("uml_dir={directory}/"),
            "umid=guest".to_owned(),
            format!("init={}", init.display()),
            format!("belay.modules={modules}"),
        ];
        let fixed = "rootfstype=hostfs rootflags=/ ro quiet con=null con0=null,fd:1 ssl=null \
                     ssl0=fd:0,fd:0 belay.load=loop,virtio_blk,virtio_scsi,sd_mod";
        arguments.extend(fixed.split_whitespace().map(str::to_owned));
        arguments.extend(self.hardware.more.iter().cloned());
        for (index, slot) in self.slots.iter().enumerate() {
            let kind = if slot.is_scsi() {
                VIRTIO_SCSI
            } else {
                VIRTIO_BLOCK
            };
            let socket = slot.path().display();
            arguments.push(format!("virtio_uml.device={socket}:{kind}:{index}"));
        }
        arguments
    }
}

/// Returns the next CPU, in turn, among the CPUs on which this process may run.
fn next_cpu() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cpus: Vec<usize> = list.map(cpus).unwrap_or_default();
    let next = NEXT.fetch_add(1, Ordering::SeqCst);
    cpus.get(next % cpus.len().max(1)).copied().unwrap_or(0)
}

/// Parses a list of CPUs such as `0-2,5` (proc(5)).
fn cpus(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

impl Guest<'_> {
    /// Returns the release of the guest's kernel, as in uname(2).
    #[must_use]
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Runs a script with bash to its end. Processes that the script leaves running must not keep
    /// its output open.
    ///
    /// # Errors
    /// Returns [`Gone`] if the guest ends before the script does.
    ///
    /// # Panics
    /// Panics if the script takes more than two minutes.
    pub fn try_run(&mut self, script: &str) -> Result<Output, Gone> {
        self.channel.run(script, CALL_MAX)
    }

    /// Runs a script like [`Guest::try_run`], with this time limit.
    ///
    /// # Errors
    /// Returns [`Gone`] if the guest ends before the script does.
    ///
    /// # Panics
    /// Panics if the script takes longer.
    pub fn try_run_within(&mut self, within: Duration, script: &str) -> Result<Output, Gone> {
        self.channel.run(script, within)
    }

    /// Runs a script like [`Guest::try_run_within`], and returns its output.
    ///
    /// # Panics
    /// Panics if the script fails or the guest ends, with the script's output.
    #[track_caller]
    pub fn run_within(&mut self, within: Duration, script: &str) -> String {
        match self.channel.run(script, within) {
            Ok(Output { code: 0, text }) => text,
            Ok(Output { code, text }) => panic!("{script}\nexit code {code}\n{text}"),
            Err(Gone) => panic!("{script}\nthe guest is gone\n{}", self.console()),
        }
    }

    /// Runs a script like [`Guest::try_run`], and returns its output.
    ///
    /// # Panics
    /// Panics if the script fails or the guest ends, with the script's output.
    #[track_caller]
    pub fn run(&mut self, script: &str) -> String {
        self.run_within(CALL_MAX, script)
    }

    /// Makes the guest's kernel detect the disk in a slot, like the hot-plug of a hypervisor.
    ///
    /// # Panics
    /// Panics if the slot is empty.
    #[track_caller]
    pub fn attach(&mut self, slot: usize) {
        self.driver("bind", slot);
    }

    /// Makes the guest's kernel release the disk in a slot.
    ///
    /// # Panics
    /// Panics if the kernel does not release the disk.
    #[track_caller]
    pub fn detach(&mut self, slot: usize) {
        self.driver("unbind", slot);
    }

    #[track_caller]
    fn driver(&mut self, verb: &str, slot: usize) {
        let driver = "/sys/bus/platform/drivers/virtio-uml";
        self.run(&format!("echo virtio-uml.{slot} >{driver}/{verb}"));
    }

    /// Returns a handle for cutting the guest's power.
    #[must_use]
    pub fn power(&self) -> Power {
        self.power.clone()
    }

    /// Cuts the power and returns once the guest has exited.
    pub fn cut(self) {
        drop(self);
    }

    /// Returns the last part of the output on the guest's console.
    #[must_use]
    pub fn console(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        let end = text.len().saturating_sub(4096);
        String::from_utf8_lossy(&text[end..]).into_owned()
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.power.cut();
        self.power.wait();
        for slot in &self.machine.slots {
            slot.wait_for_end();
        }
        if std::thread::panicking() {
            eprintln!("console of the guest:\n{}", self.console());
        }
        // A guest's kernel removes its uml_dir only at a shutdown.
        let left = fs::remove_dir_all(self.machine.directory().join("guest"));
        if let Err(error) = left
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("the directory of the guest: {error}");
        }
    }
}

impl Power {
    /// Sends SIGKILL to each process of the guest. Has no effect if the guest has ended.
    pub fn cut(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // The pid is not reused before wait(2).
        if matches!(child.try_wait(), Ok(None))
            && let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
            && let Err(error) = kill_process_group(group, Signal::KILL)
        {
            eprintln!("kill: {error}");
        }
    }

    fn wait(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = child.wait() {
            eprintln!("wait: {error}");
        }
    }
}
