#!/usr/bin/env bash
# unprivileged.sh PROGRAM ARGUMENT...: runs a test program as a user without privileges, with no
# block device in /dev, so that a fault in it cannot affect this machine.
set -euo pipefail

# As root, first enter a private mount namespace.
if [ "$(id -u)" = 0 ] && [ "${BELAY_UNPRIVILEGED:-}" != 1 ]; then
    BELAY_UNPRIVILEGED=1 exec unshare --mount --propagation private "$0" "$@"
fi
unset BELAY_UNPRIVILEGED
[ "$(id -u)" = 0 ] || exec "$@"

# Create the new /dev at a directory that this namespace does not need.
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
# A mutant may write without end, so limit the size. In memory, a sync takes no time.
mount -t tmpfs -o mode=1777,size=2g tmpfs /tmp
export TMPDIR=/tmp
ulimit -v $((8 << 20))
exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --inh-caps=-all \
    --bounding-set=-all "$@"
