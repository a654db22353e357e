# shellcheck shell=bash
# Sourced: the driver that the suite tests, the nodes that its pods run on, and the directory of its
# description and lists.
#
#   SUITE=disk    volumes of the cloud of the guests, on all guests; by default: local, on node1

case ${SUITE:-local} in
    local)
        driver=local.csi.belay.dev
        files=$here
        nodes=("$BED_NODE")
        ;;
    disk)
        driver=$guests_driver
        files=$here/disk
        # Each has a directory, see config.sh.
        mapfile -t nodes < <(ls "$BASE/guests")
        ;;
    *)
        printf 'SUITE=%s: please choose of: local disk\n' "$SUITE" >&2
        exit 64
        ;;
esac
