#!/bin/bash
# Process 1 of a guest. Its root is the machine's own, read-only, below an overlay in memory, so
# everything that the guest writes is lost when it ends. There is no service manager, but the real
# udevd.
#
# Options on the kernel's command line: belay.modules=DIRECTORY of the machine with the kernel's
# modules, belay.load=MODULE,... to load, and belay.name=NAME of the host.
#
# Then it runs commands from the first serial line: each line is a word and a script in base64. The
# response is the script's output, and a line with that word and the exit code.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C

# hostfs DIRECTORY POINT: mounts a directory of the machine. The option has a name since Linux 6.9.
hostfs() {
    mount -i -r -t hostfs -o "hostfs=$1" none "$2" 2>/dev/null ||
        mount -i -r -t hostfs -o "$1" none "$2"
}

settings() {
    local word
    for word in $(</proc/cmdline); do
        case $word in
            belay.modules=*) modules=${word#*=} ;;
            belay.load=*) load=${word#*=} ;;
            belay.name=*) name=${word#*=} ;;
        esac
    done
}

# The root becomes writable, and process 1 restarts in it.
overlay() {
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/{upper,work,root,modules}
    hostfs "$modules" /mnt/modules
    insmod "/mnt/modules/$(uname -r)/kernel/fs/overlayfs/overlay.ko"*
    umount /mnt/modules
    mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
    mkdir -p /mnt/root/{lib/modules,machine,.old}
    cd /mnt/root || exit 1
    pivot_root . .old
    OVERLAID=1 exec chroot . /bin/bash "$1"
}

surroundings() {
    umount -l /.old
    mount -t proc proc /proc
    mount -t sysfs sysfs /sys
    mount -t devtmpfs devtmpfs /dev
    ln -sf /proc/self/fd /dev/fd
    mkdir -p /dev/pts /dev/shm
    mount -t devpts devpts /dev/pts
    # The machine's own directories contain sockets and locks of its daemons.
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /tmp
    mkdir -p /run/lock /run/udev
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount --make-rshared /
    hostfs "$modules" /lib/modules
    # Mount all files of the machine, including those that the mounts above hide.
    hostfs / /machine
    ip link set lo up 2>/dev/null
    echo "${name:-guest}" >/proc/sys/kernel/hostname
}

devices() {
    local module
    for module in ${load//,/ }; do
        modprobe "$module"
    done
    /lib/systemd/systemd-udevd --daemon
    udevadm trigger --action=add --subsystem-match=block --subsystem-match=misc
    udevadm settle --timeout=20
}

serve() {
    local word script
    stty -F "$1" raw -echo
    exec 3<>"$1"
    # A serial line whose other end is already closed never reports a hang-up, so write to it first.
    echo "ready $(uname -r)" >&3 || return
    while read -r word script <&3; do
        base64 -d <<<"$script" >/run/script
        bash /run/script </dev/null >&3 2>&1 3>&-
        printf '\n%s %d\n' "$word" $? >&3
    done
}

mount -t proc proc /proc
settings
[ -n "$OVERLAID" ] || overlay "$0"
unset OVERLAID
surroundings
devices
serve /dev/ttyS0 &
channel=$!
# Process 1 reaps orphans, and powers off when the channel is closed.
while kill -0 "$channel" 2>/dev/null; do
    wait -n
done
echo o >/proc/sysrq-trigger
exec sleep 60
