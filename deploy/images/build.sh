#!/usr/bin/env bash
# Builds both images from static programs, without a daemon, and writes each as an archive that
# `docker load`, `podman load` and `ctr images import` accept. The build is reproducible.
#
#   deploy/images/build.sh OUTDIR BINDIR     OUTDIR/belay-{node,controller}.tar
#
# The images are named REGISTRY/belay-node:VERSION and so on. REGISTRY is localhost by default, and
# VERSION the workspace's version.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
setup=$here/../../tests/setup
. "$setup/env.sh"

[ "$#" = 2 ] || give_up "usage: build.sh OUTDIR BINDIR (the programs are built by: make build)"
"$setup/packages.sh" images filesystems
mkdir -p "$1"
outdir=$(readlink -f "$1")
bindir=$(readlink -f "$2")
. "$here/buildah.sh"

build() {
    local name=belay-$1 reference=$registry/belay-$1:$version
    "$here/rootfs.sh" "$1" "$scratch/$1/rootfs" "$bindir"
    image "$1" "$scratch/$1" "$reference"
    rm -f "$outdir/$name.tar"
    buildah push --quiet --signature-policy "$scratch/policy.json" "$reference" \
        "docker-archive:$outdir/$name.tar:$reference"
    printf '%s: %s, %s\n' "$outdir/$name.tar" "$reference" \
        "$(du --human-readable --apparent-size "$outdir/$name.tar" | cut -f 1)"
}

build node
build controller
