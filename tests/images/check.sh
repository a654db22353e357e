#!/usr/bin/env bash
# Checks both images as shipped: each tool in them starts, they contain exactly the libraries that
# are loaded, and the licences of every package, two builds are identical, cryptsetup creates and
# opens headers, and a controller and an agent from them format, mount and release volumes.
#
#   tests/images/check.sh OUTDIR BINDIR     the images, and the programs they were built from (root)
#
# REGISTRY and VERSION as for deploy/images/build.sh.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"

[ "$(id -u)" = 0 ] || give_up "the test of images mounts volumes; please run it as root"
[ "$#" = 2 ] || give_up "usage: check.sh OUTDIR BINDIR"
outdir=$1 bindir=$2
work=$(mktemp -d)

clean() {
    detach_all "$work/state/volumes"
    rm -rf --one-file-system "$work"
}
trap clean EXIT

wrong() {
    printf 'images: %s\n' "$*" >&2
    exit 1
}

# Unpacks the archive, so that its content is checked, and not its sources.
unpack() {
    local image=$1 layer
    mkdir -p "$work/$image/archive" "$work/$image/root"
    tar -xf "$outdir/belay-$image.tar" -C "$work/$image/archive"
    for layer in $(grep -o '"Layers":\[[^]]*' "$work/$image/archive/manifest.json" |
        grep -o '[0-9a-f]*\.tar'); do
        tar -xf "$work/$image/archive/$layer" -C "$work/$image/root"
    done
    grep -qF "\"$registry/belay-$image:$version\"" "$work/$image/archive/manifest.json" ||
        wrong "belay-$image is not called $registry/belay-$image:$version"
}

expect_the_same_twice() {
    cmp "$outdir/$1" "$work/again/$1" || wrong "$1 is not the same when built again"
}

expect_to_start() {
    local said
    said=$(chroot "$work/$1/root" "${@:2}" 2>&1) || wrong "$1: ${*:2}: $said"
    printf '  %-18s %s\n' "${2##*/}" "$(head -n 1 <<<"$said")"
}

is_elf() {
    [ "$(head -c 4 "$1" | tail -c 3)" = ELF ]
}

# The loader itself lists the libraries, in the image and from the image. pthread_exit(3) opens one
# more, which volumes.sh needs.
expect_exact_libraries() {
    local root=$work/node/root loader file
    loader=$(cd "$root" && find . -name 'ld-linux*' | sed 's/^\.//')
    {
        for file in $(cd "$root" && find usr/bin usr/sbin -type f); do
            is_elf "$root/$file" || continue
            readelf --program-headers "$root/$file" | grep -q INTERP || continue
            chroot "$root" "$loader" --list "/$file" || wrong "/$file lacks a library"
        done | grep -o '[^ ]* (0x' | sed 's/ .*//; s|^/lib|/usr/lib|; s|^/||; /vdso/d'
        (cd "$root" && find usr/lib -name libgcc_s.so.1)
    } | sort -u >"$work/loaded"
    (cd "$root" && find usr/lib usr/lib64 -type f) | sort >"$work/held"
    diff "$work/loaded" "$work/held" ||
        wrong "the libraries that are loaded (<) and held (>) differ"
}

expect_papers() {
    local root=$work/node/root package count=0
    for package in "$root"/var/lib/dpkg/status.d/*; do
        package=${package##*/}
        [ -s "$root/usr/share/doc/$package/copyright" ] || wrong "$package has no copyright file"
        grep -q '^Version: ' "$root/var/lib/dpkg/status.d/$package" ||
            wrong "$package has no version"
        count=$((count + 1))
    done
    [ "$count" -ge 4 ] || wrong "only $count packages are accounted for"
    grep -q '^tokio-[0-9.]* (MIT)$' "$root/usr/share/doc/belay/third-party" ||
        wrong "the licences of the crates are missing"
}

# Checks that there are as many authorities as in the package, where the controller looks for them.
expect_authorities() {
    local held
    held=$(grep -c '^-----BEGIN CERTIFICATE-----$' \
        "$work/controller/root/etc/ssl/certs/ca-certificates.crt")
    [ "$held" -gt 100 ] && [ "$held" = "$(find /usr/share/ca-certificates/mozilla -type f | wc -l)" ] ||
        wrong "the controller's image has $held certificates of authorities"
    [ -s "$work/controller/root/usr/share/doc/ca-certificates/copyright" ] ||
        wrong "ca-certificates has no copyright file"
}

sizes() {
    local image
    for image in node controller; do
        printf '  belay-%-12s %5s MB unpacked, %5s MB as gzip\n' "$image" \
            "$(megabytes "$(tar -c -C "$work/$image/root" . | wc -c)")" \
            "$(megabytes "$(tar -c -C "$work/$image/root" . | gzip | wc -c)")"
    done
}

megabytes() {
    printf '%d.%d' $(($1 / 1000000)) $(($1 / 100000 % 10))
}

registry=${REGISTRY:-localhost}
version=${VERSION:-$(workspace_version "$here/../..")}
"$here/../../deploy/images/build.sh" "$work/again" "$bindir" >/dev/null
for image in node controller; do
    expect_the_same_twice "belay-$image.tar"
    unpack "$image"
done

printf 'images: what starts in them\n'
# btrfs and e2fsck require /dev/null, which a container always has.
mkdir "$work/node/root/dev" && mknod -m 666 "$work/node/root/dev/null" c 1 3
expect_to_start node mkfs.ext4 -V
expect_to_start node mkfs.xfs -V
expect_to_start node mkfs.btrfs -V
expect_to_start node e2fsck -V
expect_to_start node cryptsetup --version
expect_to_start node xfs_repair -V
expect_to_start node btrfs --version
expect_to_start node belayctl --version
expect_to_start node belay-node --version
expect_to_start controller belayctl --version
expect_to_start controller belay-controller --version
expect_exact_libraries
expect_papers
expect_authorities

printf 'images: volumes made from them\n'
unshare --mount --pid --fork --kill-child --mount-proc --propagation private \
    "$here/volumes.sh" "$work" </dev/null
printf 'images: sizes\n'
sizes
