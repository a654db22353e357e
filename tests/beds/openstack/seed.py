"""The state of a finished cloud as an archive in the cache, so that the next bed is up sooner.

It has databases, keys and the secret, so only its owner can read it. Its name is a hash of
everything that it was made from: another version of the services or of the bed makes another.
"""
import hashlib
import os
import pathlib
import subprocess
import tarfile
import tempfile
import time

from layout import HERE

SEEDS_MAX = 2


def cache():
    """Where seeds and virtual environments are; as in setup/env.sh."""
    root = os.environ.get("BELAY_CACHE", pathlib.Path.home() / ".cache/belay")
    return pathlib.Path(root) / "openstack"


def path():
    """Where the seed of this bed is, or would be."""
    digest = hashlib.sha256()
    version = subprocess.run(["mariadbd", "--no-defaults", "--version"], check=True,
                             capture_output=True).stdout
    digest.update(version)
    # What a client or a driver does leaves no trace in the state.
    for name in ("requirements.txt", "config.py", "content.py", "infrastructure.py", "layout.py"):
        digest.update((HERE / name).read_bytes())
    return cache() / f"seed-{digest.hexdigest()[:12]}.tar.gz"


def pack(layout, file):
    """Writes the seed. The database server must be stopped."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix="seed.", delete=False) as new:
        # NamedTemporaryFile makes it for its owner only.
        with tarfile.open(fileobj=new, mode="w:gz", compresslevel=1) as archive:
            archive.add(layout.var, arcname="var")
    os.replace(new.name, file)
    others = sorted(file.parent.glob("seed-*.tar.gz"), key=lambda entry: entry.stat().st_mtime)
    for old in others[:-SEEDS_MAX]:
        old.unlink()


def unpack(root, file):
    """Makes var/ of a bed; False if there is no seed."""
    if not file.exists():
        return False
    with tarfile.open(file) as archive:
        archive.extractall(root)
    # The most recently used ones are kept.
    now = time.time()
    os.utime(file, (now, now))
    return True
