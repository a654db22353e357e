#!/usr/bin/env bash
# The part of check.sh that is process 1 in separate namespaces: runs a controller and an agent from
# the unpacked images, as a container runtime would (with their own read-only root, and with /dev,
# the kubelet's directory, the state directory and the socket's directory from outside), and takes a
# volume of each kind through its lifecycle.
#
#   volumes.sh WORK
set -euo pipefail
[ $$ = 1 ] || { echo "volumes.sh: is started by check.sh only" >&2; exit 64; }
work=$1
. "$(dirname "$(readlink -f "$0")")/../volume.sh"
state=/var/lib/belay
kubelet=/var/lib/kubelet
run=/run/csi

wrong() {
    printf 'images: %s\n' "$*" >&2
    tail -n 20 "$work"/*.log >&2
    exit 1
}

container() {
    local root=$work/$1/root
    mkdir -p "$root"/{dev,proc,sys} "$root$state" "$root$kubelet" "$root$run"
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount --rbind /dev "$root/dev"
    mount --bind "$work/state" "$root$state"
    mount --bind "$work/kubelet" "$root$kubelet"
    mount --bind "$work/run" "$root$run"
    mount -o remount,bind,ro "$root"
}

controller() {
    chroot "$work/controller/root" belayctl --endpoint "unix://$run/csi.sock" controller "$@"
}

node() {
    chroot "$work/node/root" belayctl --endpoint "unix://$kubelet/csi.sock" node "$@"
}

live() {
    local fs=$1 id staging=$kubelet/staging-$1 target=$kubelet/pod-$1
    local data=$work/node/root$target
    mkdir -p "$work/kubelet/staging-$fs"
    id=$(up "data-$fs" "$fs" "$staging" "$target")
    [ "$(stat --format %d "$data")" != "$(stat --format %d "$work/kubelet")" ] ||
        wrong "nothing is mounted on $data"
    printf 'kept\n' >"$data/file" && [ "$(cat "$data/file")" = kept ] ||
        wrong "$fs loses written data"
    down "$id" "$staging" "$target"
    [ -z "$(losetup --noheadings --associated "$work/state/volumes/$id")" ] ||
        wrong "$id is still bound to a loop device"
    controller delete "$id" >/dev/null
    printf '  %-18s formatted, mounted, written, released\n' "$fs"
}

mkdir -p "$work/state/volumes" "$work/kubelet" "$work/run"
# Make mounts in the agent's root visible, as with the kubelet's propagation.
mount --bind "$work/kubelet" "$work/kubelet"
mount --make-shared "$work/kubelet"
container controller
container node
chroot "$work/controller/root" belay-controller --state-dir "$state" --node-id image \
    --endpoint "unix://$run/csi.sock" 2>"$work/controller.log" &
await controller capacity
chroot "$work/node/root" belay-node --loop-dir "$state/volumes" --node-id image \
    --endpoint "unix://$kubelet/csi.sock" 2>"$work/node.log" &
await node info
for fs in ext4 xfs btrfs; do
    live "$fs"
done
