# shellcheck shell=bash
# Sourced by the scripts of the guests: with CLOUD=nfs a further guest, which is no node, is the NFS
# server, and the nodes have the driver `nfs`. The machine's own kernel need not have NFS.

# Its directory shows that the cluster has it.
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

# filer_arguments: of its kernel.
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

# The controller runs on guests, whose kernel has NFS, with its sidecars.
import_controllers() {
    local image
    each import "$1/belay-controller.tar"
    for image in csi-provisioner csi-resizer csi-snapshotter; do
        each import "$(readlink -f "$BASE/images/$image.tar")"
    done
}
