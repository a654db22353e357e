"""Configuration files of all services, for the ports of this start.

Services call each other at the `internal` endpoints; the `public` ones, which clients find in the
catalog, are the fault proxy's.
"""
import os
import shutil

from layout import HERE, HOST, write_private

REGION = "RegionOne"
ZONES = ("a", "b")
USERS = ("placement", "glance", "neutron", "cinder", "nova")
# A service that has not reported for so long counts as down. The defaults are 10 and 60 s.
REPORT_SECONDS = 3
DOWN_SECONDS = 15


def ini(*parts):
    """Sections of oslo.config; later parts add to earlier ones."""
    sections = {}
    for part in parts:
        for name, options in part.items():
            sections.setdefault(name, {}).update(options)
    lines = []
    for name, options in sections.items():
        lines.append(f"[{name}]")
        # oslo.config replaces $words.
        lines += [f"{key} = {str(value).replace('$', '$$')}" for key, value in options.items()]
    return "\n".join(lines) + "\n"


class Config:
    """Writes etc/ of a bed."""

    def __init__(self, layout, token_seconds):
        self.layout, self.token_seconds = layout, token_seconds
        self.etc, self.var, self.share = layout.etc, layout.var, layout.venv / "etc"

    def write(self):
        """Writes all files, and makes the directories that they name."""
        for name in ("keystone", "glance/images", "cinder/backup", "cinder/volumes-a",
                     "cinder/volumes-b", "nova-a/instances", "nova-b/instances"):
            (self.var / name).mkdir(parents=True, exist_ok=True)
        for name in (*USERS, "shim"):
            (self.layout.run / name).mkdir(exist_ok=True)
        for name in ("keystone", "placement", "glance", "nova"):
            (self.etc / name).mkdir(exist_ok=True)
        self._shim()
        files = {
            "keystone.conf": self._keystone(), "placement/placement.conf": self._placement(),
            "glance/glance-api.conf": self._glance(), "neutron.conf": self._neutron(),
            "cinder.conf": self._cinder(), "nova/nova.conf": self._nova(),
            "rootwrap.conf": self._rootwrap(),
            **{f"nova-{zone}.conf": self._compute(zone) for zone in ZONES},
        }
        for name, text in files.items():
            write_private(self.etc / name, text)
        # Nova's API wants it in its configuration directory.
        shutil.copy(self.share / "nova/api-paste.ini", self.etc / "nova")

    def _shim(self):
        """os-brick and privsep call sudo, which would lose the PATH of the virtual environment."""
        sudo = self.layout.run / "shim/sudo"
        sudo.write_text('#!/bin/sh\nexec "$@"\n')
        sudo.chmod(0o755)

    def _login(self, user):
        return {"auth_type": "password", "auth_url": self.layout.url("keystone", "/v3"),
                "username": user, "password": self.layout.secret, "project_name": "service",
                "user_domain_name": "Default", "project_domain_name": "Default",
                "region_name": REGION}

    def _tokens(self, user):
        """How a service checks its callers' tokens."""
        return {"keystone_authtoken": {
            **self._login(user), "interface": "internal", "service_token_roles": "service",
            "service_token_roles_required": "true",
            "www_authenticate_uri": self.layout.url("keystone")}}

    def _worker(self, user):
        """Parts that Cinder, Neutron and Nova have in common."""
        state = self.layout.run / user
        return {
            "DEFAULT": {"transport_url": self.layout.queue(), "use_stderr": "true",
                        "state_path": state, "my_ip": HOST, "rpc_response_timeout": 30,
                        "report_interval": REPORT_SECONDS, "service_down_time": DOWN_SECONDS},
            "oslo_messaging_notifications": {"driver": "noop"},
            "oslo_concurrency": {"lock_path": state / "lock"},
            **self._tokens(user),
            # Cinder refuses to delete an attachment of Nova's without it (CVE-2023-2088).
            "service_user": {"send_service_user_token": "true", **self._login(user)},
        }

    def _keystone(self):
        keys = self.var / "keystone"
        return ini({
            "database": {"connection": self.layout.database("keystone")},
            "token": {"provider": "fernet", "expiration": self.token_seconds},
            "fernet_tokens": {"key_repository": keys / "fernet"},
            "fernet_receipts": {"key_repository": keys / "fernet"},
            "credential": {"key_repository": keys / "credential"},
            # A token costs 0.16 s without it, 0.013 s with it.
            "cache": {"enabled": "true", "backend": "dogpile.cache.memory"},
            # The default costs 0.3 s of CPU at each login.
            "identity": {"password_hash_rounds": 4},
        })

    def _placement(self):
        return ini({"api": {"auth_strategy": "keystone"},
                    "placement_database": {"connection": self.layout.database("placement")}},
                   self._tokens("placement"))

    def _glance(self):
        return ini({
            "DEFAULT": {"enabled_backends": "store:file", "use_keystone_limits": "false",
                        "use_stderr": "true"},
            "database": {"connection": self.layout.database("glance")},
            "glance_store": {"default_backend": "store"},
            "store": {"filesystem_store_datadir": self.var / "glance/images"},
            "paste_deploy": {"flavor": "keystone",
                             "config_file": self.share / "glance/glance-api-paste.ini"},
            "oslo_concurrency": {"lock_path": self.layout.run / "glance"},
        }, self._tokens("glance"))

    def _neutron(self):
        """Nova lists a server's ports even if it has none; no network is ever made."""
        return ini(self._worker("neutron"), {
            "DEFAULT": {"core_plugin": "ml2", "service_plugins": "",
                        "api_paste_config": self.share / "neutron/api-paste.ini",
                        "notify_nova_on_port_status_changes": "false",
                        "notify_nova_on_port_data_changes": "false"},
            "database": {"connection": self.layout.database("neutron")},
            "ml2": {"type_drivers": "local", "tenant_network_types": "local",
                    "mechanism_drivers": "", "extension_drivers": ""},
        })

    def _cinder(self):
        backends = {f"file-{zone}": {
            "volume_driver": "belay_file.FileDriver", "volume_backend_name": f"file-{zone}",
            "belay_directory": self.var / f"cinder/volumes-{zone}",
            "backend_availability_zone": f"az-{zone}"} for zone in ZONES}
        return ini(self._worker("cinder"), {
            "DEFAULT": {
                "auth_strategy": "keystone", "host": "ctl",
                "api_paste_config": self.share / "cinder/api-paste.ini",
                "resource_query_filters_file": self.share / "cinder/resource_filters.json",
                "rootwrap_config": self.etc / "rootwrap.conf",
                "enabled_backends": ",".join(backends), "default_volume_type": "file",
                "default_availability_zone": "az-a", "storage_availability_zone": "az-a",
                "glance_api_servers": self.layout.url("glance"),
                "backup_driver": "cinder.backup.drivers.posix.PosixBackupDriver",
                "backup_posix_path": self.var / "cinder/backup", "volume_clear": "none",
                "periodic_interval": 5},
            "database": {"connection": self.layout.database("cinder")},
            "coordination": {"backend_url": f"file://{self.layout.run}/cinder/coordination"},
            # Growing an attached volume notifies Nova, as an administrator.
            "nova": {"interface": "internal", **self._login("nova")},
        }, backends)

    def _nova(self):
        internal = {"valid_interfaces": "internal"}
        return ini(self._worker("nova"), {
            "DEFAULT": {"compute_driver": "belay_loop.LoopDriver", "ram_allocation_ratio": 50,
                        "initial_cpu_allocation_ratio": 64, "instance_usage_audit": "false",
                        "metadata_workers": 1},
            "api": {"auth_strategy": "keystone"},
            "wsgi": {"api_paste_config": self.share / "nova/api-paste.ini"},
            "api_database": {"connection": self.layout.database("nova_api")},
            "database": {"connection": self.layout.database("nova_cell1")},
            "placement": {**internal, **self._login("placement")},
            "glance": {**internal, **self._login("nova")},
            "cinder": {"catalog_info": "volumev3::internalURL", **self._login("nova")},
            "neutron": {**internal, **self._login("neutron"),
                        "service_metadata_proxy": "true",
                        "metadata_proxy_shared_secret": self.layout.secret},
            "scheduler": {"discover_hosts_in_cells_interval": 5, "workers": 1},
            "conductor": {"workers": 1},
            "vnc": {"enabled": "false"},
        })

    def _compute(self, zone):
        """Read after nova.conf. Its state has the identity of the node, which must persist."""
        return ini({"DEFAULT": {"host": f"node-{zone}", "state_path": self.var / f"nova-{zone}"}})

    def _rootwrap(self):
        filters = f"{self.share}/cinder/rootwrap.d,{self.share}/os-brick/rootwrap.d"
        path = f"{self.layout.venv}/bin:{os.environ['PATH']}".replace(":", ",")
        return ini({"DEFAULT": {"filters_path": filters, "exec_dirs": path,
                                "use_syslog": "false"}})


