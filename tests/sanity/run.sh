#!/usr/bin/env bash
# Runs csi-sanity, the official suite, against belay-node and belay-controller: with mount and block
# volumes, with and without topology, and with state directories on filesystems that share blocks
# between files (xfs, btrfs) or do not (ext4). Prints a table; exits 1 if anything failed.
#
#   tests/sanity/run.sh [COMBINATION...]     default: mount mount-topology block block-topology
#                                                     mount-btrfs block-btrfs mount-ext4 block-ext4
#
# Uses the programs in BELAY_BIN_DIR, and writes reports, logs and the list of skipped cases to
# BELAY_SANITY_DIR. The state directories are loop-mounted sparse filesystems of 1 TiB, since the
# suite's volumes have 10 GiB and more. Everything runs in separate namespaces; this part stays
# outside and cleans up after a killed run.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"

target=${CARGO_TARGET_DIR:-$here/../../target}
bin=${BELAY_BIN_DIR:-$target/bin}
reports=${BELAY_SANITY_DIR:-$target/sanity}
combinations=("$@")
[ $# -gt 0 ] || combinations=(
    mount mount-topology block block-topology mount-btrfs block-btrfs mount-ext4 block-ext4
)

check_ready() {
    local binary
    [ "$(id -u)" = 0 ] || give_up "csi-sanity needs real mounts; please run it as root"
    for binary in belay-node belay-controller; do
        [ -x "$bin/$binary" ] || give_up "there is no $bin/$binary; please run: make build"
    done
    have csi-sanity || give_up "there is no csi-sanity; please run: make setup"
}

# Prints the loop devices of volumes: a backing file on the run's own image belongs to a volume.
# Paths cannot be compared, since sysfs shows them as seen from inside. Only devices bound to files
# on this image are ever touched.
nested_loops() {
    losetup --list --noheadings --output NAME,BACK-MAJ:MIN | awk -v of="$1" '$2 == of { print $1 }'
}

release_loops() {
    local loop number volume
    for loop in "${loops[@]}"; do
        number=$(losetup --noheadings --output MAJ:MIN --list "$loop" | tr -d ' ')
        for volume in $(nested_loops "$number"); do
            losetup --detach "$volume" || true
        done
        losetup --detach "$loop" || true
    done
}

# Waits until the mounts of an ended namespace, and their devices, are removed.
await_release() {
    local tries image bound
    for ((tries = 0; tries < 100; tries++)); do
        bound=
        for image in "$work"/image.*; do
            bound+=$(losetup --noheadings --output NAME --associated "$image")
        done
        [ -n "$bound" ] || return 0
        sleep 0.1
    done
    printf 'sanity: still bound to images in %s: %s\n' "$work" "$bound" >&2
    return 1
}

clean_up() {
    trap - EXIT INT TERM HUP
    if [ -n "$inside" ]; then
        kill -KILL "$inside" 2>/dev/null || true
        wait "$inside" 2>/dev/null || true
    fi
    release_loops
    await_release || return 1
    rm -rf --one-file-system "$work"
}

check_ready
rm -rf "$reports"
mkdir -p "$reports"
work=$(mktemp -d)
loops=()
inside=
trap 'clean_up' EXIT
trap 'clean_up; exit 130' INT TERM HUP

truncate --size 1T "$work/image.xfs" "$work/image.btrfs" "$work/image.ext4"
mkfs.xfs -q "$work/image.xfs"
mkfs.btrfs -q "$work/image.btrfs"
# Use few inodes, or the kernel would continue to write inode tables after the mount.
mkfs.ext4 -q -T largefile4 -J size=64 "$work/image.ext4"
for image in "$work"/image.*; do
    loops+=("$(losetup --find --show "$image")")
done
code=0
unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
    "$here/inside.sh" "$bin" "$work" "$reports" "${combinations[@]}" </dev/null &
inside=$!
wait "$inside" || code=$?
inside=
clean_up || code=1
"$here/report.sh" "$reports" "${combinations[@]}" || code=1
exit "$code"
