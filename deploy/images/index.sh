#!/usr/bin/env bash
# Builds both images for several architectures, and writes each as an OCI archive with an index,
# from which a registry or a node selects its own architecture. The build is reproducible.
#
#   deploy/images/index.sh OUTDIR BINDIR ARCHITECTURE...
#
# Writes OUTDIR/belay-{node,controller}-VERSION.oci.tar from the static programs in
# BINDIR/ARCHITECTURE. Architectures have Debian's names: amd64, arm64. REGISTRY and VERSION are as
# for build.sh.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
setup=$here/../../tests/setup
. "$setup/env.sh"

[ "$#" -ge 3 ] || give_up "usage: index.sh OUTDIR BINDIR ARCHITECTURE..."
"$setup/packages.sh" images filesystems
mkdir -p "$1"
outdir=$(readlink -f "$1")
bindir=$(readlink -f "$2")
shift 2
architectures=("$@")
. "$here/buildah.sh"

# Prints the directory with the packages of another architecture; nothing for this machine's own.
sysroot() {
    [ "$1" = "$(dpkg --print-architecture)" ] || printf '%s\n' "$scratch/sysroot-$1"
}

build() {
    local name=belay-$1 reference=$registry/belay-$1:$version architecture context
    buildah manifest create "$reference" >/dev/null
    for architecture in "${architectures[@]}"; do
        context=$scratch/$1-$architecture
        SYSROOT=$(sysroot "$architecture") ARCHITECTURE=$architecture \
            "$here/rootfs.sh" "$1" "$context/rootfs" "$bindir/$architecture"
        image "$1" "$context" "$reference-$architecture" --arch "$architecture"
        buildah manifest add "$reference" "containers-storage:$reference-$architecture" >/dev/null
    done
    buildah manifest push --quiet --all --signature-policy "$scratch/policy.json" "$reference" \
        "oci:$scratch/$name:$version" >/dev/null
    tar --create --file "$outdir/$name-$version.oci.tar" --directory "$scratch/$name" \
        --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner .
    printf '%s: %s for %s, %s\n' "$outdir/$name-$version.oci.tar" "$reference" "${architectures[*]}" \
        "$(du --human-readable --apparent-size "$outdir/$name-$version.oci.tar" | cut -f 1)"
}

for architecture in "${architectures[@]}"; do
    root=$(sysroot "$architecture")
    [ -z "$root" ] || "$here/sysroot.sh" "$architecture" "$root"
done
build node
build controller
