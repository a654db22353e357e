#!/usr/bin/env python3
"""Agent, controller and store are replaced while pods write: no write may fail, nothing may be lost.

    upgrade.py [--chart DIRECTORY] [--output FILE]

A pod on each of ext4, xfs, btrfs and a raw device writes numbered records and syncs each. Then all
are restarted by a rollout and, with --chart, replaced by `helm upgrade`, while new volumes are
asked for. The longest pause between two records is reported for before and for during. Needs a running
bed with Belay installed in it: BASE names its directory.
"""
import argparse
import json
import pathlib
import socket
import sys
import threading
import time

sys.dont_write_bytecode = True
import kube
import objects

# Record i is i in 4096 bytes at place i. Uptimes are the same clock outside and inside.
WRITER = r"""
V=/volume
[ -b $V ] || V=/volume/records
i=0
while :; do
    read -r before rest </proc/uptime
    printf '%-4095s\n' $i |
        dd of=$V bs=4096 count=1 seek=$i iflag=fullblock conv=notrunc,fsync 2>/tmp/dd ||
        { echo "failed $i $(cat /tmp/dd)"; exit 43; }
    read -r after rest </proc/uptime
    echo "wrote $i $before $after"
    i=$((i + 1))
    sleep 0.03
done
"""
READER = r"""
V=/volume
[ -b $V ] || V=/volume/records
head -c $((RECORDS * 4096)) $V |
    awk '$1 != NR - 1 { print "record", NR - 1, "holds", $1; bad = 1; exit }
         END { print NR, "records"; exit bad || NR != '$RECORDS' }'
"""
ONCE = "echo new >/volume/new && sync && sleep 600"


def uptime():
    return float(pathlib.Path("/proc/uptime").read_text().split()[0])


