#!/usr/bin/env bash
# unprivileged.sh PROGRAM ARGUMENT...: runs a test program as a user without privileges, and with no
# block device in its /dev, so that a fault in it reaches nothing of this machine.
set -euo pipefail

# As root, first in a private mount namespace.
if [ "$(id -u)" = 0 ] && [ "${BELAY_UNPRIVILEGED:-}" != 1 ]; then
    BELAY_UNPRIVILEGED=1 exec unshare --mount --propagation private "$0" "$@"
fi
unset BELAY_UNPRIVILEGED
[ "$(id -u)" = 0 ] || exec "$@"

# The new /dev is made where this namespace needs no other directory.
dev=/mnt
mount -t tmpfs -o mode=755,size=1m tmpfs "$dev"
for name in null zero full random urandom; do
    touch "$dev/$name"
    mount --bind "/dev/$name" "$dev/$name"
done
ln -s /proc/self/fd "$dev/fd"
ln -s fd/0 "$dev/stdin"
ln -s fd/1 "$dev/stdout"
ln -s fd/2 "$dev/stderr"
mkdir "$dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$dev/shm"
mount --move "$dev" /dev
# A mutant may write without end. In memory, a sync of a test takes no time.
mount -t tmpfs -o mode=1777,size=2g tmpfs /tmp
export TMPDIR=/tmp
ulimit -v $((8 << 20))
exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --inh-caps=-all \
    --bounding-set=-all "$@"
