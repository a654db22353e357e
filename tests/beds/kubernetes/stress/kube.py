"""The cluster as the tests see it from outside: its API, its processes, its mounts.

The API is reached by a socket file that a `kubectl proxy` inside the cluster's namespaces serves,
so that a thousand requests do not start a thousand processes.
"""
import argparse
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SYSTEM = "belay-system"
SNAPSHOT_API = "/apis/snapshot.storage.k8s.io/v1"


class Unreachable(Exception):
    """The API server did not answer, or not now; the same request may be sent again."""


class Refused(Exception):
    """The API server answered with an error that a repetition would not change."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code


class Clock:
    """Every event is a line with the seconds since the beginning."""

    def __init__(self):
        self.began = time.monotonic()

    def elapsed(self):
        return time.monotonic() - self.began

    def log(self, text):
        print(f"{self.elapsed():7.1f} s  {text}", flush=True)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Cluster:
    """One running bed: `cluster.sh` next to this directory, with its BASE."""

    def __init__(self, base, script=None):
        self.base = str(base)
        self.script = str(script or HERE.parent / "cluster.sh")
        self._folder = tempfile.mkdtemp(prefix="belay-stress.")
        self._socket = self._folder + "/api"
        command = ["kubectl", "proxy", "--unix-socket=" + self._socket]
        # A separate session: nsenter forks, and both must be ended.
        # It logs an error for each request while the API server is down; the caller gets it anyway.
        self._proxy = self.spawn("exec", *command, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        self.inner = None

    def __enter__(self):
        # A test that is stopped also stops its proxy, as at Ctrl-C.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
        try:
            self._await_answer()
            self.inner = self._descendant_inside()
        except BaseException:
            self.close()
            raise
        return self

    def _await_answer(self):
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.get("/readyz", raw=True)
            except Unreachable as error:
                if self._proxy.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"no cluster answers in BASE={self.base} ({error}); "
                                     f"start one: BASE={self.base} {self.script} up") from error
            time.sleep(0.2)

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self._proxy.poll() is None:
            os.killpg(self._proxy.pid, 15)
            self._proxy.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def spawn(self, *arguments, **options):
        """Start a verb of cluster.sh; the caller waits for it."""
        environment = dict(os.environ, BASE=self.base)
        return subprocess.Popen([self.script, *arguments], env=environment, text=True,
                                stdin=subprocess.DEVNULL, start_new_session=True, **options)

    def run(self, *arguments):
        """A command inside the cluster; its output, or an error with it."""
        process = self.spawn("exec", *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate(timeout=300)
        if process.returncode:
            raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}:\n{output}")
        return output

    def request(self, method, path, body=None, kind="application/json", raw=False):
        connection = _Connection(self._socket, timeout=15)
        try:
            headers = {"Content-Type": kind, "Accept": "*/*" if raw else "application/json"}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            content = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{method} {path}: {error}") from error
        finally:
            connection.close()
        if answer.status < 300:
            return content if raw else json.loads(content)
        # What is starting up refuses for a while with 403, too: its roles are not there yet.
        if answer.status in (401, 403, 429) or answer.status >= 500:
            raise Unreachable(f"{method} {path}: {answer.status} {content[:300]}")
        raise Refused(answer.status, f"{method} {path}: {content[:500]}")

    def get(self, path, raw=False):
        return self.request("GET", path, raw=raw)

    def items(self, path):
        return self.get(path).get("items") or []

    def create(self, path, body):
        """Created, or existing: after a lost answer it is unknown which."""
        try:
            self.request("POST", path, body)
        except Refused as error:
            if error.code != 409:
                raise

    def delete(self, path, grace=None):
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        try:
            self.request("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})
        except Refused as error:
            if error.code != 404:
                raise

    def patch(self, path, body):
        self.request("PATCH", path, body, kind="application/merge-patch+json")

    def patiently(self, what, attempt, seconds=120):
        """Repeats until `attempt` returns a true value; connection errors are retried."""
        deadline = time.monotonic() + seconds
        last = None
        while time.monotonic() < deadline:
            try:
                found = attempt()
                if found:
                    return found
            except Unreachable as error:
                last = error
            time.sleep(0.5)
        raise SystemExit(f"{what}: not within {seconds} s" + (f" ({last})" if last else ""))

    # Behind the API: the host sees the cluster's processes, files and mounts.

    def _descendant_inside(self):
        """The host's pid of the proxy itself, which is in all of the cluster's namespaces."""
        pid = self._proxy.pid
        while True:
            children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if not children:
                return pid
            pid = int(children[0])

    def path(self, inside):
        """A file of the cluster, by its name inside, as the host can open it."""
        return pathlib.Path(f"/proc/{self.inner}/root{inside}")

    def mount_points(self):
        lines = pathlib.Path(f"/proc/{self.inner}/mountinfo").read_text().splitlines()
        return [line.split()[4] for line in lines]

    def pid_of(self, container_id):
        """The host's pid of a container's first process; None if it does not run."""
        identity = container_id.rpartition("/")[2]
        for status in pathlib.Path("/proc").glob("[0-9]*/status"):
            try:
                if identity not in (status.parent / "cgroup").read_text():
                    continue
                ids = [line for line in status.read_text().splitlines() if line[:6] == "NSpid:"]
            except OSError:
                continue
            if ids and ids[0].split()[-1] == "1":
                return int(status.parent.name)
        return None


def given(parser):
    """The arguments, with those that every test of a bed has."""
    parser.add_argument("--driver", default="local.csi.belay.dev")
    parser.add_argument("--script", help=argparse.SUPPRESS)
    parser.add_argument("--base", default=os.environ.get("BASE"), help="directory of the bed")
    parser.add_argument("--output", help="file for the result as JSON")
    arguments = parser.parse_args()
    if not arguments.base:
        parser.error("BASE or --base must name the directory of a running bed")
    return arguments


def system_pods(cluster):
    """Our own pods that are not on their way out: (agents, controllers, stores)."""
    pods = [pod for pod in cluster.items(f"/api/v1/namespaces/{SYSTEM}/pods")
            if "deletionTimestamp" not in pod["metadata"]]
    named = lambda prefix: [pod for pod in pods if pod["metadata"]["name"].startswith(prefix)]
    return named("belay-node"), named("belay-controller"), named("belay-store")


def is_ready(pod):
    return any(condition["type"] == "Ready" and condition["status"] == "True"
               for condition in pod.get("status", {}).get("conditions", []))


def all_ready(cluster):
    agents, controllers, stores = system_pods(cluster)
    return agents and controllers and all(is_ready(pod) for pod in agents + controllers + stores)
