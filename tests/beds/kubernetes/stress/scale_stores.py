#!/usr/bin/env python3
"""`local` on fifty nodes: creations among few and many volumes, memory, writes, and a dead node.

    scale_stores.py --base BASE --programs DIR [--counts 100,500]

`make scale` runs it inside a cluster without kubelets. Prints tables as Markdown. Fails if a call
fails, if an object or a file lacks its counterpart, or if the memory or the number of writes is
over its limit. Times are compared with the API server's own in the same run, and never fail.
"""
import argparse
import collections
import itertools
import json
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import dead_node
import kube
import stores

WIDTH = 50
# Calls of one round. At each number of volumes are two rounds, after one of the API server each.
ROUND = 100
ROUNDS = 2
OWN = 100
STORE_MIB_MAX, FRONT_MIB_MAX = 14, 40
# Creation: the order, its acceptance, the report. Deletion: the request, the store's claim, after
# which the request cannot be withdrawn, the removal of the finalizer, and of the object.
WRITES_MAX = 7
# A write is refused if the object has changed meanwhile. A store that repeats its own writes has
# one for each.
REFUSED_MAX = 0.3
REPEATED_MAX = 20
NOWHERE = "nowhere"


class Calls:
    """Calls of belayctl to the first controller, with the times that the controller logs."""

    def __init__(self, bed):
        self.bed = bed
        self.program = str(bed.programs / "belayctl")
        self.socket = str(bed.socket)
        self.repeated = 0

    def _run(self, *words):
        """Repeats a call that returns UNAVAILABLE, as sidecars do: a busy server ends watches."""
        for _ in range(REPEATED_MAX):
            done = subprocess.run([self.program, "--endpoint", self.socket, *words], text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True)
            if not done.returncode:
                return done.stdout.strip()
            if "UNAVAILABLE" not in done.stderr:
                break
            self.repeated += 1
            time.sleep(0.5)
        raise SystemExit(f"belayctl {' '.join(words)}: {done.stderr}")

    def create(self, places):
        """Creates volumes: {name: node}. Returns {name: ID}."""
        make = lambda one: self._run(
            "volume", "create", one[0], "--size", "1MiB", "--fs-type", "ext4", "--topology",
            f"{stores.TOPOLOGY}={one[1]}", "--output", "name")
        return dict(zip(places, stores.wide(WIDTH, make, places.items())))

    def delete(self, ids):
        stores.wide(WIDTH, lambda one: self._run("volume", "delete", one), ids)

    def seconds(self, rpc, subjects):
        """The times of the calls for these names or IDs, each of which has succeeded once."""
        def logged():
            calls = self.bed.calls()
            found = [calls.get((rpc, subject), []) for subject in subjects]
            found = [[seconds for code, seconds in calls if code == "OK"] for calls in found]
            return found if all(found) else None
        found = stores.until(f"the log of {rpc}", logged)
        return [seconds for calls in found for seconds in calls]


def write_directly(bed, prefix):
    """The times in which the API server creates an object and writes its status, without us."""
    def write(number):
        name = f"{prefix}-{number}"
        spec = {"version": 1, "id": f"vol-{number:032x}", "name": name, "place": NOWHERE,
                "disk": "default", "node": NOWHERE, "bytes": stores.MIB,
                "usage": {"mode": "Filesystem", "filesystem": "ext4"}}
        began = time.monotonic()
        bed.api.create(stores.VOLUMES, {"apiVersion": "belay.dev/v1alpha1", "kind": "LocalVolume",
                                        "metadata": {"name": name}, "spec": spec})
        status = {"phase": "Ready", "bytes": stores.MIB, "observedGeneration": 1}
        bed.api.patch(f"{stores.VOLUMES}/{name}/status", {"status": status})
        return time.monotonic() - began

    times = stores.wide(WIDTH, write, range(ROUND))
    stores.wide(WIDTH, lambda number: bed.api.request(
        "DELETE", f"{stores.VOLUMES}/{prefix}-{number}"), range(ROUND))
    return times


def measure(bed, calls, prefix):
    """The times of direct writes, creations and deletions, and the names of the volumes."""
    times, lives = collections.defaultdict(list), []
    for turn in range(ROUNDS):
        times["direct"] += write_directly(bed, f"{prefix}-direct-{turn}")
        nodes = itertools.cycle(bed.nodes)
        places = {f"{prefix}-{turn}-{number}": next(nodes) for number in range(ROUND)}
        before = bed.processor()
        ids = calls.create(places)
        for group, seconds in bed.processor().items():
            times[group].append((seconds - before[group]) / ROUND)
        times["create"] += calls.seconds("CreateVolume", ids)
        calls.delete(ids.values())
        times["delete"] += calls.seconds("DeleteVolume", ids.values())
        lives += ids
    return times, lives


def quantiles(times):
    ordered = sorted(times)
    return [ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99)]


