#!/usr/bin/env bash
# Makes the machine ready for what it is told: check, test, demo (any of them).
# What is there already is left alone, so the second run takes a fraction of a second.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")

prepare() {
    case $1 in
        demo)
            "$here/packages.sh" build filesystems
            "$here/rust.sh"
            ;;
        check)
            "$here/packages.sh" build
            "$here/rust.sh"
            "$here/cargo_deny.sh"
            ;;
        test)
            "$here/packages.sh" build filesystems foreign
            "$here/rust.sh"
            "$here/go.sh"
            "$here/csi_sanity.sh"
            ;;
        *)
            printf 'setup.sh: %s is none of check, test, demo\n' "$1" >&2
            exit 64
            ;;
    esac
}

for purpose in "$@"; do
    prepare "$purpose"
done
