"""Manifests: storage classes, claims, snapshots and pods that write and verify."""

NAMESPACE = "belay-stress"
KINDS = ("ext4", "xfs", "btrfs", "block")
MIB = 1 << 20
# The least that each filesystem can be made in, and room to write.
SIZES_MIB = {"ext4": 160, "xfs": 320, "btrfs": 288, "block": 64}

CORE = f"/api/v1/namespaces/{NAMESPACE}"
PODS = CORE + "/pods"
CLAIMS = CORE + "/persistentvolumeclaims"
SNAPSHOTS = f"/apis/snapshot.storage.k8s.io/v1/namespaces/{NAMESPACE}/volumesnapshots"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
SNAPSHOT_CLASSES = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses"


def class_name(kind):
    return "belay-stress-" + kind


def storage_class(kind, driver):
    parameters = {} if kind == "block" else {"csi.storage.k8s.io/fstype": kind}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": class_name(kind)}, "provisioner": driver,
            "parameters": parameters, "volumeBindingMode": "WaitForFirstConsumer",
            "reclaimPolicy": "Delete", "allowVolumeExpansion": True}


def snapshot_class(driver):
    return {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": "belay-stress"}, "driver": driver, "deletionPolicy": "Delete"}


def claim(name, kind, size_mib, source=None):
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": class_name(kind),
            "volumeMode": "Block" if kind == "block" else "Filesystem",
            "resources": {"requests": {"storage": f"{size_mib}Mi"}}}
    if source:
        spec["dataSource"] = source
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name}, "spec": spec}


def from_snapshot(name):
    return {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}


def from_claim(name):
    return {"kind": "PersistentVolumeClaim", "name": name}


def snapshot(name, claim_name):
    return {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": name},
            "spec": {"volumeSnapshotClassName": "belay-stress",
                     "source": {"persistentVolumeClaimName": claim_name}}}


def pod(name, claim_name, kind, script, environment, restart="OnFailure"):
    """A pod with one volume, at /volume: a directory, or a raw device."""
    container = {"name": "writer", "image": "localhost/busybox:1", "imagePullPolicy": "Never",
                 "command": ["sh", "-c", script],
                 # The last output of a script that ends without a message.
                 "terminationMessagePolicy": "FallbackToLogsOnError",
                 "env": [{"name": key, "value": str(value)} for key, value in environment.items()]}
    if kind == "block":
        container["volumeDevices"] = [{"name": "volume", "devicePath": "/volume"}]
    else:
        container["volumeMounts"] = [{"name": "volume", "mountPath": "/volume"}]
    spec = {"restartPolicy": restart, "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False, "enableServiceLinks": False,
            "containers": [container],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": claim_name}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def make_surroundings(cluster, driver):
    """The namespace and the classes that all pods and claims of a test use."""
    create = lambda what, path, body: cluster.patiently(
        what, lambda: cluster.create(path, body) or True)
    # A failed test leaves everything for the search for the cause.
    if _is_there(cluster):
        raise SystemExit(f"an earlier test left its volumes; please run, once they are not needed: "
                         f"kubectl delete namespace {NAMESPACE}")
    create("making the namespace", "/api/v1/namespaces",
           {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for kind in KINDS:
        create("making a storage class", CLASSES, storage_class(kind, driver))
    create("making a snapshot class", SNAPSHOT_CLASSES, snapshot_class(driver))
    # Pods are refused until the namespace has its service account.
    cluster.patiently("service account", lambda: cluster.items(CORE + "/serviceaccounts"))


def remove_surroundings(cluster):
    delete = lambda path: cluster.patiently(path, lambda: cluster.delete(path) or True)
    for kind in KINDS:
        delete(f"{CLASSES}/{class_name(kind)}")
    delete(SNAPSHOT_CLASSES + "/belay-stress")
    delete("/api/v1/namespaces/" + NAMESPACE)
    cluster.patiently("the end of the namespace", lambda: not _is_there(cluster))


def _is_there(cluster):
    names = [item["metadata"]["name"] for item in cluster.items("/api/v1/namespaces")]
    return NAMESPACE in names
