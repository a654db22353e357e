"""Nodes without kubelets: the objects of many Nodes, and the real programs of `local` for them.

Runs inside a cluster of `cluster.sh` with KUBELET=none, whose controllers and scheduler create the
pods of the chart. Nothing runs these pods: this module starts the programs in them, each with the
arguments of its container and a token of its pod.
"""
import base64
import collections
import concurrent.futures
import http.client
import json
import os
import pathlib
import ssl
import subprocess
import threading
import time

import kube

DRIVER = "local.csi.belay.dev"
TOPOLOGY = f"topology.{DRIVER}/node"
PODS = f"/api/v1/namespaces/{kube.SYSTEM}/pods"
OBJECTS = "/apis/belay.dev/v1alpha1"
VOLUMES = OBJECTS + "/localvolumes"
DISKS = OBJECTS + "/localdisks"
ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A memory filesystem: fifty disks, none of which waits for another or for the disk below.
STATE = pathlib.Path("/run/stores")
MIB = 1 << 20


class Api:
    """The API server, by one connection for each thread."""

    def __init__(self, base):
        words = (pathlib.Path(base) / "kubeconfig").read_text().split()
        after = lambda word: words[words.index(word) + 1].rstrip("}]")
        self.host, _, self.port = after("server:").removeprefix("https://").partition(":")
        self.authority = base64.b64decode(after("certificate-authority-data:")).decode()
        self._context = ssl.create_default_context(cadata=self.authority)
        self._headers = {"Authorization": "Bearer " + after("{token:"),
                         "Accept": "application/json"}
        self._local = threading.local()

    def open(self):
        return http.client.HTTPSConnection(self.host, int(self.port), timeout=120,
                                           context=self._context)

    def send(self, connection, method, path, body=None, kind="application/json"):
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {**self._headers, "Content-Type": kind})
        answer = connection.getresponse()
        if answer.status >= 300:
            raise kube.Refused(answer.status, f"{method} {path}: {answer.read()[:500]}")
        return answer

    def request(self, method, path, body=None, kind="application/json"):
        if not hasattr(self._local, "connection"):
            self._local.connection = self.open()
        try:
            answer = self.send(self._local.connection, method, path, body, kind)
        except http.client.RemoteDisconnected:
            # The server closes a connection that was not used for a while. The next call opens it.
            answer = self.send(self._local.connection, method, path, body, kind)
        return json.loads(answer.read())

    def get(self, path):
        return self.request("GET", path)

    def items(self, path):
        return self.get(path).get("items") or []

    def create(self, path, body):
        return self.request("POST", path, body)

    def patch(self, path, body):
        return self.request("PATCH", path, body, "application/merge-patch+json")

    def watch(self, path, version):
        """The changes since a version: the objects, until the caller stops."""
        answer = self.send(self.open(), "GET", f"{path}?watch=1&resourceVersion={version}")
        for line in answer:
            yield json.loads(line)["object"]


def wide(width, work, items):
    """The results of `work` for all items, at most `width` at a time."""
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        return list(pool.map(work, items))


def until(what, attempt, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := attempt()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.1)
    return found


def node(name):
    """A Node as a kubelet registers it, and its CSINode."""
    room = {"cpu": "4", "memory": "8Gi", "pods": "250"}
    driver = {"name": DRIVER, "nodeID": name, "topologyKeys": [TOPOLOGY]}
    labels = {"kubernetes.io/hostname": name, TOPOLOGY: name}
    return [("/api/v1/nodes",
             {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": labels},
              "status": {"capacity": room, "allocatable": room,
                         "conditions": [{"type": "Ready", "status": "True"}]}}),
            ("/apis/storage.k8s.io/v1/csinodes",
             {"kind": "CSINode", "apiVersion": "storage.k8s.io/v1", "metadata": {"name": name},
              "spec": {"drivers": [driver]}})]


