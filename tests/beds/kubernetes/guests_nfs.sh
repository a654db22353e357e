# shellcheck shell=bash
# Sourced by the scripts of the guests: with CLOUD=nfs, a further guest, which is not a node, is the
# NFS server, and the nodes have the driver `nfs`. The machine's own kernel need not support NFS.

# This directory exists if the cluster has a server.
filer=$BASE/filer

is_nfs() {
    [ -d "$filer" ]
}

# The share's directory on the server, and the server as clients name it.
share=/node/share

make_filer_network() {
    inside ip tuntap add tapfiler mode tap
    inside ip link set tapfiler master br0 up
}

# filer_arguments: prints the arguments of the server's kernel.
filer_arguments() {
    printf 'belay.name=filer ubd0=%s' "$filer/disk"
    printf ' vec0:transport=tap,ifname=tapfiler,depth=64,gro=1,mac=52:54:00:00:00:fe'
}

boot_filer() {
    cloud boot "$socket" filer
    run filer "$seconds_max" <<SH
"/machine$here/filer.sh" "$filer_address" "$guests_network" "$BELAY_CACHE"
SH
}

# Imports the controller and its sidecars, which run on guests, whose kernel supports NFS.
import_controllers() {
    local image
    each import "$1/belay-controller.tar"
    for image in csi-provisioner csi-resizer csi-snapshotter; do
        each import "$(readlink -f "$BASE/images/$image.tar")"
    done
}
