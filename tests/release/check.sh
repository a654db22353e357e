#!/usr/bin/env bash
# Builds a release twice, in two directories, and checks that both are identical, complete, and
# work: the programs and tools of the other architecture are started in an emulator.
#
#   tests/release/check.sh OUTDIR     the first release, built if OUTDIR has none (root)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
top=$here/../..
. "$top/tests/setup/env.sh"

[ "$(id -u)" = 0 ] || give_up "the test of a release starts images in chroots; please run it as root"
[ "$#" = 1 ] || give_up "usage: check.sh OUTDIR"
"$top/tests/setup/packages.sh" emulation monitoring
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
mkdir -p "$1"
out=$(readlink -f "$1")
version=$(workspace_version "$top")
declare -A machine=([amd64]='X86-64' [arm64]='AArch64')

wrong() {
    printf 'release: %s\n' "$*" >&2
    exit 1
}

built_twice() {
    [ -e "$out/SHA256SUMS" ] || "$top/deploy/release/build.sh" "$out"
    # Use a path of another length and depth, and another umask.
    mkdir -p "$work/another/place/tmp" "$work/again"
    (umask 077 && TMPDIR=$work/another/place/tmp "$top/deploy/release/build.sh" "$work/again")
    diff "$out/SHA256SUMS" "$work/again/SHA256SUMS" || wrong "built twice, these differ"
}

complete() {
    local architecture name expected
    expected=$(
        for architecture in amd64 arm64; do
            printf '%s\n' "belay-$version-linux-$architecture.tar.gz"
            for name in belay-node belay-controller belayctl; do
                printf '%s\n' "${name}_${version}_$architecture.deb"
            done
        done
        printf '%s\n' NOTES.md SHA256SUMS "belay-$version.tgz" \
            belay-{node,controller}-"$version".oci.tar \
            belay-{node,controller}-"$version".cdx.json "belayctl-$version.cdx.json"
    )
    diff <(sort <<<"$expected") <(ls -A "$out" | sort) || wrong "files are missing, or too many"
    (cd "$out" && sha256sum --check --quiet SHA256SUMS) || wrong "a sum is not that of its file"
}

# start ARCHITECTURE DIRECTORY COMMAND...: runs a command with the directory as its root, with its
# own /proc.
start() {
    local architecture=$1 root=$2
    shift 2
    if [ "$architecture" != "$(dpkg --print-architecture)" ]; then
        install -D "$(command -v "qemu-${machine[$architecture],,}-static")" "$root/emulator"
        set -- /emulator "$@"
    fi
    mkdir -p "$root/proc"
    # shellcheck disable=SC2016
    unshare --mount --propagation private \
        sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" "$@"
}

programs_start() {
    local architecture root program said
    for architecture in amd64 arm64; do
        root=$work/programs-$architecture
        mkdir -p "$root"
        tar -xzf "$out/belay-$version-linux-$architecture.tar.gz" -C "$root" --strip-components=1
        for program in belay-node belay-controller belayctl; do
            readelf --file-header "$root/bin/$program" | grep -q "Machine:.*${machine[$architecture]}" ||
                wrong "$program is not for $architecture"
            said=$(start "$architecture" "$root" "/bin/$program" --version) ||
                wrong "$program does not start on $architecture"
            [ "$said" = "$program $version" ] || wrong "$program on $architecture says: $said"
            ! grep --quiet --text -e "$HOME/" -e "${TMPDIR:-/tmp}/tmp\." "$root/bin/$program" ||
                wrong "$program for $architecture names a path of this machine"
            printf '  %-18s %s\n' "$program" "$architecture"
        done
        [ -e "$root/man/belayctl.1" ] && [ -e "$root/completions/belayctl.bash" ] ||
            wrong "no manual page or completion for $architecture"
    done
}

