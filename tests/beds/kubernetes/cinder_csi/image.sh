#!/usr/bin/env bash
# Builds cinder-csi-plugin from the sources of its release in the Go module proxy, with the versions
# in the release's own go.mod, and creates its image. Prints the paths of two archives: the plugin's
# image, and the bed's registrar.
#
#   image.sh
#
# The image has the plugin's name, and contains the programs that the plugin starts, from this
# machine.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../env.sh"

module=k8s.io/cloud-provider-openstack
version=v1.35.0
# The checksum, as in go.sum: the proxy cannot change what is built.
sum=h1:zQuKVqOrHaEhVZJg3jftAN/UTLzd06ESVX1C3nefkg8=
# The image is named as in the manifests of a release.
image=registry.k8s.io/provider-os/cinder-csi-plugin:$version
tools=(mount umount findmnt blkid blockdev udevadm fsck e2fsck fsck.ext4 mkfs.ext4 dumpe2fs resize2fs
    mkfs.xfs xfs_io xfs_growfs)
bin=$(bed_binaries)
export PATH=$PATH:/usr/sbin:/sbin

directory_name() {
    {
        cat "$here/image.sh" "$here/../image.sh"
        go env GOVERSION GOARCH
        sha256sum "$bin/registrar" "$node_tools/bin/busybox"
    } | sha256sum | cut -c 1-16
}

# field NAME <JSON
field() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

# Builds in an empty directory, so that the version does not depend on a surrounding module.
build() {
    local found sources
    found=$(cd "$work" && GOWORK=off GOFLAGS=-mod=mod go mod download -json "$module@$version")
    [ "$(field Sum <<<"$found")" = "$sum" ] ||
        give_up "$module@$version is not the release that cinder_csi/image.sh names"
    sources=$(field Dir <<<"$found")
    (cd "$sources" && CGO_ENABLED=0 GOWORK=off go build -mod=readonly -trimpath \
        -ldflags "-s -w -X $module/pkg/version.Version=$version" \
        -o "$work/cinder-csi-plugin" ./cmd/cinder-csi-plugin)
}

make_images() {
    local tool arguments=()
    for tool in "${tools[@]}"; do
        have "$tool" || give_up "there is no $tool; please run: tests/setup/setup.sh e2e"
        arguments+=(--linked "$(command -v "$tool")=/usr/local/bin/$tool")
    done
    # fsck.xfs is a shell script, so it needs no libraries.
    arguments+=(--copy "$(command -v fsck.xfs)=/usr/local/bin/fsck.xfs")
    "$here/../image.sh" "$work/cinder-csi-plugin.tar" "$image" "${arguments[@]}" \
        --copy /etc/mke2fs.conf=/etc/mke2fs.conf --copy "$work/cinder-csi-plugin=/bin/cinder-csi-plugin"
    "$here/../image.sh" "$work/registrar.tar" localhost/registrar:1 \
        --copy "$bin/registrar=/registrar" --entry /registrar
    rm "$work/cinder-csi-plugin"
}

cache=$BELAY_CACHE/kubernetes
directory=$cache/cinder-csi-$(directory_name)
mkdir -p "$cache"
exec 9>"$cache/cinder-csi.lock"
flock 9
if [ ! -d "$directory" ]; then
    announce "building cinder-csi-plugin $version into $cache (once; three minutes on two cores)"
    work=$cache/cinder-csi.unfinished
    rm -rf "$work"
    mkdir "$work"
    build
    make_images
    mv "$work" "$directory"
fi
touch "$directory"
find "$cache" -maxdepth 1 -name 'cinder-csi-*' -mtime +1 -exec rm -rf {} +
printf '%s\n' "$directory"/*.tar
