#!/usr/bin/env python3
"""A hundred pods with a volume each on one node: what the kubelet waits for, and what it costs.

    scale.py [--pods 100] [--kinds ext4,xfs,btrfs,block] [--output FILE] [--plot FILE.png]

First a few pods one after the other, on new volumes and again on the same, then all at once, also
twice. Prints the kubelet's own times next to the agent's, as Markdown. Needs a running bed with
Belay installed in it: BASE names its directory.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

sys.dont_write_bytecode = True
import kube
import memory
import metrics
import objects

SLEEP = "sleep 2147483647"
NODE_PORT, CONTROLLER_PORT = 9808, 9809


class Pages:
    """Histograms of the kubelet, the agent and the controller at one moment."""

    def __init__(self, cluster, driver):
        agents, controllers, _ = kube.system_pods(cluster)
        node = agents[0]["spec"]["nodeName"]
        ours = lambda labels: driver in labels.get("volume_plugin", labels.get("driver_name", ""))
        kubelet = cluster.get(f"/api/v1/nodes/{node}/proxy/metrics", raw=True)
        agent = _page(cluster, agents[0], NODE_PORT)
        # Each sidecar calls the controller in the same pod; the histograms of all are added.
        controller = "".join(_page(cluster, pod, CONTROLLER_PORT) for pod in controllers)
        self.parts = {
            "kubelet": metrics.histograms(
                kubelet, "storage_operation_duration_seconds",
                lambda one: one["operation_name"] if ours(one) else None),
            "kubelet's calls": metrics.histograms(
                kubelet, "csi_operations_seconds",
                lambda one: one["method_name"].rpartition("/")[2] if ours(one) else None),
            "agent": metrics.histograms(agent, "belay_rpc_duration_seconds",
                                        lambda one: one["rpc"]),
            "phases": metrics.histograms(agent, "belay_operation_phase_duration_seconds",
                                         lambda one: (one["operation"], one["phase"])),
            "controller": metrics.histograms(controller, "belay_rpc_duration_seconds",
                                             lambda one: one["rpc"]),
        }

    def since(self, before):
        return {name: metrics.since(before.parts[name], part) for name, part in self.parts.items()}


def _page(cluster, pod, port):
    name = pod["metadata"]["name"]
    return cluster.get(f"/api/v1/namespaces/{kube.SYSTEM}/pods/{name}:{port}/proxy/metrics",
                       raw=True)


class Round:
    """Pods come, all are running, pods go: with the times of both."""

    def __init__(self, cluster, clock, driver, names, new):
        self.cluster, self.clock, self.driver = cluster, clock, driver
        self.names, self.new = names, new

    def go(self, title, together=True):
        before, began, starts = Pages(self.cluster, self.driver), time.monotonic(), []
        for names in [list(self.names)] if together else [[name] for name in self.names]:
            starts += self._start(names)
        running = time.monotonic() - began
        self.clock.log(f"{title}: {len(self.names)} pods run, {running:.1f} s")
        held = memory.of_pods(self.cluster, sum(kube.system_pods(self.cluster), []))
        began = time.monotonic()
        self._end()
        gone = time.monotonic() - began
        self.clock.log(f"{title}: the pods are gone, {gone:.1f} s")
        after = Pages(self.cluster, self.driver)
        result = {"title": title, "pods": len(self.names), "starts": starts, "running": running,
                  "gone": gone, "memory": held, "times": after.since(before)}
        report(result)
        return result

    def _start(self, names):
        began, waiting, starts = {}, set(names), []
        for name in names:
            kind = self.names[name]
            if self.new:
                self.cluster.create(objects.CLAIMS,
                                    objects.claim(name, kind, objects.SIZES_MIB[kind]))
            began[name] = time.monotonic()
            self.cluster.create(objects.PODS, objects.pod(name, name, kind, SLEEP, {}))
        deadline = time.monotonic() + 900
        while waiting:
            if time.monotonic() > deadline:
                raise SystemExit(f"after 900 s these pods do not run: {sorted(waiting)}")
            time.sleep(0.05 if len(names) == 1 else 0.5)
            for pod in self.cluster.items(objects.PODS):
                name = pod["metadata"]["name"]
                if name in waiting and kube.is_ready(pod):
                    waiting.remove(name)
                    starts.append(time.monotonic() - began[name])
        return starts

    def _end(self):
        for name in self.names:
            self.cluster.delete(f"{objects.PODS}/{name}")
        self.cluster.patiently("pods are gone", lambda: not self.cluster.items(objects.PODS), 900)


def check_limit(cluster, driver, pods):
    """The scheduler would leave the rest pending forever."""
    for node in cluster.items("/apis/storage.k8s.io/v1/csinodes"):
        for one in node["spec"].get("drivers") or []:
            most = one.get("allocatable", {}).get("count", pods)
            if one["name"] == driver and most < pods:
                raise SystemExit(f"the node takes {most} volumes and {pods} are wanted; please run: "
                                 "deploy.sh IMAGES --set drivers[0].maxVolumes=0")


def run(given, cluster):
    clock = kube.Clock()
    cluster.patiently("Belay's pods are ready", lambda: kube.all_ready(cluster))
    check_limit(cluster, given.driver, max(given.pods, given.few))
    objects.make_surroundings(cluster, given.driver)
    kinds = given.kinds.split(",")
    few = {f"one-{i:02}": kinds[i % len(kinds)] for i in range(given.few)}
    many = {f"all-{i:03}": kinds[i % len(kinds)] for i in range(given.pods)}
    idle = memory.of_pods(cluster, sum(kube.system_pods(cluster), []))
    make = lambda names, new: Round(cluster, clock, given.driver, names, new)
    rounds = [make(few, True).go("one after the other, new volumes", together=False),
              make(few, False).go("one after the other, the same volumes again", together=False)]
    if many:
        rounds += [make(many, True).go("all at once, new volumes"),
                   make(many, False).go("all at once, the same volumes again")]
    before, began = Pages(cluster, given.driver), time.monotonic()
    for item in cluster.items(objects.CLAIMS):
        cluster.delete(f"{objects.CLAIMS}/{item['metadata']['name']}")
    cluster.patiently("volumes are gone",
                      lambda: not cluster.items("/api/v1/persistentvolumes"), 900)
    clock.log(f"the volumes are deleted, {time.monotonic() - began:.1f} s")
    deletion = Pages(cluster, given.driver).since(before)["controller"]
    times_table("deletion: controller", deletion)
    objects.remove_surroundings(cluster)
    late = memory.of_pods(cluster, sum(kube.system_pods(cluster), []))
    memory_table({"before": idle, "after": late})
    return {"rounds": rounds, "deletion": deletion, "memory": {"before": idle, "after": late}}


def milliseconds(seconds):
    return f"{seconds * 1000:.1f}" if seconds < 0.1 else f"{seconds * 1000:.0f}"


def times_table(title, histograms):
    """The longest total first; less than half a percent of the total is left out."""
    print(f"\n{title}\n\n| | times | mean, ms | median | 99 of 100 below |\n|---|---|---|---|---|")
    everything = sum(one.sum for one in histograms.values())
    for name, one in sorted(histograms.items(), key=lambda item: -item[1].sum):
        if one.sum * 200 < everything:
            break
        label = " ".join(name) if isinstance(name, tuple) else name
        numbers = (one.mean(), one.quantile(0.5), one.quantile(0.99))
        print(f"| {label} | {one.count:.0f} | "
              + " | ".join(milliseconds(number) for number in numbers) + " |")


def share(one):
    """The agent's and the controller's part of a pod's start: means per pod."""
    agent, controller = one["times"]["agent"], one["times"]["controller"]
    total = lambda part, names: sum(part[name].sum for name in names if name in part)
    node = total(agent, ("NodeStageVolume", "NodePublishVolume")) / one["pods"]
    cloud = total(controller, ("CreateVolume", "ControllerPublishVolume")) / one["pods"]
    starts, start = one["starts"], statistics.mean(one["starts"])
    print(f"\n{one['title']}: a start takes {start:.2f} s (shortest {min(starts):.2f}, median "
          f"{statistics.median(starts):.2f}, longest {max(starts):.2f}); of that the "
          f"agent {milliseconds(node)} ms ({100 * node / start:.2f} %), the controller "
          f"{milliseconds(cloud)} ms ({100 * cloud / start:.2f} %)")


