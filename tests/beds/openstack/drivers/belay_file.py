"""A Cinder volume driver for tests: each volume is a sparse file.

It runs in the real cinder-volume, so API, scheduler, quota, states and attachment records are
Cinder's own. Faults: see faults.py, by the names of the methods below.
"""
import contextlib
import os
import subprocess

import faults
from cinder import exception
from cinder import interface
from cinder.volume import configuration
from cinder.volume import driver
from oslo_config import cfg

OPTIONS = [
    cfg.StrOpt("belay_directory", help="Directory of the volumes' files."),
    cfg.IntOpt("belay_capacity_gib", default=20000, help="Capacity that is reported, in GiB."),
]
cfg.CONF.register_opts(OPTIONS, group=configuration.SHARED_CONF_GROUP)
GIB = 1 << 30


@interface.volumedriver
class FileDriver(driver.VolumeDriver):
    """Volumes and snapshots as files; a copy shares blocks where the filesystem can."""

    VERSION = "1.0"
    CI_WIKI_NAME = "none"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.configuration.append_config_values(OPTIONS)
        self.directory = self.configuration.belay_directory

    @classmethod
    def get_driver_options(cls):
        return OPTIONS

    def _path(self, name):
        return os.path.join(self.directory, name)

    @staticmethod
    def _check(operation):
        try:
            faults.check(operation)
        except faults.Ordered as fault:
            raise exception.VolumeBackendAPIException(data=str(fault)) from fault

    def _copy(self, source, target):
        subprocess.run(["cp", "--reflink=auto", "--sparse=always", self._path(source),
                        self._path(target)], check=True)

    def _grow(self, name, gib):
        with open(self._path(name), "ab") as file:
            if file.seek(0, os.SEEK_END) < gib * GIB:
                file.truncate(gib * GIB)

    def _remove(self, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def do_setup(self, context):
        os.makedirs(self.directory, exist_ok=True)

    def check_for_setup_error(self):
        pass

    def _update_volume_stats(self):
        total = self.configuration.belay_capacity_gib
        with os.scandir(self.directory) as entries:
            used = sum(entry.stat().st_size for entry in entries) // GIB
        self._stats = {
            "volume_backend_name": self.configuration.safe_get("volume_backend_name"),
            "vendor_name": "Belay", "driver_version": self.VERSION, "storage_protocol": "local",
            "total_capacity_gb": total, "free_capacity_gb": total - used,
            "provisioned_capacity_gb": used, "reserved_percentage": 0,
            "max_over_subscription_ratio": "1.0", "thin_provisioning_support": False,
            "thick_provisioning_support": True, "multiattach": True,
            "online_extend_support": True, "QoS_support": False,
        }

    def create_volume(self, volume):
        self._check("create_volume")
        self._grow(volume.name, volume.size)

    def delete_volume(self, volume):
        self._check("delete_volume")
        self._remove(volume.name)

    def extend_volume(self, volume, new_size):
        self._check("extend_volume")
        self._grow(volume.name, new_size)

    def create_cloned_volume(self, volume, src_vref):
        self._check("create_cloned_volume")
        self._copy(src_vref.name, volume.name)
        self._grow(volume.name, volume.size)

    def create_snapshot(self, snapshot):
        self._check("create_snapshot")
        self._copy(snapshot.volume_name, snapshot.name)

    def delete_snapshot(self, snapshot):
        self._check("delete_snapshot")
        self._remove(snapshot.name)

    def create_volume_from_snapshot(self, volume, snapshot):
        self._check("create_volume_from_snapshot")
        self._copy(snapshot.name, volume.name)
        self._grow(volume.name, volume.size)

    def revert_to_snapshot(self, context, volume, snapshot):
        self._copy(snapshot.name, volume.name)
        self._grow(volume.name, volume.size)

    def retype(self, context, volume, new_type, diff, host):
        return volume.host == host["host"], None

    def ensure_export(self, context, volume):
        pass

    def create_export(self, context, volume, connector):
        pass

    def remove_export(self, context, volume):
        pass

    def initialize_connection(self, volume, connector):
        self._check("initialize_connection")
        return {"driver_volume_type": "local", "data": {"device_path": self._path(volume.name)}}

    def terminate_connection(self, volume, connector, **kwargs):
        self._check("terminate_connection")
