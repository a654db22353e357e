#!/usr/bin/env bash
# Tests udev-rules/60-belay.rules with a real udevd, real loop devices and the distribution's own
# rules: a volume whose content makes a host act, compared with the same content in any other file.
#
#   tests/udev/check.sh     (needs root)
#
# The other file makes the test meaningful: the distribution's rules must act on it.
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
# Use a separate network namespace: udevd receives the kernel's events, and no process outside
# receives udevd's.
unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private \
    "$here/inside.sh" "$work" "$here/../../udev-rules/60-belay.rules" </dev/null
