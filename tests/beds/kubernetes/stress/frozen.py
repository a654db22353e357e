"""Containers that containerd left frozen, thawed so that the kubelet can end their pods.

runc freezes a container's cgroup for a moment while it changes it. A containerd or runc killed in
that moment never thaws it: the container cannot be killed, its pod does not end, and the volumes
stay mounted for it. That is no failure of a storage driver.
"""
import os
import pathlib
import time

CGROUPS = pathlib.Path("/sys/fs/cgroup")
# By version of the cgroups: the file, its content while the cgroup is kept frozen, and
# what thaws it.
FILES = (("freezer.self_freezing", "1", "freezer.state", "THAWED"),
         ("cgroup.freeze", "1", "cgroup.freeze", "0"))
# runc takes milliseconds; a busy machine, seconds.
PATIENCE_SECONDS = 30
LOOK_SECONDS = 5


class Frozen:
    """Looks for them now and then, and thaws those that stay frozen."""

    def __init__(self, cluster, log):
        name = pathlib.Path(cluster.base, "cgroup").read_text().strip()
        roots = (CGROUPS / "freezer" / name, CGROUPS / name)
        self.roots = [root for root in roots if root.is_dir()]
        self.log, self.since, self.looked, self.thawed = log, {}, 0.0, []

    def turn(self):
        now = time.monotonic()
        if now - self.looked < LOOK_SECONDS:
            return
        self.looked = now
        frozen = dict(self._frozen())
        self.since = {directory: self.since.get(directory, now) for directory in frozen}
        for directory, since in list(self.since.items()):
            if now - since >= PATIENCE_SECONDS:
                self._thaw(directory, *frozen[directory])
                del self.since[directory]

    def _frozen(self):
        for root in self.roots:
            for asked, value, changed, thaws in FILES:
                for file in _named(asked, root):
                    try:
                        if file.read_text().strip() == value:
                            yield file.parent, (changed, thaws)
                    except OSError:
                        continue  # it ended meanwhile

    def _thaw(self, directory, changed, thaws):
        try:
            (directory / changed).write_text(thaws)
        except OSError as error:
            self.log(f"{directory} cannot be thawed: {error}")
            return
        self.thawed.append(str(directory.relative_to(CGROUPS)))
        self.log(f"thawed: containerd left {directory.name} frozen for {PATIENCE_SECONDS} s")

    def processes(self, pod_uid):
        """The processes of a pod, with their states: while there are any, nothing is unmounted."""
        found = set()
        for root in self.roots:
            for file in _named("cgroup.procs", root):
                if pod_uid in str(file) or pod_uid.replace("-", "_") in str(file):
                    found.update(_states(file))
        return sorted(found)


def _named(name, root):
    # Not rglob: it stops at a cgroup that ends while it is read.
    for directory, _, names in os.walk(root):
        if name in names:
            yield pathlib.Path(directory, name)


def _states(procs):
    try:
        pids = procs.read_text().split()
    except OSError:
        return
    for pid in pids:
        try:
            # proc(5): the state follows the name, which is in parentheses and may hold any.
            text = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        yield f"{pid} {text[text.index('(') + 1:text.rindex(')')]} ({text.rpartition(') ')[2][0]})"
