# shellcheck shell=bash
# Sourced by the scripts of the guests: with CLOUD=local, the guests and node1 have the driver
# `local`. Each guest has a second disk, which its volumes are on.

# This directory exists if the guests have such disks, and contains them.
disks=$BASE/disks
volumes_gib=32

is_local() {
    [ -d "$disks" ]
}

# make_volumes_disk NAME: prints the kernel's arguments for a new disk of the guest.
make_volumes_disk() {
    truncate --size "${volumes_gib}G" "$disks/$1"
    mkfs.xfs -q "$disks/$1"
    printf ' ubd1=%s' "$disks/$1"
}

# local_flags: prints the arguments of helm.
local_flags() {
    printf -- '--values\n%s\n' "$bed/values.yaml" "$bed/guests_local.yaml"
}
