//! Runs one tool on one device until it exits, without a shell, without `PATH`, and without a
//! device name that could be swapped.
//!
//! The kernel kills the child when the thread that started the child exits, because
//! `PR_SET_PDEATHSIG` refers to the thread that forked and not to its process. Therefore the thread
//! that starts a child waits until it has reaped the child.

#![expect(
    unsafe_code,
    reason = "PR_SET_PDEATHSIG and standard output can only be set between fork and exec"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal};

use crate::kernel::{Child, ChildEnd, Error, Result};

/// The control groups, in the mount namespace of the agent.
const GROUPS: &str = "/sys/fs/cgroup";
/// The directories in which the agent searches for a tool, in this order.
const DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
/// The variable that makes device-mapper not wait for udev, which may not run in the namespaces of
/// the agent. Other tools ignore it.
const NO_UDEV: (&str, &str) = ("DM_DISABLE_UDEV", "1");
/// The descriptors of the child's keys, which [`crate::kernel::KEYS`] names.
const KEY_FDS: [RawFd; 2] = [3, 4];
/// The least number of a descriptor that is not one of [`KEY_FDS`].
const OTHER_FD: RawFd = 5;
/// The value of `PATH`, in the child's environment. Tools search these
/// directories for their helper programs.
const PATH: &str = "/usr/sbin:/sbin:/usr/bin:/bin";
/// The package of each tool, on Debian and most other distributions.
const PACKAGES: [(&str, &str); 4] = [
    ("cryptsetup", "cryptsetup-bin"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
];

/// The interval at which [`Child::is_given_up`] is called while the child runs.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of bytes kept from the end of the messages.
const TAIL_BYTES_MAX: usize = 2048;

/// Implements [`crate::kernel::Kernel::run`].
pub(super) fn run(child: &Child<'_, OwnedFd>) -> Result<ChildEnd> {
    let tool = find(child.program)?;
    let failed = |call| move |errno| Error::new(call, child.program, errno);

    let memory_max = (!child.keys.is_empty()).then(memory_share);
    let mut running = spawn(tool, child, memory_max).map_err(failed("exec"))?;
    let pidfd = running.pidfd().map_err(failed("pidfd_open"))?;
    let stderr = running.stderr().map_err(failed("pipe"))?;

    let mut tail = Tail::default();
    let until = watch(&pidfd, &stderr, &mut tail, child).map_err(failed("poll"))?;
    if until != Until::Exit {
        running.kill().map_err(failed("kill"))?;
    }
    // The child is always reaped. A child that hangs in the kernel blocks this thread until its
    // disk responds. Until its exit, the child may still write, so do not return earlier.
    let code = running.wait().map_err(failed("waitid"))?;
    tail.take_from(&stderr).map_err(failed("read"))?;
    Ok(ChildEnd {
        code,
        timed_out: until == Until::Deadline && code.is_none(),
        stderr: tail.into_line(),
        memory_max,
    })
}

fn find(program: &'static str) -> Result<PathBuf> {
    let known = DIRECTORIES
        .iter()
        .map(|directory| PathBuf::from(directory).join(program));
    known.into_iter().find(|path| path.exists()).ok_or_else(|| {
        let package = PACKAGES.iter().find(|(tool, _)| *tool == program);
        let package = package.map_or("the package that has it", |(_, package)| *package);
        Error::new("exec", program, Errno::NOENT)
            .because(format!("not in {PATH}; install {package} on the node"))
    })
}

fn spawn(
    tool: PathBuf,
    child: &Child<'_, OwnedFd>,
    memory_max: Option<u64>,
) -> rustix::io::Result<Running> {
    let mut command = Command::new(tool);
    command
        .args(&child.args)
        .env_clear()
        .env("PATH", PATH)
        .env(NO_UDEV.0, NO_UDEV.1)
        .current_dir("/")
        // Ctrl-C at a terminal must not interrupt a half-made filesystem.
        .process_group(0)
        .stdin(match child.device {
            Some(device) => Stdio::from(device.try_clone().map_err(errno_of)?),
            None => Stdio::null(),
        })
        .stdout(Stdio::null())
        .stderr(Stdio::piped());

    let parent = rustix::process::getpid();
    let is_fsck = child.is_fsck;
    let duplicates = |from: RawFd| -> rustix::io::Result<Vec<OwnedFd>> {
        let keys = child.keys.iter();
        keys.map(|key| rustix::io::fcntl_dupfd_cloexec(key, from))
            .collect()
    };
    // Occupy the numbers of the keys, so that the standard library does not open its own pipe
    // there, which the child would replace.
    let occupied = duplicates(KEY_FDS[0])?;
    let keys = duplicates(OTHER_FD)?;
    let numbers: Vec<RawFd> = keys.iter().map(AsRawFd::as_raw_fd).collect();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent exited before the call above, the kernel sends no signal.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from(Errno::SRCH));
        }
        if is_fsck {
            // SAFETY: both descriptors are open, and no object of this process owns them.
            let copied = unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) };
            if copied < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if let Some(bytes) = memory_max {
            limit_memory(bytes)?;
        }
        for (from, to) in numbers.iter().zip(KEY_FDS) {
            // SAFETY: `from` is open until the program starts, and no object of this process owns
            // the number `to` in the child.
            if unsafe { libc::dup2(*from, to) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. This closure only
    // makes system calls, allocates no memory and takes no lock.
    unsafe { command.pre_exec(prepare) };
    let spawned = command.spawn().map(Running).map_err(errno_of);
    drop((occupied, keys));
    // ENOENT for a tool that exists means that its loader is missing. The caller reports ENOENT as
    // a tool that is not installed, so convert the errno.
    spawned.map_err(|errno| match errno {
        Errno::NOENT => Errno::NOEXEC,
        errno => errno,
    })
}

/// Limits the memory of a child that derives a key. Makes only system calls.
fn limit_memory(bytes: u64) -> rustix::io::Result<()> {
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    rustix::process::setrlimit(Resource::As, limit)
}

/// Returns the size in bytes to which the address space of a child that derives a key is limited:
/// half of the memory of the node, or of the control group of this process. The other half is for
/// the agent and its other children.
///
/// The header of another program may ask for any amount of memory. Without a limit, the kernel
/// would kill the agent and all its children at the limit of their control group, again at each
/// retry.
fn memory_share() -> u64 {
    let node = rustix::system::sysinfo();
    let node = node.totalram.saturating_mul(u64::from(node.mem_unit));
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    least_limit(Path::new(GROUPS), &own).map_or(node, |group| group.min(node)) / 2
}

/// Returns the least limit of the control group that `own` names, in the format of
/// /proc/self/cgroup, and of the groups that contain it; `None` if there is no limit, or if the
/// groups are not those of the second version.
fn least_limit(root: &Path, own: &str) -> Option<u64> {
    let group = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limits = Path::new(group).ancestors().filter_map(|group| {
        let limit = std::fs::read_to_string(root.join(group).join("memory.max"));
        limit.ok()?.trim().parse().ok()
    });
    limits.min()
}

/// The event that ended a wait for a child.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Exit,
    Deadline,
    GivenUp,
}

