#!/usr/bin/env python3
"""In a guest: how long after the kernel's uevent the node agent has opened a disk, and udev its link.

    arrivals.py ID SLOT BYTES ROUNDS AGENT

Each round stages the volume without its disk, plugs the disk in, and notes three times: the kernel's
uevent of the disk; the agent's open of it, since fanotify(7) names the process; and the link in
/dev/disk/by-id. The agent has read the serial before the open, and checks number and sequence number
by two system calls after it.

This process has a real-time priority, so it notes an event before any process acts on it. Then it
counts the system calls of the agent in a minute without a call, and in a minute in which a stage
waits. Prints JSON.
"""
import contextlib
import ctypes
import json
import os
import pathlib
import select
import socket
import struct
import subprocess
import sys
import time

NETLINK_KOBJECT_UEVENT = 15
# The group of the kernel's own messages; udevd's is 2.
GROUP_KERNEL = 1
FAN_CLOEXEC, FAN_NONBLOCK, FAN_REPORT_FID = 0x1, 0x2, 0x200
FAN_MARK_ADD, FAN_MARK_FILESYSTEM = 0x1, 0x100
FAN_OPEN = 0x20
IN_CREATE, IN_MOVED_TO = 0x100, 0x80
IN_NONBLOCK, IN_CLOEXEC = 0o4000, 0o2000000
LINKS = "/dev/disk/by-id"
SYS = pathlib.Path("/sys/bus/platform/drivers/virtio-uml")
STAGING = "/pods/staging"
SECONDS_MAX = 30
MINUTE = 60
libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class Watch:
    """The three sources of events, each with the time at which it was noticed."""

    def __init__(self, agent, link):
        self.agent, self.link = agent, link
        self.uevents = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK,
                                     NETLINK_KOBJECT_UEVENT)
        self.uevents.bind((0, GROUP_KERNEL))
        self.opens = checked(libc.fanotify_init(FAN_CLOEXEC | FAN_NONBLOCK | FAN_REPORT_FID, 0))
        checked(libc.fanotify_mark(self.opens, FAN_MARK_ADD | FAN_MARK_FILESYSTEM,
                                   ctypes.c_uint64(FAN_OPEN), -1, b"/dev"))
        self.links = checked(libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC))
        checked(libc.inotify_add_watch(self.links, LINKS.encode(), IN_CREATE | IN_MOVED_TO))

    def notice(self, seconds, until):
        """{event: time in ns}, the first of each, until that condition of it holds."""
        seen, poll = {}, select.poll()
        for file in (self.uevents.fileno(), self.opens, self.links):
            poll.register(file, select.POLLIN)
        end = time.monotonic() + seconds
        while not until(seen):
            ready = poll.poll(1000)
            now = time.monotonic_ns()
            if time.monotonic() > end:
                raise SystemExit(f"after {seconds} s only: {seen}")
            for file, _ in ready:
                for event in self.read(file):
                    seen.setdefault(event, now)
        return seen

    def read(self, file):
        """The events of one read."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(file, 1 << 16)
            if file == self.uevents.fileno():
                words = data.split(b"\0")
                if words[0].startswith(b"add@") and b"DEVTYPE=disk" in words:
                    return ["uevent"]
            elif file == self.links:
                return ["link"] if self.link.encode() in data else []
            else:
                return ["open"] if self.agent in openers(data) else []
        return []

    def discard(self):
        for file in (self.uevents.fileno(), self.opens, self.links):
            with contextlib.suppress(BlockingIOError):
                while os.read(file, 1 << 16):
                    pass


def openers(data):
    """The processes of struct fanotify_event_metadata."""
    while data:
        length, _, _, _, _, _, pid = struct.unpack_from("=IBBHQii", data)
        yield pid
        data = data[length:]


def belayctl(*words):
    return ["/belay/belayctl", "--endpoint", "/run/node.sock", "node", *words]


def start_stage(volume, size):
    """A stage that waits for its disk, until it does."""
    context = {"transport": "disk", "serial": volume, "bytes": size, "content": "new"}
    context = [f"--context={key}={value}" for key, value in context.items()]
    stage = subprocess.Popen(belayctl("stage", volume, "--staging", STAGING, "--fs-type", "ext4",
                                      *context))
    jobs = belayctl("jobs", "--http", "127.0.0.1:9808")
    end = time.monotonic() + SECONDS_MAX
    while b"the volume's disk" not in subprocess.run(jobs, stdout=subprocess.PIPE,
                                                     check=True).stdout:
        if time.monotonic() > end:
            raise SystemExit("no stage waits for its disk")
    return stage


def plug(slot, verb):
    """In another process: the kernel answers when it has found the disk."""
    return subprocess.Popen(["sh", "-c", f"echo virtio-uml.{slot} >{SYS}/{verb}"])


def finish(process):
    if process.wait(SECONDS_MAX):
        raise SystemExit(f"{process.args}: exit code {process.returncode}")


def one_round(watch, volume, slot, size):
    stage = start_stage(volume, size)
    watch.discard()
    plugged = plug(slot, "bind")
    seen = watch.notice(SECONDS_MAX, lambda seen: {"uevent", "open", "link"} <= seen.keys())
    finish(plugged)
    finish(stage)
    finish(subprocess.Popen(belayctl("unstage", volume, "--staging", STAGING)))
    finish(plug(slot, "unbind"))
    subprocess.run(["udevadm", "settle"], check=True)
    return {name: (seen[name] - seen["uevent"]) / 1e6 for name in ("open", "link")}


def calls_in_a_minute(agent):
    """{system call: count} of all threads of the agent."""
    trace = subprocess.Popen(["strace", "-f", "-qq", "-p", str(agent), "-o", "/run/trace"])
    time.sleep(MINUTE)
    trace.terminate()
    trace.wait()
    counts = {}
    for line in pathlib.Path("/run/trace").read_text().splitlines():
        # With several threads, a line begins with the thread.
        name = line.lstrip("0123456789 ").split("(")[0]
        # The second half of a call.
        if not name.startswith("<..."):
            counts[name] = counts.get(name, 0) + 1
    return counts


def main():
    volume, slot, size, rounds, agent = sys.argv[1], *map(int, sys.argv[2:])
    os.makedirs(STAGING, exist_ok=True)
    # udevd removes an empty directory, and the watch with it.
    os.makedirs(LINKS + "/kept", exist_ok=True)
    # Not its children.
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    watch = Watch(agent, "virtio-" + volume[:20])
    # The first one formats the disk.
    times = [one_round(watch, volume, slot, size) for _ in range(rounds + 1)][1:]
    idle = calls_in_a_minute(agent)
    stage = start_stage(volume, size)
    waiting = calls_in_a_minute(agent)
    stage.kill()
    print(json.dumps({"times": times, "idle": idle, "waiting": waiting}))


if __name__ == "__main__":
    main()
