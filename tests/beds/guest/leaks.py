#!/usr/bin/env python3
"""In a guest: searches for passphrases where they must not be (tests/luks_leaks.rs).

    leaks.py sample SECRETS REPORT       arguments and environment of all processes, until SIGTERM
    leaks.py files SECRETS PATH...       files, and files below directories
    leaks.py descriptors SECRETS NAME    files in memory of all processes; prints those of NAME

SECRETS is a directory with one passphrase in each file. A passphrase is found in plain text, in
base64, in hexadecimal digits, and as a list of bytes, as a debug log would print it. Prints a line
for each hit.
"""
import base64
import json
import os
import pathlib
import signal
import sys
import time

CHUNK = 1 << 20
# Bytes of each form of a passphrase, so that a part of it is found too.
PART = 12
# Files in /sys wait for events, or have no end.
SYS_MAX = 64 << 10


def forms(secret):
    yield secret[:PART]
    yield base64.b64encode(secret)[:PART]
    yield secret.hex().encode()[: 2 * PART]
    yield secret.hex().upper().encode()[: 2 * PART]
    yield ", ".join(map(str, secret[:PART])).encode()


def needles(directory):
    secrets = [path.read_bytes() for path in sorted(pathlib.Path(directory).iterdir())]
    assert secrets and all(len(secret) > 2 * PART for secret in secrets), secrets
    return sorted({form for secret in secrets for form in forms(secret)})


def has_any(data, wanted):
    return any(needle in data for needle in wanted)


class Process:
    """The files of a process. Those of its environment belong to one execve(2)."""

    def __init__(self, pid):
        self.pid = pid
        self.argv = os.open(f"/proc/{pid}/cmdline", os.O_RDONLY)
        self.environ = None
        self.text = None
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # Threads of the kernel are children of process 2.
            self.is_kernel = pid == "2" or stat.read().rpartition(b")")[2].split()[1] == b"2"

    def read(self):
        """Returns the arguments and the environment, and whether they are new."""
        text = os.pread(self.argv, CHUNK, 0)
        is_new = text != self.text
        environ = b"" if is_new or self.environ is None else os.pread(self.environ, CHUNK, 0)
        if not environ:
            if self.environ is not None:
                os.close(self.environ)
            self.environ = None
            self.environ = os.open(f"/proc/{self.pid}/environ", os.O_RDONLY)
            environ = os.pread(self.environ, CHUNK, 0)
        self.text = text
        return text, environ, is_new

    def close(self):
        os.close(self.argv)
        if self.environ is not None:
            os.close(self.environ)


class Sampler:
    def __init__(self, wanted):
        self.wanted, self.known, self.hits, self.commands = wanted, {}, [], set()

    def sweep(self):
        pids = {name for name in os.listdir("/proc") if name.isdigit()}
        for pid in self.known.keys() - pids:
            self.known.pop(pid).close()
        for pid in pids:
            try:
                process = self.known.get(pid)
                if process is None:
                    process = self.known[pid] = Process(pid)
                if not process.is_kernel:
                    self.look(process)
            except (FileNotFoundError, ProcessLookupError):
                pass

    def look(self, process):
        text, environ, is_new = process.read()
        for where, data in (("arguments", text), ("environment", environ)):
            if has_any(data, self.wanted):
                self.hits.append(f"{where} of {process.pid}")
        if is_new:
            words = text.decode(errors="replace").split("\0")
            self.commands.add(" ".join([words[0].rpartition("/")[2], *words[1:]]).strip())


def sample(wanted, report):
    ends = []
    signal.signal(signal.SIGTERM, lambda *_: ends.append(True))
    os.nice(-10)
    sampler, sweeps = Sampler(wanted), 0
    begun = time.monotonic()
    while not ends:
        begin = time.monotonic()
        sampler.sweep()
        sweeps += 1
        pathlib.Path(report + ".ready").touch() if sweeps == 1 else None
        time.sleep(max(0, 0.001 - (time.monotonic() - begin)))
    seconds = time.monotonic() - begun
    result = {
        "sweeps": sweeps,
        "seconds": seconds,
        "hits": sorted(set(sampler.hits)),
        "commands": sorted(sampler.commands),
    }
    pathlib.Path(report + ".new").write_text(json.dumps(result))
    os.rename(report + ".new", report)


def is_in_file(path, wanted):
    at_most = SYS_MAX if str(path).startswith("/sys/") else None
    overlap = max(map(len, wanted)) - 1
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        tail, read = b"", 0
        while at_most is None or read < at_most:
            chunk = os.read(fd, min(CHUNK, at_most or CHUNK))
            if not chunk:
                return False
            read += len(chunk)
            if has_any(tail + chunk, wanted):
                return True
            tail = chunk[-overlap:]
        return False
    finally:
        os.close(fd)


def below(root):
    if not os.path.isdir(root):
        yield root
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if has_any(os.fsencode(path), WANTED):
                print(f"the name {path}")
            if os.path.isfile(path) and not os.path.islink(path):
                yield path


def files(wanted, directory, roots):
    searched = 0
    for root in roots:
        assert os.path.exists(root), root
        for path in below(root):
            if os.path.dirname(path) == directory:
                continue
            try:
                if is_in_file(path, wanted):
                    print(path)
                searched += 1
            except OSError as error:
                # Many files of /sys cannot be read, or need hardware.
                if not path.startswith("/sys/"):
                    raise error
    print(f"searched {searched}", file=sys.stderr)


def descriptors(wanted, name):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        try:
            comm = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{fd}"
                target = os.readlink(path)
                if not target.startswith("/memfd:"):
                    continue
                if comm == name:
                    print(f"{comm} has {target}")
                if has_any(pathlib.Path(path).read_bytes(), wanted):
                    print(f"{comm} has a passphrase in {target}")
        except (FileNotFoundError, ProcessLookupError):
            continue


verb, secrets, *rest = sys.argv[1:]
WANTED = needles(secrets)
match verb:
    case "sample":
        sample(WANTED, *rest)
    case "files":
        files(WANTED, secrets.rstrip("/"), rest)
    case "descriptors":
        descriptors(WANTED, *rest)
    case _:
        sys.exit(__doc__)
