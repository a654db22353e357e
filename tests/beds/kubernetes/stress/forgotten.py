#!/usr/bin/env python3
"""Volumes that the kubelet has forgotten are unstaged and deleted nevertheless.

    forgotten.py [--rounds 1] [--volumes 20] [--output FILE]

A kubelet that is killed between unpublish and unstage does not find its volumes again, since the
pod's directories are gone. So the agent unstages a volume once its deletion was refused. Each round
forgets that many volumes at once and deletes their claims while the kubelet starts again. Needs a
running bed with Belay installed in it: BASE names its directory.
"""
import argparse
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import kube
import leftovers
import objects

KINDS = ("ext4", "xfs", "btrfs")
# A refused deletion is repeated after up to five minutes.
SECONDS_MAX = 420
# Opens the directories in its arguments, and keeps them open until it is killed.
HOLD = """import os, signal, sys
held = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
print(os.getpid(), flush=True)
signal.pause()"""


class Round:
    """One pod with many volumes, from its start to the removal of its claims."""

    def __init__(self, cluster, driver, number, volumes):
        self.cluster, self.driver, self.number = cluster, driver, number
        self.claims = [f"forgotten-{number}-{index}" for index in range(volumes)]
        self.pod = f"last-{number}"
        self.ids = {}

    def go(self):
        """Returns the seconds until all volumes were deleted."""
        self.start_pod()
        holder = self.hold()
        self.end_pod()
        kill = self.kill_kubelet()
        began = time.monotonic()
        # The agent is refused the unmount at first in one half of the rounds.
        if self.number % 2:
            release(holder)
        self.each("/persistentvolumeclaims/", self.claims, self.cluster.delete)
        self.cluster.patiently("refused deletions", self.are_refused, SECONDS_MAX)
        if not self.number % 2:
            self.check_held()
            release(holder)
        self.cluster.patiently("the deletion of all volumes", self.are_gone, SECONDS_MAX)
        seconds = time.monotonic() - began
        if kill.wait():
            raise SystemExit("the kubelet did not start again")
        self.check_forgotten()
        return seconds

    def each(self, kind, names, action):
        for name in names:
            self.cluster.patiently(name, lambda: action(objects.CORE + kind + name) or True)

    def start_pod(self):
        pod = objects.pod(self.pod, None, "none", "exec sleep 3600", {})
        pod["spec"]["volumes"], mounts = [], []
        for index, claim in enumerate(self.claims):
            kind = KINDS[index % len(KINDS)]
            self.cluster.create(objects.CLAIMS, objects.claim(claim, kind, objects.SIZES_MIB[kind]))
            pod["spec"]["volumes"].append(
                {"name": claim, "persistentVolumeClaim": {"claimName": claim}})
            mounts.append({"name": claim, "mountPath": f"/volumes/{index}"})
        pod["spec"]["containers"][0]["volumeMounts"] = mounts
        self.cluster.create(objects.PODS, pod)
        path = f"{objects.PODS}/{self.pod}"
        self.cluster.patiently(f"pod {self.pod} is ready",
                               lambda: kube.is_ready(self.cluster.get(path)), SECONDS_MAX)
        for volume in self.cluster.items("/api/v1/persistentvolumes"):
            if volume["spec"].get("claimRef", {}).get("name") in self.claims:
                self.ids[volume["metadata"]["name"]] = volume["spec"]["csi"]["volumeHandle"]
        if len(self.ids) != len(self.claims):
            raise SystemExit(f"{len(self.claims)} claims have {len(self.ids)} volumes")

    def staged(self):
        """The staging paths of the volumes, of which each must be a mount."""
        return {f"{leftovers.KUBELET}/plugins/kubernetes.io/csi/{self.driver}/"
                f"{hashlib.sha256(name.encode()).hexdigest()}/globalmount"
                for name in self.ids.values()}

    def hold(self):
        """Keeps the mounts busy, so that the kubelet's unstages fail until it is killed."""
        holder = self.cluster.spawn("exec", "python3", "-c", HOLD, *self.staged(),
                                    stdout=subprocess.PIPE)
        if not holder.stdout.readline().strip():
            raise SystemExit("the staging paths could not be opened")
        return holder

    def end_pod(self):
        path = f"{objects.PODS}/{self.pod}"
        self.cluster.patiently(path, lambda: self.cluster.delete(path, grace=0) or True)
        pods = self.cluster.path(f"{leftovers.KUBELET}/pods")
        names = set(self.ids)
        is_unpublished = lambda: not any(
            path.name in names for path in pods.glob("*/volumes/kubernetes.io~csi/*"))
        self.cluster.patiently("the unpublish of all volumes", is_unpublished, SECONDS_MAX)

    def kill_kubelet(self):
        """Returns once it is dead; its successor answers when the returned process has ended."""
        pid = pathlib.Path(self.cluster.base, "run/kubelet.pid")
        before = pid.read_text()
        kill = self.cluster.spawn("kill", "kubelet")
        self.cluster.patiently("the end of the kubelet", lambda: pid.read_text() != before)
        return kill

    def are_refused(self):
        path = "/api/v1/namespaces/default/events?fieldSelector=reason%3DVolumeFailedDelete"
        refused = {event["involvedObject"]["name"] for event in self.cluster.items(path)
                   if "FailedPrecondition" in event.get("message", "")}
        return refused >= set(self.ids)

    def check_held(self):
        """A refused deletion leaves the volume staged while a process uses it."""
        unstaged = self.staged() - set(self.cluster.mount_points())
        if unstaged:
            raise SystemExit(f"unstaged while in use: {sorted(unstaged)}")
        for name in self.ids.values():
            file = self.cluster.path(f"{leftovers.STATE}/volumes/{name}")
            claim = os.getxattr(file, "user.belay.claim").decode()
            if claim != "delete":
                raise SystemExit(f"{file} has the claim {claim!r}, and not 'delete'")

    def are_gone(self):
        names = {volume["metadata"]["name"]
                 for volume in self.cluster.items("/api/v1/persistentvolumes")}
        return not names & set(self.ids)

    def check_forgotten(self):
        """The agent alone has unstaged the volumes: otherwise the round has tested nothing."""
        log = pathlib.Path(self.cluster.base, "log/kubelet.log").read_text(errors="replace")
        # The first line of the new kubelet.
        _, _, log = log.rpartition("Kubelet version")
        found = [line for line in log.splitlines() if "UnmountDevice" in line
                 and any(name in line for name in self.ids.values())]
        if found:
            raise SystemExit(f"the kubelet has not forgotten the volumes: {found[0].strip()}")
        mounted = self.staged() & set(self.cluster.mount_points())
        if mounted:
            raise SystemExit(f"still staged after their deletion: {sorted(mounted)}")


def release(holder):
    os.killpg(holder.pid, signal.SIGTERM)
    holder.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="how often the kubelet is killed")
    parser.add_argument("--volumes", type=int, default=20, help="volumes forgotten in each round")
    given = kube.given(parser)
    clock = kube.Clock()
    with kube.Cluster(given.base, given.script) as cluster:
        objects.make_surroundings(cluster, given.driver)
        seconds, names = [], []
        for number in range(given.rounds):
            one = Round(cluster, given.driver, number, given.volumes)
            seconds.append(round(one.go(), 1))
            names += one.ids
            clock.log(f"round {number + 1} of {given.rounds}: {len(one.ids)} volumes forgotten, "
                      f"refused at first, and deleted within {seconds[-1]} s")
        left = leftovers.settle(cluster, given.driver, names, time.monotonic() + 60)
        if left:
            sys.exit("forgotten.py: left: " + "; ".join(left))
        objects.remove_surroundings(cluster)
    print(f"forgotten: {len(names)} volumes of {given.rounds} killed kubelets, none left")
    if given.output:
        pathlib.Path(given.output).write_text(json.dumps({"seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()
