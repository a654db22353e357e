#!/usr/bin/env bash
# The part of check.sh that is process 1 in separate namespaces.
#
#   inside.sh WORK RULES
set -euo pipefail
[ $$ = 1 ] || { echo "inside.sh: is started by check.sh only" >&2; exit 64; }
work=$1 rules=$2
volume=vol-0123456789abcdef0123456789abcdef
directory=$work/volumes

wrong() {
    printf 'udev: %s\n' "$*" >&2
    tail -n 20 "$work/udevd.log" >&2
    exit 1
}

# Uses only the distribution's rules that name disks, join btrfs and start LVM: other devices of the
# machine also send events, and 60-block or 50-udev-default would change these devices.
private_rules() {
    local rule
    mkdir "$work/rules.d" "$work/links" "$directory"
    cp "$rules" "$work/rules.d/"
    for rule in 60-persistent-storage 64-btrfs 69-lvm 99-systemd; do
        cp "/usr/lib/udev/rules.d/$rule.rules" "$work/rules.d/"
    done
    # Set a mark instead of starting a program that would search the whole machine for volume
    # groups.
    sed -i 's|^IMPORT{program}=.*|ENV{TRIED_LVM}="1"|' "$work/rules.d/69-lvm.rules"
    grep -q TRIED_LVM "$work/rules.d/69-lvm.rules" || wrong "69-lvm.rules has changed"
    mount --bind "$work/rules.d" /usr/lib/udev/rules.d
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /etc/udev
}

# Creates a private /dev, since udevd writes links into /dev, which belongs to the whole machine.
private_dev() {
    mkdir "$work/dev"
    mount -t tmpfs -o mode=755 tmpfs "$work/dev"
    local node
    for node in null zero urandom loop-control btrfs-control; do
        [ ! -e "/dev/$node" ] || cp -a "/dev/$node" "$work/dev/"
    done
    mount --move "$work/dev" /dev
}

# Binds a loop device. The private /dev contains no node for it yet, and another program may take
# the free number.
attach() {
    local loop tries
    for ((tries = 0; tries < 20; tries++)); do
        loop=$(losetup --find)
        [ -e "$loop" ] || mknod "$loop" b 7 "${loop#/dev/loop}"
        losetup "$loop" "$1" 2>/dev/null && printf '%s\n' "$loop" && return
    done
    wrong "no loop device is available"
}

properties() {
    udevadm info --query property --name "$1"
}

has() {
    properties "$1" | grep -q "^$2$" || wrong "$3 ($1): $(properties "$1" | paste -s -d ' ')"
}

has_no() {
    ! properties "$1" | grep -q "^$2" || wrong "$3 ($1): $(properties "$1" | paste -s -d ' ')"
}

settle() {
    udevadm settle --timeout 60 || wrong "udevd has not settled in 60 s"
}

# Creates LVM data. pvcreate requires a device, and must inspect no other.
make_lvm() {
    local loop
    loop=$(attach "$1")
    LVM_SUPPRESS_FD_WARNINGS=1 pvcreate --quiet --config "
        devices { use_devicesfile=0 obtain_device_list_from_udev=0
            filter=[\"a|^$loop\$|\", \"r|.*|\"] }
        activation { udev_sync=0 udev_rules=0 }" "$loop" >/dev/null
    losetup --detach "$loop"
    settle
}

# content NAME FILE: creates content that a pod may have written.
content() {
    truncate --size 256M "$2"
    case $1 in
        ext4) mkfs.ext4 -q -L root "$2" ;;
        btrfs) mkfs.btrfs -q -L root "$2" >/dev/null ;;
        lvm) make_lvm "$2" ;;
    esac
}

try() {
    local kind=$1 acted_upon=$2 file loop
    file=$directory/other
    content "$kind" "$file"
    cp "$file" "$directory/$volume"

    loop=$(attach "$file")
    settle
    has "$loop" "$acted_upon" "the distribution's rules ignore $kind, so this proves nothing"
    # The kernel remembers a btrfs that was announced to it.
    [ "$kind" != btrfs ] || btrfs device scan --forget "$loop" >/dev/null
    losetup --detach "$loop"
    settle

    loop=$(attach "$directory/$volume")
    settle
    [ "$(readlink -f "/dev/disk/by-belay/$volume")" = "$loop" ] ||
        wrong "$volume has no link to $loop"
    has "$loop" UDISKS_IGNORE=1 "desktops may offer it"
    has "$loop" SYSTEMD_READY=0 "systemd may use it"
    has_no "$loop" "ID_FS_" "its content was read"
    has_no "$loop" "${acted_upon%%=*}=" "it was acted upon"
    [ -z "$(find /dev/disk/by-uuid /dev/disk/by-label -lname "*${loop##*/}" 2>/dev/null)" ] ||
        wrong "$loop has a name of the pod's choice"
    losetup --detach "$loop"
    settle
    [ ! -e "/dev/disk/by-belay/$volume" ] || wrong "the link has outlived its device"
    rm "$file" "$directory/$volume"
    printf 'udev: %-6s acted upon in another file, left alone in a volume\n' "$kind"
}

private_rules
private_dev
# Since version 254, udevadm itself checks rules.
! udevadm --help | grep -q verify || udevadm verify "$rules"
"$(PATH=/usr/lib/systemd:/lib/systemd:$PATH command -v systemd-udevd)" --debug \
    >"$work/udevd.log" 2>&1 &
for ((tries = 0; tries < 100; tries++)); do
    udevadm control --ping --timeout 1 2>/dev/null && break
    sleep 0.1
done
! grep -q '60-belay.rules:.*\(nvalid\|nknown\|ignoring\)' "$work/udevd.log" ||
    wrong "it dislikes the rule"
try ext4 ID_FS_LABEL=root
try btrfs ID_BTRFS_READY=1
try lvm TRIED_LVM=1
