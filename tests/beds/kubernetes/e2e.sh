#!/usr/bin/env bash
# Belay in a real Kubernetes, from nothing to nothing: cluster, images, chart, the bed's own checks,
# the official storage suite, and all of it away again.
#
#   e2e.sh BINDIR
#
# CHAOS=MINUTES: rollouts beneath pods that write, and for so long kills of everything by chance.
# FULL=1: all of the suite instead of the specs that matter most, two minutes of CHAOS, the
# sidecars' rights missed one by one, an uninstall beneath a pod that writes, the quickstart line by
# line, alerts; two hours.
# What tells why it failed stays in target/e2e, and the suite's reports in any case.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
bindir=${1:?the folder of the programs}
work=$(mktemp -d -t belay-e2e.XXXXXX)
export BASE=$work/cluster
. "$here/env.sh"

logs=${CARGO_TARGET_DIR:-$here/../../../target}/e2e
export SUITE_DIR=$logs/suite
chaos_minutes=${CHAOS:-${FULL:+2}}
started=$SECONDS
now=

# Steps are few, and what each takes is told.
step() {
    local start=$SECONDS
    now=$1
    shift
    printf '== %s\n' "$now"
    "$@"
    printf '== %s: ok, %d s\n' "$now" $((SECONDS - start))
}

finish() {
    local code=$?
    trap - EXIT
    trap '' INT TERM HUP
    if [ "$code" != 0 ] && [ "$code" != 130 ]; then
        printf '== %s: FAILED, %d s after the start\n' "$now" $((SECONDS - started)) >&2
        "$here/report.sh" "$logs" || true
    fi
    "$here/cluster.sh" down && rm -rf "$work" || code=1
    exit "$code"
}

# In MiB, by program; what belongs to nobody but the kernel is not counted.
memory() {
    "$here/cluster.sh" exec sh -c 'cat /proc/[0-9]*/status 2>/dev/null' | awk '
        /^Name:/ { name = $2 }
        /^VmRSS:/ { mib[name] += $2 / 1024; all += $2 / 1024 }
        END { for (name in mib) if (mib[name] > 4) printf "%d %s\n", mib[name], name
              printf "%d in all\n", all }' | sort --numeric-sort --reverse | paste -sd , |
        sed 's/,/, /g; s/^/memory in MiB: /'
}

rm -rf "$logs"
mkdir -p "$logs"
trap finish EXIT
trap 'exit 130' INT TERM HUP
step programs "$here/build/build.sh"
step images "$here/../../../deploy/images/build.sh" "$work/images" "$bindir"
step cluster "$here/cluster.sh" up
step deploy "$here/deploy.sh" "$work/images"
step check "$here/check.sh"
step manifests "$here/cluster.sh" exec "$here/../../deploy/dry_run.sh"
step rights "$here/cluster.sh" exec "$here/../../deploy/rbac.sh"
step drain "$here/cluster.sh" exec "$here/../../deploy/drain.sh"
step drivers "$here/cluster.sh" exec "$here/../../deploy/drivers.sh"
step suite "$here/cluster.sh" exec env FULL="${FULL:-}" SUITE_DIR="$SUITE_DIR" "$here/suite/run.sh"
memory
if [ -n "$chaos_minutes" ]; then
    step rollouts "$here/stress/upgrade.py" --chart "$here/../../../deploy/chart"
    step chaos "$here/stress/chaos.py" --minutes "$chaos_minutes"
fi
if [ "${FULL:-}" = 1 ]; then
    step uninstall "$here/cluster.sh" exec "$here/../../deploy/uninstall.sh"
    step quickstart "$here/cluster.sh" exec "$here/../../deploy/quickstart.sh"
    step monitoring "$here/monitoring.sh"
    step missed-rights "$here/cluster.sh" exec "$here/../../deploy/rbac.sh" each
fi
step down "$here/cluster.sh" down
printf '== all: ok, %d s\n' $((SECONDS - started))
