"""Nova's fake hypervisor, with one thing real: an attached volume is a disk.

It is a virtio disk of a User-mode Linux guest, if a test has one for the server (guest.py). Else it
is a loop device: the link guests/<server>/virtio-<first 20 characters of the volume> names it, as a
guest on KVM sees a virtio disk. Faults: see faults.py; attach_volume, detach_volume.
"""
import os
import subprocess

import faults
import guest
import loops
from nova import exception
from nova.virt import fake


class LoopDriver(fake.FakeDriverWithoutFakeNodes):
    """The fake driver without its fake nodes: it can be restarted, plain FakeDriver cannot."""

    @staticmethod
    def _directory(instance):
        return os.path.join(os.environ["BELAY_BED"], "guests", instance.uuid)

    @staticmethod
    def _volume(connection):
        return connection.get("serial") or connection["data"]["volume_id"]

    def _link(self, connection, instance):
        name = "virtio-" + self._volume(connection)[:20]
        return os.path.join(self._directory(instance), name)

    @staticmethod
    def _check(operation):
        try:
            faults.check(operation)
        except faults.Ordered as fault:
            raise exception.InternalError(str(fault)) from fault

    def attach_volume(self, context, connection_info, instance, mountpoint, **kwargs):
        self._check("attach_volume")
        super().attach_volume(context, connection_info, instance, mountpoint, **kwargs)
        path = connection_info["data"]["device_path"]
        if guest.exists(instance.uuid):
            return guest.ask("plug", instance.uuid, self._volume(connection_info), path)
        link = self._link(connection_info, instance)
        if not os.path.islink(link):
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(loops.bind(path), link)

    def detach_volume(self, context, connection_info, instance, mountpoint, **kwargs):
        self._check("detach_volume")
        if guest.exists(instance.uuid):
            guest.ask("unplug", instance.uuid, self._volume(connection_info))
        else:
            loops.release(self._link(connection_info, instance))
        super().detach_volume(context, connection_info, instance, mountpoint, **kwargs)

    def extend_volume(self, context, connection_info, instance, requested_size):
        self._check("extend_guest_volume")
        if guest.exists(instance.uuid):
            volume = self._volume(connection_info)
            return guest.ask("grow", instance.uuid, volume, str(requested_size))
        device = loops.device(self._link(connection_info, instance))
        if device:
            subprocess.run(["losetup", "--set-capacity", device], check=True)

    def destroy(self, context, instance, *args, **kwargs):
        # Nova detaches no volume of a server that it deletes: the disks go with the guest.
        directory = self._directory(instance)
        if os.path.isdir(directory):
            for name in os.listdir(directory):
                loops.release(os.path.join(directory, name))
            os.rmdir(directory)
        super().destroy(context, instance, *args, **kwargs)