def table(title, columns, rows):
    print(f"\n{title}\n\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    sys.stdout.flush()


def cells(times, of):
    """p50 and p99 in ms, each with the ratio to the same of other times."""
    return [f"{1000 * one:.0f} ({one / other:.1f})"
            for one, other in zip(quantiles(times), quantiles(of))]


def fill(bed, calls, have, count):
    """Creates volumes until there are `count`: 100 on the first node, the others on all others."""
    others = itertools.cycle(bed.nodes[1:-1])
    place = lambda number: bed.nodes[0] if number < OWN else next(others)
    calls.create({f"fill-{number}": place(number) for number in range(have, count)})


def creations(bed, calls, counts, clock):
    """Measures at each number of volumes. Returns the names of the volumes that were deleted."""
    rows, lives, have, work = [], [], 0, []
    for count in counts:
        fill(bed, calls, have, count)
        clock.log(f"there are {count} volumes")
        times, names = measure(bed, calls, f"at-{count}")
        have, lives = count, lives + names
        work.append([count, *[f"{1000 * statistics.mean(times[group]):.1f}"
                              for group in bed.processor()]])
        direct = [f"{1000 * one:.0f}" for one in quantiles(times["direct"])]
        rows.append([count, *direct, *cells(times["create"], times["direct"]),
                     *cells(times["delete"], times["direct"])])
    one = "the API server's own create and status write"
    table(f"{WIDTH} calls at a time, {ROUND * ROUNDS} of each kind, ms (ratio to {one})",
          ["volumes", "own p50", "own p99", "create p50", "create p99", "delete p50",
           "delete p99"], rows)
    print(f"\n{calls.repeated} calls were repeated after UNAVAILABLE")
    table("Processor time of a creation, ms", ["volumes", *bed.processor()], work)
    return lives


def memory(bed):
    """The memory of the first store, with its 100 volumes, and of the controllers."""
    rows, faults = [], []
    programs = [(f"store, {OWN} volumes", bed.stores[bed.nodes[0]], STORE_MIB_MAX)]
    programs += [(f"controller {number}", one, FRONT_MIB_MAX)
                 for number, one in enumerate(bed.controllers, 1)]
    for name, program, most in programs:
        def read(file):
            with open(f"/proc/{program.pid}/{file}") as lines:
                fields = [line.split() for line in lines]
            return {field[0]: int(field[1]) / 1024 for field in fields if field[-1] == "kB"}
        held = {**read("status"), **read("smaps_rollup")}
        numbers = [held[key] for key in ("Rss:", "Anonymous:", "Pss:", "VmHWM:")]
        rows.append([name, *[f"{number:.1f}" for number in numbers], most])
        if numbers[0] > most:
            faults.append(f"{name}: {numbers[0]:.1f} MiB resident, over {most}")
    table("Memory, MiB", ["program", "resident", "anonymous", "proportional", "peak", "limit"],
          rows)
    return faults


def writes(bed, lives):
    """Counts the writes to the volumes that were created and deleted, from the audit log."""
    done, refused = collections.Counter(), collections.Counter()
    kinds = collections.Counter()
    for line in (bed.logs / "audit.jsonl").read_text().splitlines():
        event = json.loads(line)
        what = event.get("objectRef", {})
        if event["verb"] not in ("create", "update", "patch", "delete"):
            continue
        if what.get("resource") != "localvolumes" or event["stage"] != "ResponseComplete":
            continue
        if event["responseStatus"]["code"] >= 300:
            refused[what.get("name")] += 1
            continue
        done[what.get("name")] += 1
        if what.get("name") in lives:
            user = event["user"]["username"].rpartition(":")[2]
            kinds[user, event["verb"], what.get("subresource", "")] += 1
    rows = [[*kind, f"{number / len(lives):.2f}"] for kind, number in sorted(kinds.items())]
    rows.append(["all", "", "", f"{sum(kinds.values()) / len(lives):.2f}"])
    repeated = sum(refused[name] for name in lives) / len(lives)
    rows.append(["refused", "", "", f"{repeated:.2f}"])
    table(f"Writes in the life of a volume, means of {len(lives)}",
          ["account", "verb", "of", "writes"], rows)
    most = max(done[name] for name in lives)
    faults = [f"a life took {most} writes, over {WRITES_MAX}"] if most > WRITES_MAX else []
    if repeated > REFUSED_MAX:
        faults.append(f"{repeated:.2f} writes of a life were refused, over {REFUSED_MAX}")
    return faults


def run(given):
    clock = kube.Clock()
    bed = stores.Stores(given.base, given.programs, given.stores)
    bed.start()
    clock.log(f"{len(bed.stores)} stores report their disks")
    calls = Calls(bed)
    counts = [int(count) for count in given.counts.split(",")]
    lives = creations(bed, calls, counts, clock)
    faults = memory(bed) + writes(bed, set(lives))
    faults += [f"only an object or a file: {one}" for one in sorted(bed.mismatches())]
    bed.check_alive()
    clock.log("measuring creations elsewhere, without and with a dead node")
    rows, wrong = dead_node.run(bed, calls, quantiles, clock)
    table("From the claim to the PersistentVolume elsewhere, s (ratio)", ["", "p50", "p99"], rows)
    return faults + wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True, help="directory of the cluster")
    parser.add_argument("--programs", required=True, help="directory of Belay's programs")
    parser.add_argument("--stores", type=int, default=50)
    parser.add_argument("--counts", default="100,500", help="numbers of volumes")
    faults = run(parser.parse_args())
    for fault in faults:
        print(f"FAULT: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
