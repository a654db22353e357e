#!/usr/bin/env bash
# Creates the images that the bed itself needs, if they do not exist, and prints the archives'
# paths: the images that the storage suite runs in its pods, and the sidecars under the names of
# their releases.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

bin=$(bed_binaries)
# The names that the suite uses; `suite` replaces its registry with this one.
registry=localhost/e2e
sidecars=registry.k8s.io/sig-storage

directory_name() {
    {
        cat "$here/image.sh" "$here/images.sh"
        printf '%s\n' "$bin"
        sha256sum "$bin/agnhost" "$node_tools/bin/busybox"
    } | sha256sum | cut -c 1-16
}

image() {
    "$here/image.sh" "$work/$1.tar" "${@:2}"
}

# Creates an image with a shell that starts the programs given here, and not busybox's own programs
# of the same names.
make_glibc() {
    image glibc "$registry/glibc-dns-testing:2.0.0" --linked /bin/dash=/bin/sh \
        --linked /bin/dd=/usr/local/bin/dd \
        --linked /usr/bin/sha256sum=/usr/local/bin/sha256sum --run sleep 2147483647
}

make_sidecars() {
    local sidecar name
    for sidecar in csi-provisioner:v6.3.0 csi-attacher:v4.12.0 csi-resizer:v2.2.0 \
        csi-snapshotter:v8.6.0 snapshot-controller:v8.6.0; do
        name=${sidecar%:*}
        image "$name" "$sidecars/$sidecar" --copy "$bin/$name=/$name" --entry "/$name"
    done
}

make_all() {
    local busybox=localhost/busybox:1,localhost/pause:1
    announce "making the images of the Kubernetes bed (a few seconds, once)"
    image busybox "$busybox,$registry/busybox:1.37.0-1,$registry/nginx:1.15-4" \
        --run sleep 2147483647
    image agnhost "$registry/agnhost:2.63.0" --copy "$bin/agnhost=/agnhost" \
        --entry /agnhost --run pause
    make_glibc
    make_sidecars
}

cache=$BELAY_CACHE/kubernetes
directory=$cache/images-$(directory_name)
mkdir -p "$cache"
exec 9>"$cache/images.lock"
flock 9
if [ ! -d "$directory" ]; then
    work=$cache/images.unfinished
    rm -rf "$work"
    mkdir "$work"
    make_all
    mv "$work" "$directory"
fi
# Other images stay for two days, since another checkout may use them.
touch "$directory"
find "$cache" -maxdepth 1 -name 'images-*' -mtime +1 -exec rm -rf {} +
printf '%s\n' "$directory"/*.tar
