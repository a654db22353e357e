"""A node whose store is dead, with removals and creations for it, and creations elsewhere.

csi-provisioner makes all calls, at the rates that the chart sets. No pods are needed: each claim
has the node that the scheduler would select. The annotations and phases that Kubernetes' volume
controller sets are set here, since its own rate would otherwise decide.
"""
import itertools
import threading
import time

import stores

QUEUED = 400
CLAIMS, PAUSE = 80, 0.25
ELSEWHERE, HERE = "elsewhere", "dead"
VOLUMES = "/api/v1/persistentvolumes"
PROVISIONER = "volume.kubernetes.io/storage-provisioner"


def claims(namespace):
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"


def claim(name, node, group):
    """A claim that a pod on the node uses first."""
    notes = {"volume.kubernetes.io/selected-node": node, PROVISIONER: stores.DRIVER}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "annotations": notes},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": group,
                     "resources": {"requests": {"storage": "1Mi"}}}}


def released(name, identity, node, group):
    """The PersistentVolume of a claim that was deleted."""
    term = {"key": stores.TOPOLOGY, "operator": "In", "values": [node]}
    gone = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": HERE, "name": name,
            "uid": f"gone-{name}"}
    return {"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": name,
                         "annotations": {"pv.kubernetes.io/provisioned-by": stores.DRIVER}},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"},
                     "persistentVolumeReclaimPolicy": "Delete", "storageClassName": group,
                     "claimRef": gone,
                     "csi": {"driver": stores.DRIVER, "volumeHandle": identity},
                     "nodeAffinity": {"required": {"nodeSelectorTerms": [
                         {"matchExpressions": [term]}]}}}}


class Watcher:
    """The times at which PersistentVolumes appear, by the names of their claims."""

    def __init__(self, api):
        self.seen = {}
        version = api.get(VOLUMES)["metadata"]["resourceVersion"]
        changes = api.watch(VOLUMES, version)
        threading.Thread(target=self._follow, args=[changes], daemon=True).start()

    def _follow(self, changes):
        for volume in changes:
            name = volume.get("spec", {}).get("claimRef", {}).get("name")
            self.seen.setdefault(name, time.monotonic())


def creations(bed, watcher, prefix, group):
    """The times from a claim to its PersistentVolume, for claims one after the other."""
    nodes = itertools.cycle(bed.nodes[:-1])
    began = {}
    for number in range(CLAIMS):
        name = f"{prefix}-{number}"
        began[name] = time.monotonic()
        bed.api.create(claims(ELSEWHERE), claim(name, next(nodes), group))
        time.sleep(max(0, began[name] + PAUSE - time.monotonic()))
    stores.until("PersistentVolumes elsewhere", lambda: began.keys() <= watcher.seen.keys(), 600)
    return [watcher.seen[name] - since for name, since in began.items()]


def queue(bed, identities, dead, group):
    """Queues the removals of volumes on a node, and as many creations."""
    def remove(one):
        name, identity = one
        bed.api.create(VOLUMES, released(name, identity, dead, group))
        bed.api.patch(f"{VOLUMES}/{name}/status", {"status": {"phase": "Released"}})
    stores.wide(10, remove, identities.items())
    stores.wide(10, lambda number: bed.api.create(
        claims(HERE), claim(f"{HERE}-{number}", dead, group)), range(QUEUED))


def run(bed, calls, quantiles, clock):
    """The rows of the table, and faults."""
    for name in (ELSEWHERE, HERE):
        bed.api.create("/api/v1/namespaces", {"kind": "Namespace", "apiVersion": "v1",
                                              "metadata": {"name": name}})
    group = next(item["metadata"]["name"]
                 for item in bed.api.items("/apis/storage.k8s.io/v1/storageclasses")
                 if item["provisioner"] == stores.DRIVER)
    dead = bed.nodes[-1]
    identities = calls.create({f"old-{number}": dead for number in range(QUEUED)})
    watcher = Watcher(bed.api)
    before = creations(bed, watcher, "before", group)
    clock.log("claims without a dead node are provisioned")
    store = bed.stores[dead]
    store.kill()
    store.wait()
    queue(bed, identities, dead, group)
    clock.log(f"{QUEUED} removals and {QUEUED} creations for {dead} are queued")
    during = creations(bed, watcher, "during", group)
    clock.log("claims with the dead node are provisioned")
    bed.check_alive(dead)
    rows = [["without", *[f"{one:.2f}" for one in quantiles(before)]],
            ["with", *[f"{one:.2f} ({one / other:.1f})" for one, other
                       in zip(quantiles(during), quantiles(before))]]]
    wrong = [f"only an object or a file: {one}" for one in sorted(bed.mismatches())
             if one[0] != dead]
    return rows, wrong
