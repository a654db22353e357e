#!/usr/bin/env bash
# Becomes a systemd that runs only Belay's packages, on an overlay of this machine's root. Started
# by check.sh in a separate mount namespace.
#
#   boot.sh WORK PACKAGES CGROUP
set -euo pipefail
work=$1 packages=$2 cgroup=$3
root=$work/overlay

# Creates a separate control group, which is the root group for the systemd in it.
own_cgroup() {
    mount -t cgroup2 cgroup2 "$work/cgroup"
    mkdir "$work/cgroup/$cgroup"
    echo $$ >"$work/cgroup/$cgroup/cgroup.procs"
}

overlay() {
    mkdir "$root" "$work/writes"
    mount -t tmpfs tmpfs "$work/writes"
    mkdir "$work/writes/upper" "$work/writes/work"
    mount -t overlay overlay "$root" \
        -o "lowerdir=/,upperdir=$work/writes/upper,workdir=$work/writes/work"
}

# Keeps only this machine's units that a boot cannot do without, and the journal.
few_units() {
    local units=$root/usr/lib/systemd/system
    find "$units" -mindepth 1 ! -name basic.target ! -name sysinit.target ! -name shutdown.target \
        ! -name local-fs.target ! -name multi-user.target ! -name 'systemd-journald*' -delete \
        2>/dev/null || true
    rm -rf "$root"/etc/systemd/system/* "$root"/run "$root"/usr/lib/systemd/system-generators/*
    mkdir -p "$root/run" "$root/var/lib/belay"
    printf '[Unit]\nRequires=multi-user.target\nAfter=multi-user.target\n' \
        >"$units/belay-test.target"
}

install_packages() {
    mkdir -p "$root/packages"
    cp "$packages"/*.deb "$root/packages/"
    chroot "$root" sh -c 'dpkg --install /packages/*.deb'
}

# Mounts the API filesystems, without write access to the kernel settings of the machine.
api_filesystems() {
    mount -t sysfs -o ro sysfs "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mount -t tmpfs -o mode=700 tmpfs "$root/var/lib/belay"
}

if [ "${4:-}" != inside ]; then
    own_cgroup
    overlay
    few_units
    install_packages
    api_filesystems
    exec unshare --mount --uts --ipc --net --pid --cgroup --fork --kill-child \
        --propagation private "$0" "$work" "$packages" "$cgroup" inside
fi
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
# Write the PID as seen from outside, so that processes outside can enter: this /proc still belongs
# to the outside.
read -r pid _ </proc/self/stat
echo "$pid" >"$work/pid"
cd "$root"
pivot_root . mnt
umount --lazy /mnt
mount --make-rshared /
container=other exec /usr/lib/systemd/systemd --system --unit=belay-test.target \
    --log-target=console --show-status=no
