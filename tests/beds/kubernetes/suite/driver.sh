# shellcheck shell=bash
# Sourced: the driver that the suite tests, the nodes on which its pods run, and the directory with
# its description and lists.
#
#   SUITE=disk    volumes of the cloud of the guests, on all guests; by default: local, on node1
#   SUITE=encrypted    encrypted volumes of local, on all guests
#   SUITE=nfs     directories of the NFS server of the guests, on all guests

case ${SUITE:-local} in
    local)
        driver=local.csi.belay.dev
        files=$here
        nodes=("$BED_NODE")
        # With CLOUD=local, the guests have the driver too.
        [ ! -d "$BASE/disks" ] || mapfile -t -O 1 nodes < <(ls "$BASE/guests")
        kinds=(ext4 xfs btrfs)
        bindings=(immediate late)
        ;;
    encrypted)
        driver=local.csi.belay.dev
        files=$BASE/run/suite-encrypted
        mkdir -p "$files"
        cp "$here"/*.txt "$files"
        cp "$here"/encrypted/* "$files"
        # With the keys of the topology, the suite would select node1 for some pods, which has the
        # kernel of this machine, without device-mapper.
        sed 's/belay-suite/belay-encrypted/; /TopologyKeys/d' "$here/driver.yaml" >"$files/driver.yaml"
        mapfile -t nodes < <(ls "$BASE/guests")
        kinds=(ext4 xfs btrfs)
        bindings=(immediate late)
        ;;
    disk)
        driver=$guests_driver
        files=$here/disk
        # Files of its cloud take precedence over some of these; the mock cloud has none.
        cloud=$guests_twin
        [ ! -e "$BASE/nova" ] || cloud=openstack
        if [ -n "$cloud" ]; then
            files=$BASE/run/suite
            mkdir -p "$files"
            cp "$here"/disk/*.* "$files"
            cp "$here/disk/$cloud"/* "$files"
        fi
        # Each guest has a directory, see config.sh.
        mapfile -t nodes < <(ls "$BASE/guests")
        kinds=(ext4 xfs btrfs)
        bindings=(immediate late)
        ;;
    nfs)
        driver=$guests_driver
        files=$here/nfs
        mapfile -t nodes < <(ls "$BASE/guests")
        # There is a single description: there are no filesystems to choose, and all nodes reach the
        # server.
        kinds=(nfs)
        bindings=(immediate)
        ;;
    *)
        printf 'SUITE=%s: please choose of: local encrypted disk nfs\n' "$SUITE" >&2
        exit 64
        ;;
esac
