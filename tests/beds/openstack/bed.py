#!/usr/bin/env python3
"""Keystone, Cinder and Nova on the loopback interface, for tests. Needs root, for loop devices.

    bed.py [--state DIR] up [--address IP]        start everything; keeps the state that DIR has
    bed.py [--state DIR] down                     stop everything; the state stays
    bed.py [--state DIR] remove                   stop everything, and delete DIR
    bed.py [--state DIR] kill|freeze|thaw NAME    SIGKILL, SIGSTOP, SIGCONT
    bed.py [--state DIR] start NAME [--token-seconds N]
    bed.py [--state DIR] status                   one line per process; fails unless all run
    bed.py [--state DIR] memory                   memory and CPU time of each process
"""
import argparse
import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import content
import infrastructure
import seed
from api import Refused, Session, await_port
from config import ZONES, Config, daemon, wsgi
from layout import APIS, HERE, HOST, Layout
from processes import Processes

sys.path.append(str(HERE / "drivers"))
import loops

CORE = ("keystone", "placement", "glance", "neutron", "cinder", "nova")
DAEMONS = ("cinder-scheduler", "cinder-volume", "nova-conductor", "nova-scheduler",
           *(f"nova-compute-{zone}" for zone in ZONES))
# Not started by `up`: each costs 90 MiB and seconds.
EXTRAS = ("metadata", "cinder-backup")
INFRASTRUCTURE = ("mariadb", "epmd", "rabbitmq", "proxy")
# Their truth is in the database, and a crash must not matter.
GRACE_SECONDS = 3
DATABASE_GRACE_SECONDS = 60
READY_SECONDS = 600
# With a few seconds no service would get through its own start.
TOKEN_SECONDS = 3600


class Bed:
    """One cloud in one directory."""

    def __init__(self, state):
        self.layout = Layout(state)
        self.processes = Processes(self.layout)
        self.began = time.monotonic()

    def log(self, text):
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", file=sys.stderr, flush=True)

    def start(self, name):
        """Starts one process."""
        layout = self.layout
        if name == "mariadb":
            infrastructure.start_database(layout, self.processes)
        elif name == "rabbitmq":
            infrastructure.start_queue(layout, self.processes, keep=True)
        elif name == "proxy":
            fronts = [f"{front}={layout.ports[f'{front}-front']}:{layout.ports[front]}"
                      for front in ("keystone", "cinder", "nova")]
            self.processes.start("proxy", sys.executable, HERE / "proxy.py", "--log",
                                 layout.log / "requests.jsonl", "--address", layout.address,
                                 layout.ports["proxy"], *fronts)
        elif name in APIS:
            self.processes.start(name, *wsgi(layout, name))
        elif name in (*DAEMONS, "cinder-backup"):
            self.processes.start(name, *daemon(layout, name))
        else:
            raise SystemExit(f"no process is called {name}; there are: "
                             + " ".join((*INFRASTRUCTURE, *CORE, *DAEMONS, *EXTRAS)))

    def start_and_await(self, name):
        """Starts one process; waits for an API until it listens, for backups until they work."""
        self.start(name)
        if name in self.layout.ports:
            await_port(self.layout.ports[name], READY_SECONDS)
        end = time.monotonic() + READY_SECONDS
        while name == "cinder-backup" and not self.is_reporting(name):
            if time.monotonic() > end:
                raise SystemExit(f"not up: {name}; see {self.layout.log}")
            time.sleep(0.5)

    def is_reporting(self, binary):
        """Whether such a daemon of Cinder has reported lately."""
        listed = Session(self.layout).call("cinder", "GET", "/os-services")["services"]
        return any(entry["binary"] == binary and entry["state"] == "up" for entry in listed)

    def refuse_if_running(self):
        if any(map(self.processes.is_running, self.processes.all())):
            raise SystemExit(f"a bed runs in {self.layout.root} already")

    def up(self, venv, address):
        self.layout.address = address
        file = seed.path()
        kept = (self.layout.var / "content.json").exists()
        if not kept:
            shutil.rmtree(self.layout.var, ignore_errors=True)
            kept = seed.unpack(self.layout.root, file)
            self.log(f"unpacked {file.name}" if kept else "no seed: making all schemas")
        self.layout.make(venv)
        self.configure(TOKEN_SECONDS)
        for name in ("proxy", "mariadb"):
            self.start(name)
        infrastructure.start_queue(self.layout, self.processes)
        await_port(self.layout.ports["mariadb"], READY_SECONDS)
        self.log("the database server is up")
        if kept:
            self.start("keystone")
        else:
            infrastructure.make_schemas(self.layout, self.processes,
                                        lambda: self.start("keystone"), self.log)
            await_port(self.layout.ports["keystone"], READY_SECONDS)
            content.make_identity(self.layout)
            self.log("users and catalog are made")
        self.start_services()
        if not kept:
            content.make_content(self.layout)
            self.log("types, zones and image are made")
            self.save(file)
        content.describe(self.layout)
        self.log("ready")

    def configure(self, token_seconds):
        Config(self.layout, token_seconds).write()

    def start_services(self):
        await_port(self.layout.ports["rabbitmq"], READY_SECONDS)
        for name in CORE[1:]:
            self.start(name)
        # uWSGI listens before it has loaded a service, and requests wait for it.
        for name in CORE:
            await_port(self.layout.ports[name], READY_SECONDS)
        for name in DAEMONS:
            self.start(name)
        # Neutron wires its models at the first query; if that is a list of ports, all later ones
        # fail.
        Session(self.layout).call("neutron", "GET", "/networks")
        self.await_reports()

    def await_reports(self):
        end = time.monotonic() + READY_SECONDS
        while missing := self.not_reporting():
            if time.monotonic() > end:
                raise SystemExit(f"not up: {' '.join(missing)}; see {self.layout.log}")
            time.sleep(0.5)
        self.log("all services are up")

    def not_reporting(self):
        """Names of daemons whose last report is too old, or that have ended."""
        up = set()
        try:
            # Again each time: a token may last for seconds only.
            admin = Session(self.layout)
            for service in ("cinder", "nova"):
                listed = admin.call(service, "GET", "/os-services")["services"]
                up |= {(entry["binary"], entry["host"]) for entry in listed
                       if entry["state"] == "up"}
        except (Refused, OSError):
            return ["cinder", "nova"]
        wanted = {"cinder-scheduler": ("cinder-scheduler", "ctl"),
                  **{f"cinder-volume {zone}": ("cinder-volume", f"ctl@file-{zone}")
                     for zone in ZONES},
                  **{f"nova-compute-{zone}": ("nova-compute", f"node-{zone}") for zone in ZONES}}
        missing = [name for name, entry in wanted.items() if entry not in up]
        missing += [binary for binary in ("nova-conductor", "nova-scheduler")
                    if binary not in {name for name, _ in up}]
        return missing + [name for name in DAEMONS if not self.processes.is_running(name)]

    def save(self, file):
        """Packs a seed. The services connect again by themselves."""
        self.processes.stop(["mariadb"], DATABASE_GRACE_SECONDS)
        seed.pack(self.layout, file)
        self.start("mariadb")
        await_port(self.layout.ports["mariadb"], READY_SECONDS)
        self.log(f"packed {file.name}, {file.stat().st_size >> 20} MiB")
        self.await_reports()

    def down(self):
        if not self.layout.root.exists():
            return
        running = list(self.processes.all())
        self.processes.stop([name for name in running if name not in INFRASTRUCTURE],
                            GRACE_SECONDS)
        self.processes.stop(["rabbitmq", "epmd", "proxy"], GRACE_SECONDS)
        self.processes.stop(["mariadb"], DATABASE_GRACE_SECONDS)
        (self.layout.root / "bed.json").unlink(missing_ok=True)
        os.environ["BELAY_BED"] = str(self.layout.root)
        for device in loops.bound():
            subprocess.run(["losetup", "--detach", device], check=True)
        shutil.rmtree(self.layout.guests, ignore_errors=True)

    def remove(self):
        if not self.layout.root.exists():
            return
        if not self.layout.mark.exists():
            raise SystemExit(f"{self.layout.root} is no bed; it is left as it is")
        self.down()
        shutil.rmtree(self.layout.root)

    def signal(self, name, number):
        if not self.processes.signal(name, number):
            raise SystemExit(f"{name} does not run")

    def status(self):
        states = {name: self.processes.state(name) for name in self.processes.all()}
        for name, state in states.items():
            print(f"{name:20} {state}")
        return 0 if states and set(states.values()) == {"running"} else 1

    def memory(self):
        rows = sorted(self.processes.memory(), key=lambda row: -row[1])
        rows.append(("total", sum(row[1] for row in rows), sum(row[2] for row in rows)))
        for name, kib, cpu in rows:
            print(f"{name:20} {kib / 1024:7.0f} MiB {cpu:7.1f} s")