def wsgi(layout, name):
    """The uWSGI command of an API."""
    module = {"keystone": "keystone.wsgi.api", "placement": "placement.wsgi.api",
              "glance": "glance.wsgi.api", "neutron": "neutron.wsgi.api",
              "cinder": "cinder.wsgi.api", "nova": "nova.wsgi.osapi_compute",
              "metadata": "nova.wsgi.metadata"}[name]
    command = [
        layout.program("uwsgi"), "--http-socket", f"{HOST}:{layout.ports[name]}",
        "--module", f"{module}:application", "--venv", layout.venv, "--threads", 4,
        "--enable-threads", "--lazy-apps", "--need-app", "--master", "--die-on-term",
        "--buffer-size", 65535, "--http-chunked-input", "--http-raw-body", "--thunder-lock",
        # It closes after each answer, so it must say so.
        "--add-header", "Connection: close"]
    if name == "cinder":
        command += ["--pyargv", f"--config-file {layout.etc}/cinder.conf"]
    return command


def daemon(layout, name):
    """The command of a service without an API."""
    if name.startswith("cinder"):
        return [layout.program(name), "--config-file", layout.etc / "cinder.conf"]
    if name.startswith("nova-compute"):
        # Nova's own program loads drivers only from its own package.
        return [layout.program("python"), HERE / "drivers/compute.py",
                "--config-file", layout.etc / "nova/nova.conf",
                "--config-file", layout.etc / f"nova-{name[-1]}.conf"]
    return [layout.program(name), "--config-file", layout.etc / "nova/nova.conf"]
