#!/usr/bin/env python3
"""In a guest: kills the agent, its child, or both at a step of a call (tests/luks_kills.rs).

    aim.py PROGRAM WORD NUMBER MOMENT WHOM

Waits for child NUMBER, from 1, of the agent that runs PROGRAM with the argument WORD. Kills at the
MOMENT: at its "begin", some milliseconds later, or after its "end". WHOM is "agent", "child" or
"both". Prints the processes that it has killed, or "missed" if /run/called, the end of the call,
comes first: on a busy machine, a short child may end between two looks.
"""
import os
import pathlib
import signal
import sys
import time

# The pause after a look, in multiples of its duration, so that the call gets most of the time.
PAUSES = 2
program, word, number, moment, whom = sys.argv[1:]
agent = int(pathlib.Path("/run/node.pid").read_text())


def is_it(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return os.path.basename(words[0]) == program and word in words


def find():
    seen = set()
    pathlib.Path("/run/aimed").touch()
    while not os.path.exists("/run/called"):
        begun = time.monotonic()
        # A look must be short, so it skips processes that are older than the agent.
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) > agent and pid not in seen and is_it(pid):
                seen.add(pid)
                if len(seen) == int(number):
                    return int(pid)
        time.sleep(PAUSES * (time.monotonic() - begun))
    print("missed")
    sys.exit()


def kill(name, pid):
    try:
        os.kill(pid, signal.SIGKILL)
        return [name]
    except ProcessLookupError:
        return []


# This process must see each child, although the guest has one processor.
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
child = find()
if moment == "end":
    while is_it(child):
        time.sleep(0.001)
elif moment != "begin":
    time.sleep(int(moment) / 1000)
killed = []
# The agent first: it must not act on the end of its child.
if whom in ("agent", "both"):
    killed += kill("agent", agent)
if whom in ("child", "both") and is_it(child):
    killed += kill("child", child)
print(" and ".join(killed) or "nothing")
