"""What the processes and cgroups of our pods hold, read on the host."""
import pathlib

MIB = 1 << 20


def _cgroup(pid):
    """The directory of its memory cgroup, and the names of the files in it: now, most, prefix."""
    lines = [line.split(":", 2) for line in
             pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            directory = pathlib.Path("/sys/fs/cgroup/memory" + path)
            return directory, "memory.usage_in_bytes", "memory.max_usage_in_bytes", "total_"
    directory = pathlib.Path("/sys/fs/cgroup" + lines[-1][2])
    return directory, "memory.current", "memory.peak", ""


def _of_cgroup(directory, now, most, prefix):
    """The working set, as the kubelet uses it: all but the page cache that was not used lately."""
    numbers = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    usage = int((directory / now).read_text())
    peak = directory / most
    return {"working_set": (usage - int(numbers[prefix + "inactive_file"])) / MIB,
            "usage": usage / MIB,
            "peak_usage": int(peak.read_text()) / MIB if peak.exists() else None}


def _of_process(pid):
    fields = dict(line.split(":", 1) for line in
                  pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    mib = lambda name: int(fields[name].split()[0]) / 1024
    return {"rss": mib("VmRSS"), "rss_anon": mib("RssAnon"), "rss_peak": mib("VmHWM")}


def of_pods(cluster, pods):
    """{container or "pod NAME": numbers in MiB}."""
    found = {}
    for pod in pods:
        for status in pod["status"].get("containerStatuses", []):
            pid = cluster.pid_of(status.get("containerID", "none"))
            if not pid:
                continue
            group = _cgroup(pid)
            found[status["name"]] = {**_of_process(pid), **_of_cgroup(*group)}
            # The parent is the pod, with the process that holds its namespaces.
            found["pod " + pod["metadata"]["name"]] = _of_cgroup(group[0].parent, *group[1:])
    return found
