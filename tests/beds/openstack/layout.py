"""Where a bed keeps its files, which ports it has, and its secret.

    etc/     configuration, written again by each start
    log/     one file for each process
    var/     the state of the services: databases, keys, volumes; what a seed contains
    run/     sockets, pids, the message queue; not kept
    faults/  control files of the drivers, see drivers/faults.py
    guests/  <server>/virtio-<first 20 characters of the volume>: links to loop devices
    plugs/   <server>: links to the sockets of guests, made by tests, see drivers/guest.py
"""
import json
import os
import pathlib
import random
import secrets
import socket

HERE = pathlib.Path(__file__).resolve().parent
HOST = "127.0.0.1"
# Services that clients reach through the fault proxy, and those that only other services call.
FRONT = ("keystone", "cinder", "nova")
APIS = (*FRONT, "placement", "glance", "neutron", "metadata")
PORTS = (*APIS, *(f"{name}-front" for name in FRONT),
         "mariadb", "rabbitmq", "rabbitmq-distribution", "epmd", "proxy")
# Under the range from which Linux takes the ports of outgoing connections (ip(7)).
PORT_MIN, PORT_MAX = 20000, 32000


def write_private(path, text):
    """Replaces a file in one step; only its owner can read it."""
    path = pathlib.Path(path)
    new = path.with_name(path.name + ".new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)


def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_ports():
    """{name: port}, neighbours that no process listens on."""
    for _ in range(100):
        first = random.randrange(PORT_MIN, PORT_MAX - len(PORTS))
        ports = dict(zip(PORTS, range(first, first + len(PORTS))))
        if all(map(is_free, ports.values())):
            return ports
    raise SystemExit(f"found no {len(PORTS)} free ports from {PORT_MIN} to {PORT_MAX}")


class Layout:
    """Paths and addresses of one bed."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.etc, self.log, self.var, self.run, self.faults, self.guests = (
            self.root / name for name in ("etc", "log", "var", "run", "faults", "guests"))
        self.mark = self.root / ".belay-openstack"
        self.ports = {}
        # Where clients reach the fault proxy. Services call each other on the loopback interface.
        self.address = HOST
        self.secret = ""
        self.venv = None

    def claim(self):
        """Makes the directory a bed's own, which may be deleted."""
        if self.root.exists() and any(self.root.iterdir()) and not self.mark.exists():
            raise SystemExit(f"{self.root} is not empty, and no bed")
        self.root.mkdir(parents=True, exist_ok=True)
        # The services run as root and obey any process that has the secret.
        self.root.chmod(0o700)
        self.mark.touch()

    def make(self, venv):
        """Creates the directories; keeps secret and ports of an earlier start if it can."""
        for directory in (self.etc, self.log, self.var, self.run, self.faults, self.guests):
            directory.mkdir(exist_ok=True)
        secret = self.var / "secret"
        if not secret.exists():
            write_private(secret, secrets.token_hex(16))
        self.secret = secret.read_text()
        self.venv = pathlib.Path(venv)
        ports = self.root / "ports.json"
        if ports.exists():
            self.ports = json.loads(ports.read_text())
        if set(self.ports) != set(PORTS) or not all(map(is_free, self.ports.values())):
            self.ports = free_ports()
        ports.write_text(json.dumps(self.ports, indent=1))
        (self.root / "venv").write_text(str(self.venv))
        (self.root / "address").write_text(self.address)

    def load(self):
        """Reads what `make` wrote."""
        try:
            self.ports = json.loads((self.root / "ports.json").read_text())
            self.venv = pathlib.Path((self.root / "venv").read_text())
            self.address = (self.root / "address").read_text()
            self.secret = (self.var / "secret").read_text()
        except FileNotFoundError:
            raise SystemExit(f"there is no bed in {self.root}; please run: bed.py up") from None
        return self

    def url(self, name, path=""):
        """Address of an API; `cinder-front` is Cinder behind the fault proxy."""
        host = self.address if name.endswith("-front") else HOST
        return f"http://{host}:{self.ports[name]}{path}"

    def program(self, name):
        return str(self.venv / "bin" / name)

    def database(self, name):
        return (f"mysql+pymysql://root:{self.secret}@{HOST}:{self.ports['mariadb']}/{name}"
                "?charset=utf8mb3")

    def queue(self):
        return f"rabbit://belay:{self.secret}@{HOST}:{self.ports['rabbitmq']}/"

    def environment(self):
        """Environment of every process of the bed."""
        path = [self.run / "shim", self.venv / "bin", os.environ["PATH"]]
        return dict(
            os.environ, PATH=":".join(map(str, path)), PYTHONPATH=str(HERE / "drivers"),
            PYTHONWARNINGS="ignore", PYTHONDONTWRITEBYTECODE="1", BELAY_BED=str(self.root),
            OS_KEYSTONE_CONFIG_DIR=str(self.etc), OS_KEYSTONE_CONFIG_FILES="keystone.conf",
            OS_PLACEMENT_CONFIG_DIR=str(self.etc / "placement"),
            OS_GLANCE_CONFIG_DIR=str(self.etc / "glance"),
            OS_NEUTRON_CONFIG_DIR=str(self.etc), OS_NEUTRON_CONFIG_FILES="neutron.conf",
            OS_NOVA_CONFIG_DIR=str(self.etc / "nova"))
