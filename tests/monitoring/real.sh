#!/usr/bin/env bash
# Runs both programs, scraped by a real Prometheus with Belay's rules: every query of the dashboard
# and every recording rule has data, and faults raise the right alerts and no others.
#
#   tests/monitoring/real.sh BINDIR     (the programs; needs root)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
setup=$here/../setup
. "$setup/env.sh"

[ "$(id -u)" = 0 ] || give_up "this test uses real volumes; please run it as root"
[ "$#" = 1 ] || give_up "usage: real.sh BINDIR"
"$setup/packages.sh" filesystems monitoring
"$setup/prometheus.sh"
bindir=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
# In a separate network namespace, every port is free; the volumes are on a tmpfs that is removed
# with the mounts.
unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private \
    "$here/inside.sh" "$work" "$bindir" </dev/null