class Absence(threading.Thread):
    """How long the agent's socket did not answer, and the driver was not registered."""

    def __init__(self, cluster, driver):
        super().__init__(daemon=True)
        self.cluster, self.driver = cluster, driver
        self.path = str(cluster.path(f"/var/lib/kubelet/plugins/{driver}/csi.sock"))
        self.over = threading.Event()
        self.socket, self.registration = [], []

    def run(self):
        looked = 0.0
        while not self.over.wait(0.01):
            _note(self.socket, self._answers())
            if time.monotonic() - looked > 0.1:
                looked = time.monotonic()
                _note(self.registration, self._is_registered())

    def _answers(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            try:
                one.connect(self.path)
                return True
            except OSError:
                return False

    def _is_registered(self):
        try:
            node = self.cluster.items("/apis/storage.k8s.io/v1/csinodes")[0]
        except kube.Unreachable:
            return None
        return any(one["name"] == self.driver for one in node["spec"].get("drivers") or [])

    def stop(self):
        self.over.set()
        self.join()
        return {"socket_seconds": _longest(self.socket),
                "registration_seconds": _longest(self.registration)}


def _note(changes, state):
    """Only changes are kept; None is "not known", and changes nothing."""
    if state is not None and (not changes or changes[-1][1] != state):
        changes.append((time.monotonic(), state))


def _longest(changes):
    """The longest time between a loss and the next answer."""
    ends = changes[1:] + [(time.monotonic(), None)]
    return round(max((end[0] - begin[0] for begin, end in zip(changes, ends) if not begin[1]),
                     default=0.0), 2)


class Writers:
    def __init__(self, cluster):
        self.cluster = cluster
        self.names = {f"w-{kind}": kind for kind in objects.KINDS}

    def start(self):
        for name, kind in self.names.items():
            make_pod(self.cluster, name, name, kind, WRITER, {}, claim=True)
        for name in self.names:
            await_phase(self.cluster, name, ("Running",))

    def records(self):
        """{name: [(number, before, after)]} and the failures, from the pods' output."""
        written, failures = {}, []
        for name in self.names:
            text = self.cluster.patiently(
                "logs", lambda: self.cluster.get(f"{objects.PODS}/{name}/log", raw=True))
            lines = [line.split() for line in text.splitlines()]
            failures += [f"{name}: {' '.join(line)}" for line in lines if line[0] != "wrote"]
            written[name] = [(int(line[1]), float(line[2]), float(line[3])) for line in lines
                             if line[0] == "wrote" and len(line) == 4]
        return written, failures

    def read_back(self, written):
        """Pods that come later find every record that was synced."""
        remove_pods(self.cluster, self.names)
        for name, kind in self.names.items():
            make_pod(self.cluster, "r" + name, name, kind, READER,
                     {"RECORDS": len(written[name])})
        wrong = []
        for name in self.names:
            if await_phase(self.cluster, "r" + name, ("Succeeded", "Failed")) == "Failed":
                path = f"{objects.PODS}/r{name}/log"
                wrong.append(f"{name}: {self.cluster.get(path, raw=True)}")
        return wrong


def make_pod(cluster, name, claim_name, kind, script, environment, claim=False):
    if claim:
        body = objects.claim(claim_name, kind, objects.SIZES_MIB[kind])
        cluster.create(objects.CLAIMS, body)
    cluster.create(objects.PODS, objects.pod(name, claim_name, kind, script, environment, "Never"))


def await_phase(cluster, name, phases):
    def look():
        phase = cluster.get(f"{objects.PODS}/{name}")["status"].get("phase")
        if phase == "Failed" and phase not in phases:
            raise SystemExit(f"pod {name} failed")
        return phase if phase in phases else None
    return cluster.patiently(f"pod {name} is {' or '.join(phases)}", look)


def remove_pods(cluster, names):
    for name in names:
        cluster.delete(f"{objects.PODS}/{name}")
    there = lambda: {pod["metadata"]["name"] for pod in cluster.items(objects.PODS)}
    cluster.patiently("pods are gone", lambda: not there() & set(names))


def gaps(written, begin, end):
    """Seconds: the longest pause between two synced records, and the longest single write."""
    pause = longest = 0.0
    for records in written.values():
        for (_, _, last), (_, before, after) in zip(records, records[1:]):
            if begin <= after <= end:
                pause, longest = max(pause, after - last), max(longest, after - before)
    return {"longest_pause": round(pause, 2), "longest_write": round(longest, 2)}


def owned(cluster):
    return {pod["metadata"]["uid"] for pods in kube.system_pods(cluster) for pod in pods}


def replace(cluster, command, driver, number):
    """One rollout, a new volume in the middle of it, until all pods are new and ready."""
    before, absence, began = owned(cluster), Absence(cluster, driver), uptime()
    absence.start()
    cluster.run(*command)
    make_pod(cluster, f"n{number}", f"n{number}", "xfs", ONCE, {}, claim=True)
    is_new = lambda: kube.all_ready(cluster) and not before & owned(cluster)
    cluster.patiently("the rollout is over", is_new)
    seconds = uptime() - began
    await_phase(cluster, f"n{number}", ("Running",))
    return {"command": " ".join(command), "began": began, "ended": uptime(),
            "seconds": round(seconds, 1), "absent": absence.stop()}


def commands(given):
    yield ["kubectl", "-n", kube.SYSTEM, "rollout", "restart", "daemonset,deployment"]
    if given.chart:
        chart = str(pathlib.Path(given.chart).resolve())
        yield ["helm", "upgrade", given.release, chart, "--namespace", kube.SYSTEM,
               "--reuse-values", "--set-string",
               "node.podAnnotations.replaced=now,controller.podAnnotations.replaced=now"]


def run(given, cluster):
    clock = kube.Clock()
    cluster.patiently("Belay's pods are ready", lambda: kube.all_ready(cluster))
    objects.make_surroundings(cluster, given.driver)
    writers = Writers(cluster)
    writers.start()
    clock.log("four pods write")
    began = uptime()
    time.sleep(given.quiet)
    quiet = (began, uptime())
    rollouts = []
    for number, command in enumerate(commands(given)):
        rollouts.append(replace(cluster, command, given.driver, number))
        clock.log(f"replaced in {rollouts[-1]['seconds']} s: {rollouts[-1]['command']}")
    make_pod(cluster, "after", "after", "btrfs", ONCE, {}, claim=True)
    await_phase(cluster, "after", ("Running",))
    clock.log("a volume made afterwards is in use")
    written, failures = writers.records()
    failures += writers.read_back(written)
    clock.log("records read back")
    clean(cluster)
    clock.log("nothing is left")
    for rollout in rollouts:
        rollout.update(gaps(written, rollout["began"], rollout["ended"]))
    return {"records": {name: len(records) for name, records in written.items()},
            "quiet": gaps(written, *quiet), "rollouts": rollouts, "failures": failures}


def clean(cluster):
    for path in (objects.PODS, objects.CLAIMS):
        for item in cluster.items(path):
            cluster.delete(f"{path}/{item['metadata']['name']}")
    cluster.patiently("volumes are gone", lambda: not cluster.items("/api/v1/persistentvolumes"))
    objects.remove_surroundings(cluster)


def report(result):
    print(f"records: {result['records']}")
    print(f"before: longest pause {result['quiet']['longest_pause']} s, "
          f"longest write {result['quiet']['longest_write']} s")
    for one in result["rollouts"]:
        print(f"during `{one['command']}`: longest pause {one['longest_pause']} s, longest write "
              f"{one['longest_write']} s; the agent's socket was away for "
              f"{one['absent']['socket_seconds']} s, its registration for "
              f"{one['absent']['registration_seconds']} s")
    for failure in result["failures"]:
        print("FAILURE: " + failure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chart", help="directory of the chart, for a helm upgrade as well")
    parser.add_argument("--release", default="belay")
    parser.add_argument("--quiet", type=float, default=5, help="seconds of writing before")
    given = kube.given(parser)
    with kube.Cluster(given.base, given.script) as cluster:
        result = run(given, cluster)
    if given.output:
        pathlib.Path(given.output).write_text(json.dumps(result, indent=1) + "\n")
    report(result)
    if result["failures"]:
        sys.exit("upgrade.py: failed")


if __name__ == "__main__":
    main()
