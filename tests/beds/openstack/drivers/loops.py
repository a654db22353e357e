"""Loop devices over the volumes of this bed, and never any other.

Their numbers are shared by the whole machine: a device that a link names may belong to another
program by now, so its backing file is compared before anything is done to it.
"""
import contextlib
import os
import subprocess


def volumes():
    """Directory that all volumes of the bed are in."""
    return os.path.realpath(os.path.join(os.environ["BELAY_BED"], "var")) + "/"


def bound():
    """{device: file} of the loop devices over files of this bed, deleted files included."""
    lines = subprocess.run(["losetup", "--list", "--noheadings", "--raw", "--output",
                            "NAME,BACK-FILE"], check=True, capture_output=True, text=True).stdout
    pairs = (line.split(None, 1) for line in lines.splitlines())
    return {pair[0]: pair[1] for pair in pairs
            if len(pair) == 2 and pair[1].startswith(volumes())}


def bind(path):
    """Binds a free device to a volume, and returns its path."""
    path = os.path.realpath(path)
    if not path.startswith(volumes()):
        raise ValueError(f"{path} is no volume of this bed")
    return subprocess.run(["losetup", "--find", "--show", path], check=True,
                          capture_output=True, text=True).stdout.strip()


def device(link):
    """The device that a link names, if it is bound to a volume of this bed; else None."""
    with contextlib.suppress(OSError):
        target = os.readlink(link)
        return target if target in bound() else None
    return None


def release(link):
    """Unbinds the device that a link names, and removes the link."""
    target = device(link)
    if target:
        subprocess.run(["losetup", "--detach", target], check=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
