#!/usr/bin/env bash
# Tries udev-rules/60-belay.rules with a real udevd, real loop devices and the distribution's own
# rules: a volume that carries what a host acts upon, compared with the same content in any other file.
#
#   tests/udev/check.sh     (needs root)
#
# The other file is what makes it a test: the distribution's rules must act upon that one.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"

[ "$(id -u)" = 0 ] || give_up "rules are tried with loop devices; please run it as root"
"$here/../setup/packages.sh" filesystems foreign udev
work=$(mktemp -d)
clean() {
    detach_all "$work/volumes"
    rm -rf --one-file-system "$work"
}
trap clean EXIT
# Its own network: udevd hears the kernel, and no process outside hears udevd.
unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private \
    "$here/inside.sh" "$work" "$here/../../udev-rules/60-belay.rules" </dev/null
