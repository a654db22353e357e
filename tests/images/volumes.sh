#!/usr/bin/env bash
# The part of check.sh that is process 1 in separate namespaces: runs a controller and an agent from
# the unpacked images, as a container runtime would (with their own read-only root, and with /dev,
# the kubelet's directory, the state directory and the socket's directory from outside), and takes a
# volume of each kind through its lifecycle. Of encryption, this tests all that needs no
# device-mapper; the guests test the rest.
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

# cryptsetup COMMAND FLAG...: runs cryptsetup of the image on one file, as the agent does.
cryptsetup() {
    env --ignore-environment PATH=/usr/sbin:/sbin:/usr/bin:/bin DM_DISABLE_UDEV=1 \
        "$(command -v chroot)" "$work/node/root" cryptsetup --batch-mode --disable-locks "$@" \
        /proc/self/fd/0 0<>"$work/header" 3<"$work/key" || wrong "cryptsetup $*"
}

# encrypt NAME PATTERN FLAG...: creates a header with these flags, and tries the passphrase.
encrypt() {
    local key=(--key-file /proc/self/fd/3)
    truncate --size 32M "$work/header"
    cryptsetup luksFormat --cipher aes-xts-plain64 --key-size 512 --hash sha256 "${key[@]}" "${@:3}"
    cryptsetup luksDump >"$work/dump"
    grep -q "$2" "$work/dump" || wrong "no $2 in the header: $(cat "$work/dump")"
    cryptsetup open --type luks --disable-keyring --test-passphrase "${key[@]}"
    rm "$work/header"
    printf '  %-18s formatted, opened\n' "$1"
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
printf 'passphrase' >"$work/key"
encrypt 'LUKS2, as Belay' '^Subsystem:[[:space:]]*belay:unfinished$' --type luks2 \
    --pbkdf argon2id --pbkdf-memory 32768 --pbkdf-parallel 1 --pbkdf-force-iterations 4 \
    --label belay-x --subsystem belay:unfinished
# Other programs create these. With one processor, cryptsetup reduces the threads to one.
encrypt 'LUKS2, 2 threads' 'Threads:[[:space:]]*[12]$' --type luks2 \
    --pbkdf argon2id --pbkdf-memory 65536 --pbkdf-parallel 2 --pbkdf-force-iterations 4
encrypt 'LUKS2, pbkdf2' 'PBKDF:[[:space:]]*pbkdf2$' --type luks2 \
    --pbkdf pbkdf2 --pbkdf-force-iterations 1000
encrypt LUKS1 '^Version:[[:space:]]*1$' --type luks1 --pbkdf-force-iterations 1000