/// Waits until the child exits, the deadline passes or the caller cancels the child. Empties the
/// pipe meanwhile, so that a child with many messages never blocks.
fn watch(
    pidfd: &OwnedFd,
    stderr: &OwnedFd,
    tail: &mut Tail,
    child: &Child<'_, OwnedFd>,
) -> rustix::io::Result<Until> {
    let begun = Instant::now();
    let mut listening = true;
    loop {
        let left = child.deadline.saturating_sub(begun.elapsed());
        let timeout = Timespec::try_from(left.min(LOOK_AFTER)).map_err(|_| Errno::OVERFLOW)?;
        let mut watched = [
            PollFd::new(pidfd, PollFlags::IN),
            PollFd::new(stderr, PollFlags::IN),
        ];
        // Do not poll a closed pipe, because poll would report it as ready again and again.
        let watched = if listening {
            &mut watched[..]
        } else {
            &mut watched[..1]
        };
        match rustix::event::poll(watched, Some(&timeout)) {
            Ok(0) if left <= LOOK_AFTER => return Ok(Until::Deadline),
            Ok(_) if (child.is_given_up)() => return Ok(Until::GivenUp),
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
        if watched
            .get(1)
            .is_some_and(|pipe| !pipe.revents().is_empty())
        {
            listening = tail.take_from(stderr)?;
        }
        if !watched[0].revents().is_empty() {
            return Ok(Until::Exit);
        }
    }
}

/// A running child, which is killed and reaped on drop if an error ends [`run`] early.
struct Running(std::process::Child);

impl Running {
    fn pidfd(&self) -> rustix::io::Result<OwnedFd> {
        let pid = i32::try_from(self.0.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(Errno::SRCH)?;
        // The child has not been reaped yet, so its PID cannot have been reused.
        rustix::process::pidfd_open(pid, PidfdFlags::empty())
    }

    fn stderr(&mut self) -> rustix::io::Result<OwnedFd> {
        let pipe = OwnedFd::from(self.0.stderr.take().ok_or(Errno::BADF)?);
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(pipe)
    }

    fn kill(&mut self) -> rustix::io::Result<()> {
        self.0.kill().map_err(errno_of)
    }

    fn wait(&mut self) -> rustix::io::Result<Option<i32>> {
        self.0.wait().map(|status| status.code()).map_err(errno_of)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Once the child has been reaped, neither `kill` nor `wait` has an effect.
        if self.0.kill().is_ok() {
            self.0.wait().ok();
        }
    }
}

/// The end of a child's messages, at most [`TAIL_BYTES_MAX`] bytes.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    /// Reads the available data without blocking; returns `false` once the pipe is closed.
    fn take_from(&mut self, pipe: &impl AsFd) -> rustix::io::Result<bool> {
        let mut chunk = [0; 1024];
        loop {
            match retry_on_intr(|| rustix::io::read(pipe, &mut chunk)) {
                Ok(0) => return Ok(false),
                Ok(length) => self.push(&chunk[..length]),
                Err(Errno::AGAIN) => return Ok(true),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        self.0.drain(..self.0.len().saturating_sub(TAIL_BYTES_MAX));
    }

    fn into_line(self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let lines = text
            .split(['\n', '\r'])
            .map(str::trim)
            .filter(|line| !line.is_empty());
        let joined = lines.collect::<Vec<_>>().join("; ");
        joined.replace(char::is_control, " ")
    }
}

fn errno_of(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::KEYS;

    fn run_sh(script: &str, deadline: Duration) -> ChildEnd {
        run_as(script, deadline, false)
    }

    fn run_as(script: &str, deadline: Duration, is_fsck: bool) -> ChildEnd {
        run_until(script, deadline, is_fsck, &|| false)
    }

    fn run_until(
        script: &str,
        deadline: Duration,
        is_fsck: bool,
        is_given_up: &dyn Fn() -> bool,
    ) -> ChildEnd {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        std::fs::write(&path, b"content").unwrap();
        let device = OwnedFd::from(std::fs::File::open(&path).unwrap());
        let args = vec!["-c".to_owned(), script.to_owned()];
        let child = Child {
            program: "sh",
            args,
            device: Some(&device),
            keys: &[],
            deadline,
            is_given_up,
            is_fsck,
        };
        run(&child).unwrap()
    }

    /// A time limit much longer than any test needs: reaching it is a failure.
    const LONG: Duration = Duration::from_secs(60);

    fn ended(code: i32, stderr: &str) -> ChildEnd {
        ChildEnd {
            code: Some(code),
            timed_out: false,
            stderr: stderr.to_owned(),
            memory_max: None,
        }
    }

    #[test]
    fn status_and_complaint_of_a_child_come_back() {
        let end = run_sh("echo out; echo first >&2; echo second >&2; exit 3", LONG);
        assert_eq!(end, ended(3, "first; second"));
    }

    /// e2fsck writes most of its messages to standard output.
    #[test]
    fn all_messages_of_a_check_come_back() {
        let end = run_as("echo out; echo err >&2; exit 4", LONG, true);
        assert_eq!(end, ended(4, "out; err"));
    }

    #[test]
    fn a_child_that_is_given_up_is_killed_and_did_not_time_out() {
        let end = run_until("exec sleep 600", LONG, false, &|| true);
        assert_eq!((end.code, end.timed_out), (None, false));
    }

    #[test]
    fn a_child_ended_by_a_signal_has_no_status_and_did_not_time_out() {
        let end = run_sh("kill -TERM $$", LONG);
        assert_eq!(
            end,
            ChildEnd {
                code: None,
                timed_out: false,
                stderr: String::new(),
                memory_max: None,
            }
        );
    }

    #[test]
    fn the_device_is_standard_input_and_can_be_opened_anew() {
        assert_eq!(
            run_sh("cat /proc/self/fd/0 /dev/stdin >&2", LONG),
            ended(0, "contentcontent")
        );
    }

    #[test]
    fn keys_have_their_descriptors_and_the_memory_is_limited() {
        let key = |text: &[u8]| {
            let key = OwnedFd::from(tempfile::tempfile().unwrap());
            rustix::io::write(&key, text).unwrap();
            key
        };
        let keys = [key(b"one"), key(b"two")];
        let script = format!("cat {} {} >&2; echo >&2; ulimit -Hv >&2", KEYS[0], KEYS[1]);
        let child = Child {
            program: "sh",
            args: vec!["-c".to_owned(), script],
            device: None,
            keys: &[&keys[0], &keys[1]],
            deadline: LONG,
            is_given_up: &|| false,
            is_fsck: false,
        };
        let memory = memory_share();
        let expected = ChildEnd {
            memory_max: Some(memory),
            ..ended(0, &format!("onetwo; {}", memory / 1024))
        };
        assert_eq!(run(&child).unwrap(), expected);
    }

    #[test]
    fn the_least_limit_of_the_groups_around_the_process_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let limit = |group: &str, limit: &str| {
            let group = root.join(group);
            std::fs::create_dir_all(&group).unwrap();
            std::fs::write(group.join("memory.max"), format!("{limit}\n")).unwrap();
        };
        limit("pod/agent", "max");
        let own = "1:name=systemd:/other\n0::/pod/agent\n";
        assert_eq!(least_limit(root, own), None);
        limit("pod", "268435456");
        assert_eq!(least_limit(root, own), Some(256 << 20));
        limit("pod/agent", "1048576");
        assert_eq!(least_limit(root, own), Some(1 << 20));
        // The root group has no limit, unless it is that of a container.
        assert_eq!(least_limit(root, "0::/\n"), None);
        limit("", "4096");
        assert_eq!(least_limit(root, "0::/\n"), Some(4096));
        assert_eq!(least_limit(root, "1:memory:/pod/agent\n"), None);
        assert!(memory_share() > 0);
    }

    #[test]
    fn nothing_of_our_environment_or_directory_reaches_the_child() {
        assert!(std::env::vars_os().any(|(name, _)| name != "PATH"));
        let end = run_sh(
            "pwd >&2; env | grep -v -e ^PWD= -e ^SHLVL= -e ^_= | sort >&2",
            LONG,
        );
        let expected = format!("/; DM_DISABLE_UDEV=1; PATH={PATH}");
        assert_eq!(end, ended(0, &expected));
    }

    #[test]
    fn a_child_is_killed_at_its_deadline() {
        let end = run_sh("exec sleep 600", Duration::from_millis(50));
        assert_eq!(
            end,
            ChildEnd {
                code: None,
                timed_out: true,
                stderr: String::new(),
                memory_max: None,
            }
        );
    }

    #[test]
    fn a_child_that_closes_standard_error_is_still_waited_for() {
        let end = run_sh(
            "exec 2>&-; head -c 5000000 /dev/zero >/dev/null; exit 7",
            LONG,
        );
        assert_eq!(end, ended(7, ""));
    }

    #[test]
    fn a_talkative_child_never_blocks() {
        let end = run_sh("yes warning | head -n 100000 >&2; echo last >&2", LONG);
        assert_eq!((end.code, end.timed_out), (Some(0), false));
        assert!(end.stderr.ends_with("; warning; last"), "{}", end.stderr);
    }

    #[test]
    fn a_grandchild_that_keeps_the_pipe_open_does_not_hold_us() {
        let end = run_sh("sleep 600 & echo $! >&2; exit 0", LONG);
        let grandchild = end.stderr.parse().ok().and_then(Pid::from_raw).unwrap();
        // The grandchild still runs, so `run` did not wait for it.
        rustix::process::kill_process(grandchild, Signal::KILL).unwrap();
        assert_eq!((end.code, end.timed_out), (Some(0), false));
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let device = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let start = || {
            let args = vec!["600".to_owned()];
            let child = Child {
                program: "sleep",
                args,
                device: Some(&device),
                keys: &[],
                deadline: LONG,
                is_given_up: &|| false,
                is_fsck: false,
            };
            spawn(find("sleep").unwrap(), &child, None).unwrap()
        };
        let mut orphan = std::thread::scope(|scope| scope.spawn(start).join().unwrap());

        let pidfd = orphan.pidfd().unwrap();
        let mut watched = [PollFd::new(&pidfd, PollFlags::IN)];
        let limit = Timespec::try_from(LONG).unwrap();
        assert_eq!(rustix::event::poll(&mut watched, Some(&limit)), Ok(1));
        assert_eq!(orphan.wait(), Ok(None));
    }

    #[test]
    fn only_the_end_of_a_long_complaint_is_kept_and_on_one_line() {
        let mut tail = Tail::default();
        tail.push(&b"lost\n".repeat(TAIL_BYTES_MAX));
        tail.push(b"\n  bad\tblock 7 \r\n\nno space left\n");
        let line = tail.into_line();
        assert!(line.len() <= 2 * TAIL_BYTES_MAX, "{}", line.len());
        assert!(line.ends_with("lost; bad block 7; no space left"), "{line}");
    }

    #[test]
    fn a_missing_tool_is_named_with_its_package() {
        let error = find("mkfs.nosuchfs").unwrap_err().to_string();
        assert!(error.contains("exec mkfs.nosuchfs: ENOENT"), "{error}");
        assert!(error.contains("install the package that has it"), "{error}");
    }
}
