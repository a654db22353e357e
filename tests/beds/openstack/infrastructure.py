"""The database server and the message queue under OpenStack, and the schemas of all services."""
import base64
import concurrent.futures
import os
import shutil

import content
from api import await_port
from config import REGION
from layout import HOST, write_private

DATABASES = ("keystone", "placement", "glance", "neutron", "cinder",
             "nova_api", "nova_cell0", "nova_cell1")
# Nova puts in what its own configuration has, so that a seed fits other ports and secrets.
CELL_DATABASE = "{scheme}://{username}:{password}@{hostname}:{port}/%s?{query}"
CELL_QUEUE = "{scheme}://{username}:{password}@{hostname}:{port}/"


def start_database(layout, processes):
    """Starts MariaDB; makes its files if there are none."""
    data = layout.var / "mariadb"
    statements = [f"ALTER USER root@localhost IDENTIFIED BY '{layout.secret}'",
                  f"CREATE OR REPLACE USER root@'{HOST}' IDENTIFIED BY '{layout.secret}'",
                  f"GRANT ALL ON *.* TO root@'{HOST}' WITH GRANT OPTION"]
    if data.exists():
        statements += new_addresses(layout)
    else:
        part = data.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        processes.run("mariadb-install-db", "--no-defaults", f"--datadir={part}", "--user=root",
                      "--auth-root-authentication-method=normal", "--skip-test-db")
        part.rename(data)
        statements += [f"CREATE DATABASE {name} CHARACTER SET utf8mb3" for name in DATABASES]
    # The server executes it before it accepts connections; one statement on a line.
    script = layout.run / "start.sql"
    write_private(script, ";\n".join(statements) + ";\n")
    processes.start(
        "mariadb", "mariadbd", "--no-defaults", f"--datadir={data}", "--user=root",
        f"--port={layout.ports['mariadb']}", f"--bind-address={HOST}",
        f"--socket={layout.run}/mariadb", f"--pid-file={layout.run}/mariadb.pid",
        f"--init-file={script}", "--skip-name-resolve", "--character-set-server=utf8mb3",
        "--max-connections=500", "--innodb-buffer-pool-size=128M", "--innodb-log-file-size=16M",
        # 900 statements of the schemas would wait for the disk; a power cut is not tested here.
        "--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=0", "--sync-frm=0", "--sync-binlog=0")


def new_addresses(layout):
    """Statements that replace the addresses in kept state: ports and directories change."""
    statements = [
        "UPDATE keystone.endpoint e JOIN keystone.service s ON e.service_id = s.id"
        f" SET e.url = '{url}' WHERE s.type = '{kind}' AND e.interface = '{interface}'"
        for kind, interface, url in content.endpoints(layout)]
    images = layout.var / "glance/images"
    return [*statements,
            f"UPDATE glance.image_locations SET value = CONCAT('file://{images}/', image_id)"]


def start_queue(layout, processes, keep=False):
    """Starts RabbitMQ, with the queues of the last run only if `keep`."""
    home = layout.run / "rabbitmq"
    if not keep:
        shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700, exist_ok=True)
    write_private(home / "rabbitmq.conf", "\n".join((
        f"listeners.tcp.default = {HOST}:{layout.ports['rabbitmq']}",
        "default_user = belay", f"default_pass = {layout.secret}",
        "log.console = true", "log.file = false",
        "vm_memory_high_watermark.absolute = 600MB", "disk_free_limit.absolute = 50MB")) + "\n")
    (home / "enabled_plugins").write_text("[].\n")
    # Erlang would start one that outlives it.
    if not processes.is_running("epmd"):
        processes.start("epmd", "epmd", "-port", layout.ports["epmd"], "-address", HOST)
    await_port(layout.ports["epmd"], 30)
    # The program of that name in the PATH would change to another user.
    processes.start("rabbitmq", "/usr/lib/rabbitmq/bin/rabbitmq-server", env={
        "HOME": str(home), "RABBITMQ_NODENAME": "belay@localhost",
        "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf", "RABBITMQ_MNESIA_BASE": str(home),
        "RABBITMQ_LOG_BASE": str(layout.log), "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": f"{home}/pid",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
        "RABBITMQ_DIST_PORT": str(layout.ports["rabbitmq-distribution"]),
        "ERL_EPMD_ADDRESS": HOST, "ERL_EPMD_PORT": str(layout.ports["epmd"]),
        # One scheduler that does not spin: the services need the processors.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS":
            "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none"})


def make_keys(directory):
    """A repository of Fernet keys: 1 signs, 0 is the next. keystone-manage would take 8 s."""
    directory.mkdir(mode=0o700)
    for name in ("0", "1"):
        write_private(directory / name, base64.urlsafe_b64encode(os.urandom(32)).decode())


def make_schemas(layout, processes, start_keystone, log):
    """Makes the tables of all services, three at a time, and starts Keystone as soon as it can."""
    def manage(program, *arguments, env=None):
        processes.run(layout.program(program), *arguments, env=env)
        log(f"{program} {arguments[2]}{' ' + arguments[3] if len(arguments) > 3 else ''}")

    def keystone():
        options = ("--config-file", layout.etc / "keystone.conf")
        make_keys(layout.var / "keystone/fernet")
        make_keys(layout.var / "keystone/credential")
        manage("keystone-manage", *options, "db_sync")
        manage("keystone-manage", *options, "bootstrap", env={
            "OS_BOOTSTRAP_PASSWORD": layout.secret, "OS_BOOTSTRAP_REGION_ID": REGION,
            "OS_BOOTSTRAP_PUBLIC_URL": layout.url("keystone-front", "/v3"),
            "OS_BOOTSTRAP_INTERNAL_URL": layout.url("keystone", "/v3"),
            "OS_BOOTSTRAP_ADMIN_URL": layout.url("keystone", "/v3")})
        start_keystone()

    def nova():
        options = ("--config-dir", layout.etc / "nova")
        manage("nova-manage", *options, "api_db", "sync")
        manage("nova-manage", *options, "cell_v2", "map_cell0",
               "--database_connection", CELL_DATABASE % "nova_cell0")
        manage("nova-manage", *options, "db", "sync")
        manage("nova-manage", *options, "cell_v2", "create_cell", "--name", "cell1",
               "--database_connection", CELL_DATABASE % "nova_cell1",
               "--transport-url", CELL_QUEUE)

    def small():
        manage("placement-manage", "--config-dir", layout.etc / "placement", "db", "sync")
        manage("glance-manage", "--config-dir", layout.etc / "glance", "db_sync")

    def cinder():
        manage("cinder-manage", "--config-file", layout.etc / "cinder.conf", "db", "sync")

    def neutron():
        manage("neutron-db-manage", "--config-file", layout.etc / "neutron.conf",
               "upgrade", "heads")

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for made in [pool.submit(make) for make in (keystone, neutron, nova, cinder, small)]:
            made.result()
