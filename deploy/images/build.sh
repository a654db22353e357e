#!/usr/bin/env bash
# Builds both images from static programs, without a daemon, and writes each as an archive that
# `docker load`, `podman load` and `ctr images import` take. Built twice, they are the same.
#
#   deploy/images/build.sh OUTDIR BINDIR     OUTDIR/belay-{node,controller}.tar
#
# REGISTRY (localhost) and VERSION (the workspace's own) name them: REGISTRY/belay-node:VERSION.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
setup=$here/../../tests/setup
. "$setup/env.sh"

[ "$#" = 2 ] || give_up "usage: build.sh OUTDIR BINDIR (the programs are built by: make build)"
registry=${REGISTRY:-localhost}
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../../Cargo.toml" | head -n 1)}
"$setup/packages.sh" images filesystems
mkdir -p "$1"
outdir=$(readlink -f "$1")
bindir=$(readlink -f "$2")

# Buildah keeps everything in here, but for one small cache whose path cannot be configured.
scratch=$(mktemp -d)
cache=/var/lib/containers/cache
made_here=$([ -e "$cache" ] || echo "$cache/blob-info-cache-v1.boltdb")
clean() {
    rm -rf "$scratch"
    [ -z "$made_here" ] || rm -f "$made_here"
    [ -z "$made_here" ] || rmdir -p "$cache" 2>/dev/null || true
}
trap clean EXIT
# Nothing is pulled, so there is no signature to check.
printf '{"default": [{"type": "insecureAcceptAnything"}]}\n' >"$scratch/policy.json"

buildah() {
    command buildah --root "$scratch/storage" --runroot "$scratch/run" --storage-driver vfs "$@"
}

build() {
    local name=belay-$1 reference=$registry/belay-$1:$version
    "$here/rootfs.sh" "$1" "$scratch/$1/rootfs" "$bindir"
    buildah bud --quiet --isolation chroot --timestamp 0 --build-arg VERSION="$version" \
        --signature-policy "$scratch/policy.json" --file "$here/$1.Dockerfile" \
        --tag "$reference" "$scratch/$1" >/dev/null
    rm -f "$outdir/$name.tar"
    buildah push --quiet --signature-policy "$scratch/policy.json" "$reference" \
        "docker-archive:$outdir/$name.tar:$reference"
    printf '%s: %s, %s\n' "$outdir/$name.tar" "$reference" \
        "$(du --human-readable --apparent-size "$outdir/$name.tar" | cut -f 1)"
}

build node
build controller