def _processor(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Stores:
    """The Nodes, a store for each, and the controllers with csi-provisioner."""

    def __init__(self, base, programs, count):
        self.api = Api(base)
        self.logs = pathlib.Path(base) / "log"
        self.programs = pathlib.Path(programs)
        self.nodes = [f"node-{number:02}" for number in range(1, count + 1)]
        self.stores, self.controllers = {}, []
        # The socket of the controller that csi-provisioner calls.
        self.socket = None
        self._ports = iter(range(20000, 30000))

    def start(self):
        for path, body in [one for name in self.nodes for one in node(name)]:
            self.api.create(path, body)
        STATE.mkdir()
        pods = until("the scheduler binds the pods of the chart", self._bound)
        for pod in pods:
            self._run(pod)
        until("all stores report their disks", self._reported)

    def _bound(self):
        pods = [pod for pod in self.api.items(PODS) if pod["spec"].get("nodeName")]
        return pods if len(pods) == len(self.nodes) + 2 else None

    def _reported(self):
        disks = [disk.get("status", {}) for disk in self.api.items(DISKS)]
        ready = [disk for disk in disks if "promisable" in disk and not disk.get("problem")]
        return len(ready) == len(self.nodes)

    def _run(self, pod):
        name = pod["spec"]["nodeName"]
        main, *sidecars = pod["spec"]["containers"]
        if main["name"] == "belay-store":
            disk = STATE / name
            disk.mkdir(parents=True)
            self.stores[name] = self._start(pod, main, name, STATE / f"account-{name}",
                                            {"--disk": f"default={disk}"})
            return
        socket = STATE / f"{pod['metadata']['name']}.sock"
        changes = {"--endpoint": f"unix://{socket}", "--csi-address": str(socket)}
        # The controllers have the same account, and sidecars look for it only in the usual place.
        self.controllers.append(self._start(pod, main, pod["metadata"]["name"], ACCOUNT,
                                            {**changes, "--log-format": "json"}))
        until("the socket of the controller", lambda: self.check_alive() or socket.exists())
        for sidecar in sidecars:
            # One: the second would only wait for the lease, which names its holder by the host.
            if sidecar["name"] == "csi-provisioner" and len(self.controllers) == 1:
                self.socket = socket
                self._start(pod, sidecar, f"csi-provisioner-{name}", ACCOUNT, changes)

    def _start(self, pod, container, name, account, changes):
        """Starts the program of a container."""
        self._write_account(pod, account)
        flags = dict(flag.partition("=")[::2] for flag in container["args"])
        changes = {"--http-endpoint": f"127.0.0.1:{next(self._ports)}", **changes}
        flags.update({flag: value for flag, value in changes.items() if flag in flags})
        program = "belay-controller"
        if container["name"] == "csi-provisioner":
            program = "csi-provisioner"
        elif account != ACCOUNT:
            flags["--account-dir"] = str(account)
        path = self.programs / program
        words = [str(path) if path.exists() else program]
        words += [f"{flag}={value}" if value else flag for flag, value in flags.items()]
        environment = {"PATH": os.environ["PATH"], "POD_NAME": pod["metadata"]["name"],
                       "NAMESPACE": kube.SYSTEM, "BELAY_NODE_NAME": pod["spec"]["nodeName"],
                       "KUBERNETES_SERVICE_HOST": self.api.host,
                       "KUBERNETES_SERVICE_PORT": self.api.port}
        with open(self.logs / f"{name}.log", "w") as log:
            return subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                    stderr=log)

    def _write_account(self, pod, account):
        metadata = pod["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"],
                 "uid": metadata["uid"]}
        path = f"/api/v1/namespaces/{kube.SYSTEM}/serviceaccounts/" \
               f"{pod['spec']['serviceAccountName']}/token"
        token = self.api.create(path, {"kind": "TokenRequest",
                                       "apiVersion": "authentication.k8s.io/v1",
                                       "spec": {"expirationSeconds": 3600, "audiences": None,
                                                "boundObjectRef": bound}})["status"]["token"]
        account.mkdir(parents=True, exist_ok=True)
        (account / "token").write_text(token)
        (account / "ca.crt").write_text(self.api.authority)
        (account / "namespace").write_text(kube.SYSTEM)

    def processor(self):
        """The processor time in seconds that each group of programs has used so far."""
        server = (self.logs.parent / "run/kube-apiserver.pid").read_text()
        groups = {"API server": [int(server)],
                  "controllers": [one.pid for one in self.controllers],
                  "stores": [one.pid for one in self.stores.values()]}
        return {name: sum(_processor(pid) for pid in pids) for name, pids in groups.items()}

    def check_alive(self, *gone):
        for name, program in [*self.stores.items(), *enumerate(self.controllers)]:
            if name not in gone and program.poll() is not None:
                raise SystemExit(f"the program of {name} has ended: {program.returncode}")

    def volumes(self):
        return {item["metadata"]["name"]: item for item in self.api.items(VOLUMES)}

    def mismatches(self):
        """Volumes of which only the object or only the file exists."""
        objects = {(item["spec"]["node"], item["spec"]["id"]) for item in self.volumes().values()}
        files = {(name, file.name) for name in self.nodes
                 for file in (STATE / name / "volumes").iterdir()}
        return objects ^ files

    def calls(self):
        """{(call, name or ID): [(code, seconds)]} of all calls of the controllers so far."""
        found = collections.defaultdict(list)
        for pod in [*self.logs.glob("belay-controller-*.log")]:
            for line in pod.read_text().splitlines():
                entry = json.loads(line)
                if "us" in entry:
                    key = entry["rpc"], entry.get("subject")
                    found[key].append((entry["code"], entry["us"] / 1e6))
        return found
