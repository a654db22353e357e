"""What is left of a test's volumes: in the API, the kubelet's directory, the kernel, on the disk;
and whether these agree while the volumes are in use."""
import json
import os
import pathlib
import subprocess
import time

import kube
from kube import Unreachable

LOCAL = "/apis/belay.dev/v1alpha1"
KUBELET = "/var/lib/kubelet"
STATE = "/var/lib/belay"
# The interval of the store's measurements, and the time that one takes.
MEASURE_SECONDS = 12


def _api(cluster, driver):
    for volume in cluster.items("/api/v1/persistentvolumes"):
        if volume["spec"].get("csi", {}).get("driver") == driver:
            yield (f"PersistentVolume {volume['metadata']['name']} "
                   f"({volume['status'].get('phase')}, {volume['spec']['csi']['volumeHandle']})")


def _contents(cluster, driver):
    for content in cluster.items(f"{kube.SNAPSHOT_API}/volumesnapshotcontents"):
        if content["spec"]["driver"] == driver:
            yield f"VolumeSnapshotContent {content['metadata']['name']}: {content.get('status')}"


def _objects(cluster, driver):
    for kind in ("localvolumes", "localsnapshots"):
        for item in cluster.items(f"{LOCAL}/{kind}"):
            yield f"{kind} {item['metadata']['name']}: {item.get('status')}"


def _ledger(cluster, driver):
    """Records and files that have no object. The store reads both for each report."""
    for disk in cluster.items(f"{LOCAL}/localdisks"):
        unlisted = disk.get("status", {}).get("unlisted", {})
        if unlisted.get("count") != 0:
            yield f"localdisk {disk['metadata']['name']}: records or files: {unlisted}"


def _in_use(cluster, driver):
    """IDs of (volumes, snapshots) that have a file, since nothing has begun to delete them."""
    volumes = {one["spec"]["csi"]["volumeHandle"]
               for one in cluster.items("/api/v1/persistentvolumes")
               if one["spec"].get("csi", {}).get("driver") == driver
               and one["status"].get("phase") == "Bound"}
    snapshots = {one["status"]["snapshotHandle"]
                 for one in cluster.items(f"{kube.SNAPSHOT_API}/volumesnapshotcontents")
                 if one["spec"]["driver"] == driver and one.get("status", {}).get("readyToUse")
                 and "deletionTimestamp" not in one["metadata"]}
    return volumes, snapshots


def disagreements(cluster, driver):
    """Objects that are lost, and volumes and snapshots in use without a ready object or a file."""
    before = _in_use(cluster, driver)
    objects = [cluster.items(f"{LOCAL}/{kind}") for kind in ("localvolumes", "localsnapshots")]
    files = [os.listdir(cluster.path(f"{STATE}/{kind}")) for kind in ("volumes", "snapshots")]
    # The deletion of others may have begun meanwhile.
    in_use = [old & new for old, new in zip(before, _in_use(cluster, driver))]
    for items, names, ids in zip(objects, files, in_use):
        phases = {one["spec"]["id"]: one.get("status", {}).get("phase") for one in items}
        yield from (f"{one} is Lost" for one, phase in phases.items() if phase == "Lost")
        yield from (f"{one} is in use; its object is {phases.get(one)}; its file "
                    f"{'exists' if one in names else 'is missing'}"
                    for one in ids if phases.get(one) != "Ready" or one not in names)


def _mounts(cluster, driver):
    marks = (f"{KUBELET}/plugins/kubernetes.io/csi/", "/volumes/kubernetes.io~csi/",
             "/volumeDevices/kubernetes.io~csi/")
    for point in cluster.mount_points():
        if point.startswith(KUBELET) and any(mark in point for mark in marks):
            yield f"mount {point}"


def forgotten(cluster, driver):
    """The kubelet's notes of volumes that are no longer staged.

    It ends an unstage by removing them, and looks for them no more if it is killed in between:
    only the directories of pods show it what there was. They do no harm, so they are only reported.
    """
    staging = f"{KUBELET}/plugins/kubernetes.io/csi"
    for inside in (f"{staging}/{driver}", f"{staging}/volumeDevices"):
        directory = cluster.path(inside)
        for entry in sorted(directory.iterdir()) if directory.is_dir() else []:
            if entry.name not in ("publish", "staging"):
                yield f"directory {inside}/{entry.name}"
            else:
                yield from (f"directory {inside}/{entry.name}/{one.name}" for one in entry.iterdir())


def _loops(cluster, volumes):
    """Devices are the whole machine's. Ours have their file on the state directory's filesystem, or
    are the kubelet's own on top of our raw devices, which bear the volume's name."""
    number = cluster.path(STATE).stat().st_dev
    ours = f"{os.major(number)}:{os.minor(number)}"
    command = ["losetup", "--list", "--json", "--output", "NAME,BACK-MAJ:MIN,BACK-FILE"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for one in json.loads(found)["loopdevices"] if found.strip() else []:
        # A device that is freed meanwhile has neither.
        file, where = one["back-file"] or "", (one["back-maj:min"] or "").strip()
        if where == ours or any(f"/volumeDevices/{name}/" in file for name in volumes):
            yield f"loop device {one['name']} of {file}"


def _files(cluster, driver):
    for name in ("volumes", "snapshots"):
        directory = cluster.path(f"{STATE}/{name}")
        for entry in sorted(directory.iterdir()) if directory.is_dir() else []:
            yield f"file {STATE}/{name}/{entry.name}"


def find(cluster, driver, volumes):
    looks = (_api, _contents, _objects, _ledger, _mounts, _files)
    found = [thing for look in looks for thing in look(cluster, driver)]
    return found + list(_loops(cluster, volumes))


def settle(cluster, driver, volumes, deadline):
    """What is left at the deadline, a time of time.monotonic(); nothing, as soon as nothing has
    been left between two measurements of the store, which finds records without objects."""
    calm_since = None
    while True:
        try:
            left = find(cluster, driver, volumes)
        except Unreachable as error:
            left = [f"unknown: {error}"]
        now = time.monotonic()
        calm_since = None if left else calm_since or now
        if now - (calm_since or now) > MEASURE_SECONDS or left and now > deadline:
            return left
        time.sleep(1)


def orphans(cluster, offset=0):
    """The kubelet's errors (not its notes) about directories of deleted pods."""
    log = pathlib.Path(cluster.base, "log/kubelet.log")
    with log.open(errors="replace") as lines:
        lines.seek(offset)
        return [line.strip() for line in lines
                if line.startswith("E") and "orphaned pod" in line.lower()]
