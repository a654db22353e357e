#!/usr/bin/env python3
"""Volumes live while the cluster is broken around them; at the end nothing may be lost or left.

    chaos.py [--minutes 15] [--seed N] [--output FILE]

Thirty pods with volumes come and go (ext4, xfs, btrfs, raw block; snapshots, restores, clones,
growth) while kubelet, containerd, API server, agent, controller, store and sidecars are killed or
restarted by chance. Needs a running bed with Belay installed in it: BASE names its directory.
"""
import argparse
import json
import pathlib
import random
import statistics
import sys
import time

sys.dont_write_bytecode = True
import faults
import frozen
import kube
import leftovers
import lives
import objects

CAP_SYS_RESOURCE = 24
# The last deletion may be a retry.
LEFT_SECONDS = 60


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15, help="duration of the faults")
    parser.add_argument("--seed", type=int, help="repeats a run's faults and lifecycles")
    parser.add_argument("--pods", type=int, default=30, help="simultaneous lifecycles")
    # What failed is tried again after up to five minutes, by the sidecars as by the kubelet.
    parser.add_argument("--settle", type=int, default=600,
                        help="seconds after the last fault until every life must have ended")
    given = kube.given(parser)
    given.seed = random.randrange(1 << 32) if given.seed is None else given.seed
    return given


def kinds_that_grow():
    """A mounted ext4 is grown by the kernel only with CAP_SYS_RESOURCE."""
    status = pathlib.Path("/proc/self/status").read_text()
    bounds = int(status.split("CapBnd:")[1].split()[0], 16)
    return objects.KINDS if bounds >> CAP_SYS_RESOURCE & 1 else objects.KINDS[1:]


def break_things(clock, volumes, breaker, thawer, pods, seconds, driver):
    """Lives begin and end, and faults happen, until the time is over."""
    shown = 0
    while clock.elapsed() < seconds:
        # One after the other: thirty pods in one second would test the scheduler.
        if len(volumes.waiting) < pods and not volumes.ending:
            volumes.begin()
        volumes.turn()
        breaker.turn(clock.elapsed())
        thawer.turn()
        if clock.elapsed() - shown > 10:
            shown = clock.elapsed()
            show(clock, volumes)
            compare(volumes, driver)
        time.sleep(0.3)


def show(clock, volumes):
    counts = ", ".join(f"{count} {name}" for name, count in volumes.counts.items())
    clock.log(f"{len(volumes.waiting)} lifecycles running; so far {counts}")


def compare(volumes, driver):
    """Objects, files and PersistentVolumes agree at each moment, whatever was killed."""
    try:
        for disagreement in leftovers.disagreements(volumes.cluster, driver):
            volumes.fail(disagreement)
        volumes.counts["comparisons"] += 1
    except kube.Unreachable:
        pass  # the next round compares again


def let_end(clock, volumes, breaker, thawer, deadline):
    """No faults and no new lifecycles; the running ones must end."""
    volumes.ending = True
    shown = clock.elapsed()
    while (volumes.waiting or breaker.running) and time.monotonic() < deadline:
        volumes.turn()
        breaker.turn(0)
        thawer.turn()
        if clock.elapsed() - shown > 10:
            shown = clock.elapsed()
            show(clock, volumes)
        time.sleep(0.3)
    for wait in volumes.waiting.values():
        age = time.monotonic() - wait.since
        volumes.fail(f"still waiting after {age:.0f} s: {wait.what}")
    for pod in volumes.world.pods.values():
        running = thawer.processes(pod["metadata"]["uid"])
        if "deletionTimestamp" in pod["metadata"] and running:
            volumes.fail(f"pod {pod['metadata']['name']} is deleted, and containerd has not ended "
                         f"{', '.join(running)}: its volumes stay mounted until then")


def explain(cluster, clock, volumes):
    """To find the cause: the events of Kubernetes, newest last."""
    for pod in volumes.world.pods.values():
        clock.log(f"pod {pod['metadata']['name']}: {json.dumps(pod['status'])}")
    try:
        events = cluster.items(objects.CORE + "/events")
    except kube.Unreachable:
        return
    events = [event for event in events if event["type"] != "Normal"]
    for event in sorted(events, key=lambda one: one.get("lastTimestamp") or "")[-40:]:
        name = event["involvedObject"].get("name")
        clock.log(f"event: {name}: {event.get('message', '')[:400]}")