def histogram_of_starts(starts, width=50):
    """Plain text, fit for a log."""
    step = max(starts) / 10 or 1
    counts = [0] * 10
    for one in starts:
        counts[min(9, int(one / step))] += 1
    for number, count in enumerate(counts):
        bar = "#" * round(width * count / max(counts))
        print(f"{number * step:7.1f} to {(number + 1) * step:5.1f} s {bar} {count}")


def memory_table(looks):
    columns = ("rss", "rss_anon", "rss_peak", "working_set", "usage", "peak_usage")
    print("\n| MiB | when | " + " | ".join(column.replace("_", " ") for column in columns)
          + " |\n|---|---|" + "---|" * len(columns))
    for when, found in looks.items():
        for name, numbers in found.items():
            cells = [f"{numbers[one]:.1f}" if numbers.get(one) is not None else ""
                     for one in columns]
            print(f"| {name} | {when} | " + " | ".join(cells) + " |")


def plot(rounds, path):
    try:
        import matplotlib
    except ImportError:
        return print("no plot: there is no matplotlib for Python")
    matplotlib.use("Agg")
    from matplotlib import pyplot
    for one in rounds:
        ordered = sorted(one["starts"])
        pyplot.plot(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))],
                    label=one["title"])
    pyplot.xlabel("seconds from the pod's creation until it is ready")
    pyplot.ylabel("part of the pods")
    pyplot.legend()
    pyplot.savefig(path)


def report(one):
    share(one)
    histogram_of_starts(one["starts"])
    for name, part in one["times"].items():
        times_table(f"{one['title']}: {name}", part)
    memory_table({"all run": one["memory"]})


def as_json(value):
    """Histograms as numbers a program can compare."""
    if isinstance(value, metrics.Histogram):
        return {"count": value.count, "sum": value.sum, "median": value.quantile(0.5),
                "p99": value.quantile(0.99)}
    if isinstance(value, dict):
        return {" ".join(key) if isinstance(key, tuple) else key: as_json(one)
                for key, one in value.items()}
    return [as_json(one) for one in value] if isinstance(value, list) else value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=100, help="0: only the few")
    parser.add_argument("--few", type=int, default=12, help="pods of the first round")
    parser.add_argument("--kinds", default=",".join(objects.KINDS), help="taken in turns")
    parser.add_argument("--plot", help="file for a picture of the starts, where matplotlib is")
    given = kube.given(parser)
    with kube.Cluster(given.base, given.script) as cluster:
        result = run(given, cluster)
    if given.output:
        pathlib.Path(given.output).write_text(json.dumps(as_json(result), indent=1) + "\n")
    if given.plot:
        plot(result["rounds"], given.plot)


if __name__ == "__main__":
    main()
