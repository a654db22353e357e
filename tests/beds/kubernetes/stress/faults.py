"""Faults: which, when, and how each is done to the cluster.

The schedule is drawn from the seed before anything runs, so that the same seed breaks the same
things at the same seconds.
"""
import os
import random
import signal
import subprocess

import kube
from kube import Unreachable

# In the bed a component that ends is started again, as systemd would.
COMPONENTS = ("kubelet", "containerd", "kube-apiserver")
KINDS = [f"{verb} {name}" for name in COMPONENTS for verb in ("kill", "restart")]
# At SIGTERM it waits a minute for its watchers: that is an absence, and no restart.
KINDS.remove("restart kube-apiserver")
KINDS += [f"{verb} {name}" for name in ("agent", "controller", "store") for verb in ("kill", "delete")]
KINDS.append("kill sidecar")
CALM_SECONDS = 4
# A panic, an abort, a bus error and a segmentation fault.
CRASHES = (101, 134, 135, 139)
CONTAINERS = {"agent": "belay-node", "controller": "belay-controller", "store": "belay-store"}


def schedule(seed, seconds):
    """[(second, kind)]: every kind as often as every other, in an order and at times by chance.

    The pauses are such that even a short run has each kind once.
    """
    chance = random.Random(f"{seed}/faults")
    pause = min(15.0, seconds / (len(KINDS) + 2))
    planned, deck, at = [], [], pause
    while at < seconds:
        if not deck:
            deck = chance.sample(KINDS, len(KINDS))
        planned.append((round(at, 1), deck.pop()))
        at += pause * chance.uniform(0.5, 1.5)
    return planned


class Faults:
    """Runs the plan, and keeps the logs of the pods that it deletes."""

    def __init__(self, cluster, planned, log):
        self.cluster, self.planned, self.log = cluster, list(planned), log
        self.done, self.running, self.texts, self.ends = [], [], {}, {}
        self.calm_since = 0.0

    def turn(self, elapsed):
        for process, what in list(self.running):
            if process.poll() is None:
                continue
            self.running.remove((process, what))
            if process.returncode:
                raise SystemExit(f"cluster.sh {what} ended with {process.returncode}: "
                                 f"{process.stdout.read()}")
        # One at a time: the previous target must answer again, and the next one must exist.
        # On a slow machine faults come late; all at once they would leave no time for any life.
        if self.running:
            self.calm_since = elapsed
        elif (self.planned and elapsed >= self.planned[0][0]
              and elapsed - self.calm_since >= CALM_SECONDS):
            self.calm_since = elapsed
            what = self._do(self.planned[0][1])
            if what:
                _, kind = self.planned.pop(0)
                self.done.append((kind, what))
                self.log(f"fault: {kind} ({what})")

    def _do(self, kind):
        """What was done; None if it cannot be done yet."""
        verb, name = kind.split(" ", 1)
        try:
            return self._component(verb, name) if name in COMPONENTS else self._pod(verb, name)
        except Unreachable:
            return None

    def _component(self, verb, name):
        process = self.cluster.spawn(verb, name, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.running.append((process, f"{verb} {name}"))
        return "SIGKILL" if verb == "kill" else "SIGTERM"

    def _pod(self, verb, name):
        agents, controllers, stores = kube.system_pods(self.cluster)
        if name == "sidecar":
            return self._sidecar(agents + controllers)
        pods = {"agent": agents, "controller": controllers, "store": stores}[name]
        if not pods:
            return None
        # Of two controllers, one leads.
        pod = pods[len(self.done) % len(pods)]
        self.keep_logs(pod)
        if verb == "delete":
            path = f"/api/v1/namespaces/{kube.SYSTEM}/pods/{pod['metadata']['name']}"
            self.cluster.delete(path, grace=0)
            return f"{pod['metadata']['name']}, no grace"
        return self._kill(pod, CONTAINERS[name])

    def _sidecar(self, pods):
        """Each of the sidecars in turn, so that a run of 15 minutes kills them all."""
        sidecars = [(pod, container["name"]) for pod in pods
                    for container in pod["spec"]["containers"]
                    if container["name"] not in CONTAINERS.values()]
        if not sidecars:
            return None
        earlier = sum(kind == "kill sidecar" for kind, _ in self.done)
        return self._kill(*sidecars[earlier % len(sidecars)])

    def _kill(self, pod, container):
        for status in pod["status"].get("containerStatuses", []):
            if status["name"] != container or not status.get("containerID"):
                continue
            pid = self.cluster.pid_of(status["containerID"])
            if pid:
                os.kill(pid, signal.SIGKILL)
                return f"SIGKILL of {container} in {pod['metadata']['name']}"
        return None

    def keep_logs(self, pod):
        """Logs go with their pod, so they are taken while it is there."""
        name = pod["metadata"]["name"]
        for status in pod["status"].get("containerStatuses", []):
            end = status.get("lastState", {}).get("terminated")
            if end:
                self.ends[(name, status["name"], status["restartCount"])] = end["exitCode"]
        for container in pod["spec"]["containers"]:
            for previous in ("", "&previous=true"):
                path = (f"/api/v1/namespaces/{kube.SYSTEM}/pods/{name}/log"
                        f"?container={container['name']}{previous}")
                try:
                    text = self.cluster.get(path, raw=True)
                except (Unreachable, kube.Refused):
                    continue  # it has not started yet, or never ended
                self.texts[(name, container["name"], bool(previous))] = text

    def panics(self):
        """Our own programs never panic, and end by no signal but those that were sent here."""
        lines = [f"{pod}/{container}: {line}" for (pod, container, _), text in self.texts.items()
                 if container in CONTAINERS.values()
                 for line in text.splitlines() if "panicked" in line]
        return lines + [f"{pod}/{container} ended with code {code}"
                        for (pod, container, _), code in self.ends.items()
                        if container in CONTAINERS.values() and code in CRASHES]

