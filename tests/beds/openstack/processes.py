"""The processes of a bed: each started in its own session, recorded, ended by its record only.

A session's number is its first process's, so a signal reaches all workers of a service. The record
has the start time of that process too, because numbers are used again.
"""
import contextlib
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import time

POLL_SECONDS = 0.05


def start_time(pid):
    """Clock ticks from boot to the start of a process, None if it is gone: proc(5), field 22."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rsplit(")", 1)[1].split()
    return None if state in "ZX" else int(fields[18])


class Processes:
    """All processes of the bed in one directory."""

    def __init__(self, layout):
        self.layout = layout
        self.record = layout.root / "processes.json"

    @contextlib.contextmanager
    def _changing(self):
        with open(self.layout.root / "processes.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = self.all()
            yield entries
            new = self.record.with_suffix(".new")
            new.write_text(json.dumps(entries, indent=1))
            new.replace(self.record)

    def all(self):
        """{name: [pid, start time]}, in the order of their start."""
        try:
            return json.loads(self.record.read_text())
        except FileNotFoundError:
            return {}

    def start(self, name, *command, env=None):
        """Starts a process whose output goes to its log."""
        with self._changing() as entries, open(self.layout.log / f"{name}.log", "ab") as log:
            if name in entries and self._members(*entries[name]):
                raise SystemExit(f"{name} runs already")
            entries.pop(name, None)
            process = subprocess.Popen(
                list(map(str, command)), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={**self.layout.environment(), **(env or {})}, cwd=self.layout.run,
                start_new_session=True)
            entries[name] = [process.pid, start_time(process.pid)]

    def run(self, *command, env=None):
        """Runs a command to its end; its output is logged, and shown if it fails."""
        done = subprocess.run(
            list(map(str, command)), env={**self.layout.environment(), **(env or {})},
            cwd=self.layout.run, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        with open(self.layout.log / "commands.log", "a") as log:
            log.write(f"$ {pathlib.Path(command[0]).name}\n{done.stdout}\n")
        if done.returncode:
            raise SystemExit(f"{command[0]} failed with {done.returncode}:\n{done.stdout[-3000:]}")
        return done.stdout

    def _members(self, pid, started):
        """Does any process of this session live? Reaps it if it is a child of ours."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        found = start_time(pid)
        if found is not None:
            return found == started
        # Its first process is gone; the kernel gives the number to no other process before the
        # last of the group has ended.
        return any(start_time(member) is not None for member in group(pid))

    def is_running(self, name):
        return name in (entries := self.all()) and self._members(*entries[name])

    def signal(self, name, number):
        """Sends a signal to all processes of a service; False if there are none."""
        if not self.is_running(name):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.all()[name][0], number)
        return True

    def stop(self, names, seconds):
        """SIGTERM to all, SIGKILL to those that live after so many seconds (0: at once)."""
        left = [name for name in names if self.signal(name, signal.SIGTERM if seconds else 0)]
        for name in left:
            # A frozen process would not notice.
            self.signal(name, signal.SIGCONT if seconds else 0)
        end = time.monotonic() + seconds
        while left and time.monotonic() < end:
            left = [name for name in left if self.is_running(name)]
            time.sleep(POLL_SECONDS)
        for name in left:
            self.signal(name, signal.SIGKILL)
        # What waits for a disk ends late.
        end = time.monotonic() + 30
        while left and time.monotonic() < end:
            left = [name for name in left if self.is_running(name)]
            time.sleep(POLL_SECONDS)
        with self._changing() as entries:
            for name in set(names) - set(left):
                entries.pop(name, None)
        if left:
            raise SystemExit(f"not ended by SIGKILL: {' '.join(left)}")

    def state(self, name):
        """running, frozen or ended."""
        if not self.is_running(name):
            return "ended"
        stat = pathlib.Path(f"/proc/{self.all()[name][0]}/stat")
        try:
            frozen = stat.read_text().rsplit(")", 1)[1].split()[0] == "T"
        except FileNotFoundError:
            return "ended"
        return "frozen" if frozen else "running"

    def memory(self):
        """[(name, KiB, seconds of CPU)]: shared pages are divided among those that share them."""
        tick = os.sysconf("SC_CLK_TCK")
        rows = []
        for name, (pid, _) in self.all().items():
            kib = cpu = 0
            for member in group(pid):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    stat = pathlib.Path(f"/proc/{member}/stat").read_text()
                    cpu += sum(map(int, stat.rsplit(")", 1)[1].split()[11:15])) / tick
                    rollup = pathlib.Path(f"/proc/{member}/smaps_rollup").read_text()
                    kib += sum(int(line.split()[1]) for line in rollup.splitlines()
                               if line.startswith("Pss:"))
            rows.append((name, kib, cpu))
        return rows


def group(leader):
    """Numbers of the processes of a process group."""
    members = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(int(entry)) == leader:
                    members.append(int(entry))
    return members