# layer IMAGE ARCHITECTURE: unpacks the image as a runtime of that architecture would.
layer() {
    local layout=$work/$1 index manifest blob
    mkdir -p "$layout" "$work/$1-$2"
    [ -e "$layout/index.json" ] || tar -xf "$out/$1-$version.oci.tar" -C "$layout"
    blob() { printf '%s\n' "$layout/blobs/${1/:/\/}"; }
    index=$(blob "$(jq -r '.manifests[0].digest' "$layout/index.json")")
    manifest=$(jq -r --arg architecture "$2" \
        '.manifests[] | select(.platform.architecture == $architecture) | .digest' "$index")
    [ -n "$manifest" ] || wrong "$1 has no image for $2"
    for blob in $(jq -r '.layers[].digest' "$(blob "$manifest")"); do
        tar -xf "$(blob "$blob")" -C "$work/$1-$2"
    done
}

# encrypts ARCHITECTURE ROOT: creates a header with cryptsetup of the image. Two threads need
# libgcc_s.
encrypts() {
    local root=$2
    mkdir -p "$root/dev"
    mknod -m 666 "$root/dev/random" c 1 8
    mknod -m 666 "$root/dev/urandom" c 1 9
    truncate --size 32M "$root/volume"
    printf 'passphrase' >"$root/key"
    start "$1" "$root" /usr/sbin/cryptsetup luksFormat --batch-mode --disable-locks --type luks2 \
        --pbkdf argon2id --pbkdf-memory 32768 --pbkdf-parallel 2 --pbkdf-force-iterations 4 \
        /volume /key >"$work/said" 2>&1 ||
        wrong "cryptsetup does not work on $1: $(cat "$work/said")"
    [ "$(blkid -o value -s TYPE -p "$root/volume")" = crypto_LUKS ] || wrong "it made no header"
    rm "$root/volume" "$root/key"
    printf '  %-18s %s\n' cryptsetup "$1"
}

images_work() {
    local architecture root fs
    for architecture in amd64 arm64; do
        layer belay-node "$architecture"
        layer belay-controller "$architecture"
        start "$architecture" "$work/belay-controller-$architecture" /usr/bin/belay-controller \
            --version >/dev/null || wrong "belay-controller does not start on $architecture"
        root=$work/belay-node-$architecture
        start "$architecture" "$root" /usr/bin/belay-node --version >/dev/null ||
            wrong "belay-node does not start on $architecture"
        for fs in ext4 xfs btrfs; do
            truncate --size 320M "$root/volume"
            start "$architecture" "$root" "/usr/sbin/mkfs.$fs" /volume >"$work/said" 2>&1 ||
                wrong "mkfs.$fs does not work on $architecture: $(cat "$work/said")"
            [ "$(blkid -o value -s TYPE -p "$root/volume")" = "$fs" ] || wrong "it made no $fs"
            rm "$root/volume"
            printf '  %-18s %s\n' "mkfs.$fs" "$architecture"
        done
        encrypts "$architecture" "$root"
    done
}

packages_are_named() {
    local architecture package
    for architecture in amd64 arm64; do
        for package in belay-node belay-controller belayctl; do
            package=$out/${package}_${version}_$architecture.deb
            [ "$(dpkg-deb --field "$package" Architecture Version | tr '\n' ' ')" = \
                "Architecture: $architecture Version: $version " ] || wrong "$package is named wrongly"
        done
    done
}

chart_installs() {
    local rendered
    rendered=$(helm template belay "$out/belay-$version.tgz")
    grep -q "image: .*/belay-node:$version" <<<"$rendered" ||
        wrong "the chart does not take the image of its version"
}

contents_are_listed() {
    local program crate
    for program in belay-node belay-controller belayctl; do
        crate=$out/$program-$version.cdx.json
        [ "$(jq -r .bomFormat "$crate")" = CycloneDX ] || wrong "$crate is not CycloneDX"
        jq --exit-status '.components | map(.name) | contains(["tonic", "tokio", "rustix"])' \
            "$crate" >/dev/null || wrong "$crate lacks crates"
        ! grep -q -e "$HOME/" -e "${TMPDIR:-/tmp}/" "$crate" || wrong "$crate names paths of here"
    done
}

for part in built_twice complete programs_start images_work packages_are_named chart_installs \
    contents_are_listed; do
    "$part"
    printf 'release: %s: ok\n' "${part//_/ }"
done