def environment():
    """The virtual environment of the services; installs it if need be."""
    script = HERE.parents[1] / "setup/openstack.sh"
    return subprocess.run([script], check=True, stdout=subprocess.PIPE,
                          text=True).stdout.strip()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=pathlib.Path, default=seed.cache() / "state",
                        help="directory of the bed (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "down", "remove", "kill", "freeze", "thaw", "start", "status", "memory"):
        command = commands.add_parser(name)
        if name in ("kill", "freeze", "thaw", "start"):
            command.add_argument("name")
        if name == "up":
            command.add_argument("--address", default=HOST,
                                 help="of the public endpoints (default: %(default)s)")
        if name == "start":
            command.add_argument("--token-seconds", type=int, default=TOKEN_SECONDS,
                                 help="of Keystone: how long a token is valid")
    return parser.parse_args()


def main():
    options = arguments()
    if os.getuid() != 0:
        raise SystemExit("please run it as root: disks are loop devices")
    # losetup and mariadbd are not in everybody's PATH.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    # Ended by a signal, it cleans up as after an error.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    bed = Bed(options.state)
    if options.command == "up":
        venv = environment()
        bed.layout.claim()
        bed.refuse_if_running()
        try:
            bed.up(venv, options.address)
        except BaseException:
            bed.down()
            raise
        return 0
    if options.command == "remove":
        return bed.remove()
    bed.layout.load()
    if options.command in ("kill", "freeze", "thaw"):
        number = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "thaw": signal.SIGCONT}
        return bed.signal(options.name, number[options.command])
    if options.command == "start":
        if options.name == "keystone":
            bed.configure(options.token_seconds)
        return bed.start_and_await(options.name)
    return getattr(bed, options.command)()


if __name__ == "__main__":
    sys.exit(main())