class Run:
    """One run from its plan to its evaluation."""

    def __init__(self, given, cluster):
        self.given, self.cluster = given, cluster
        cluster.get(kube.SNAPSHOT_API)
        self.planned = faults.schedule(given.seed, given.minutes * 60)
        self.clock = kube.Clock()
        self.lives = lives.Lives(cluster, given.seed, self.clock.log, kinds_that_grow())
        self.faults = faults.Faults(cluster, self.planned, self.clock.log)
        self.frozen = frozen.Frozen(cluster, self.clock.log)
        self.kubelet_log = pathlib.Path(cluster.base, "log/kubelet.log").stat().st_size

    def go(self):
        print(f"seed {self.given.seed}; faults planned:")
        for at, kind in self.planned:
            print(f"{at:7.1f} s  {kind}")
        objects.make_surroundings(self.cluster, self.given.driver)
        self.clock.began = time.monotonic()
        break_things(self.clock, self.lives, self.faults, self.frozen, self.given.pods,
                     self.given.minutes * 60, self.given.driver)
        self.clock.log("no more faults")
        deadline = time.monotonic() + self.given.settle
        let_end(self.clock, self.lives, self.faults, self.frozen, deadline)
        if self.lives.failures:
            explain(self.cluster, self.clock, self.lives)
        # A life that did not end has leftovers by right; they are still shown.
        left = leftovers.settle(self.cluster, self.given.driver, self.lives.world.names,
                                time.monotonic() + LEFT_SECONDS)
        self.clock.log("all lifecycles have ended" if not self.lives.waiting else "time is over")
        self.keep_last_logs()
        return self.judge(left)

    def keep_last_logs(self):
        for pods in self.cluster.patiently("our pods", lambda: kube.system_pods(self.cluster)):
            for pod in pods:
                self.faults.keep_logs(pod)

    def judge(self, left):
        orphans = leftovers.orphans(self.cluster, self.kubelet_log)
        return {"seed": self.given.seed, "minutes": self.given.minutes,
                "seconds": round(self.clock.elapsed()), "planned": len(self.planned),
                "faults": self.faults.done,
                "counts": self.lives.counts, "pod_start_seconds": quantiles(self.lives.starts),
                "restarts": self.lives.restarts, "failures": self.lives.failures, "left": left,
                "panics": self.faults.panics(), "orphans": orphans, "thawed": self.frozen.thawed,
                "forgotten": list(leftovers.forgotten(self.cluster, self.given.driver))}


def quantiles(seconds):
    if not seconds:
        return {}
    ordered = sorted(seconds)
    return {"median": round(statistics.median(ordered), 1), "max": round(ordered[-1], 1)}


def report(result):
    print(f"\n{len(result['faults'])} of {result['planned']} planned faults, "
          f"{result['seconds']} s, seed {result['seed']}")
    for name, count in result["counts"].items():
        print(f"  {name}: {count}")
    for why, count in result["restarts"].items():
        print(f"    {why}: {count}")
    print(f"  pod starts: {result['pod_start_seconds']} s")
    for directory in result["forgotten"]:
        print(f"  forgotten by a kubelet that was killed: {directory}")
    for directory in result["thawed"]:
        print(f"  left frozen by a containerd that was killed, and thawed: {directory}")
    bad = [(name, result[name]) for name in ("failures", "left", "panics", "orphans")]
    for name, things in bad:
        print(f"{name}: {len(things) or 'none'}")
        for thing in things[:50]:
            print("  " + thing)
    return not any(things for _, things in bad)


def main():
    given = arguments()
    with kube.Cluster(given.base, given.script) as cluster:
        cluster.patiently("Belay's pods are ready", lambda: kube.all_ready(cluster))
        one = Run(given, cluster)
        result = one.go()
        is_good = report(result)
        if given.output:
            pathlib.Path(given.output).write_text(json.dumps(result, indent=1) + "\n")
        if not is_good:
            sys.exit(f"chaos.py: failed; --seed {result['seed']} repeats it")
        objects.remove_surroundings(cluster)


if __name__ == "__main__":
    main()
