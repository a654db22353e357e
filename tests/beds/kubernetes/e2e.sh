#!/usr/bin/env bash
# Tests Belay in a real Kubernetes, from set-up to removal: cluster, images, chart, the bed's own
# checks, the official storage suite, and the removal of everything.
#
#   e2e.sh BINDIR
#
# PARTS lists parts of the test. By default: basics and focus, stress if CHAOS is set, and guests if
# GUESTS is set.
#   basics      the bed's own checks, a dry run of the manifests, rights, drain, a second disk,
#               whether another driver can be replaced (belayctl doctor --switch), and the objects
#               of `local` in a separate API server
#   focus       the specs of the suite that matter most
#   parallel    the rest of the suite, several specs at a time
#   disruptive  specs that stop the kubelet; evaluated together with `parallel` once both have passed
#   stress      rollouts under pods that write, then CHAOS minutes (2) of random kills, and a kubelet
#               that is killed before it unstages its volumes (20 times in the nightly)
#   operations  an uninstall under a pod that writes, the quickstart line by line, alerts
#   rights      each right of the sidecars removed, one by one
#   openstack   the chart's backend of that name, with a real Keystone, Cinder and Nova
#   guests      GUESTS User-mode Linux guests as nodes, with hot-plugged disks as volumes: the main
#               specs of the suite (all with FULL=1), and power cuts of nodes. With CLOUD=openstack,
#               a real Keystone, Cinder and Nova create, attach and expand the volumes, and
#               cinder-csi-plugin is replaced by Belay and back under a pod that writes. With
#               CLOUD=digitalocean or CLOUD=civo, uses a twin of that cloud, for its driver. With
#               CLOUD=nfs, a further guest is an NFS server, and volumes are its directories. With
#               CLOUD=local, volumes are on the disks of node1 and the guests; main specs only
# FULL=1 runs all parts except focus, which takes two hours; guests only if GUESTS is set.
# The logs of a failure stay in target/e2e. So do the suite's reports, unless SUITE_DIR is set.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
bindir=${1:?the directory of the programs}
work=$(mktemp -d -t belay-e2e.XXXXXX)
export BASE=$work/cluster
. "$here/env.sh"

logs=${CARGO_TARGET_DIR:-$here/../../../target}/e2e
export SUITE_DIR=${SUITE_DIR:-$logs/suite}
chaos_minutes=${CHAOS:-2}
# An odd round and an even one differ in when the volumes are free.
forgotten_rounds=$([ -n "${BELAY_NIGHTLY:-}" ] && echo 20 || echo 2)
if [ "${FULL:-}" = 1 ]; then
    parts=${PARTS:-basics parallel disruptive stress operations rights openstack ${GUESTS:+guests}}
else
    parts=${PARTS:-basics focus ${CHAOS:+stress} ${GUESTS:+guests}}
fi
started=$SECONDS
now=

# Runs a step and reports its time.
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

# Prints the memory in MiB, by program; the kernel's own memory is not counted. A process may exit before
# it is read.
memory() {
    "$here/cluster.sh" exec sh -c 'cat /proc/[0-9]*/status 2>/dev/null || true' | awk '
        /^Name:/ { name = $2 }
        /^VmRSS:/ { mib[name] += $2 / 1024; all += $2 / 1024 }
        END { for (name in mib) if (mib[name] > 4) printf "%d %s\n", mib[name], name
              printf "%d in all\n", all }' | sort --numeric-sort --reverse | paste -sd , |
        sed 's/,/, /g; s/^/memory in MiB: /'
}

run_basics() {
    step check "$here/check.sh"
    step check-local env BELAYCTL="$bindir/belayctl" "$here/check.sh" removes_an_unclaimed_volume
    step check-files env BELAYCTL="$bindir/belayctl" "$here/check.sh" removes_a_file_without_an_object
    step manifests "$here/cluster.sh" exec "$here/../../deploy/dry_run.sh"
    step rights "$here/cluster.sh" exec "$here/../../deploy/rbac.sh"
    step drain "$here/cluster.sh" exec "$here/../../deploy/drain.sh"
    step drivers "$here/cluster.sh" exec "$here/../../deploy/drivers.sh"
    step switch "$here/cluster.sh" exec "$here/../../deploy/switch.sh" "$bindir/belayctl"
    step objects "$here/objects.sh"
}

# run_suite PARTS: runs parts of the suite; without PARTS, the specs that matter most.
run_suite() {
    step "suite${1:+, $1}" "$here/cluster.sh" exec \
        env PARTS="$1" SUITE_DIR="$SUITE_DIR" "$here/suite/run.sh"
    memory
}

run_focus() {
    run_suite ''
}

run_parallel() {
    run_suite parallel
}

run_disruptive() {
    run_suite disruptive
}

run_stress() {
    step rollouts "$here/stress/upgrade.py" --chart "$here/../../../deploy/chart"
    step chaos "$here/stress/chaos.py" --minutes "$chaos_minutes"
    step forgotten "$here/stress/forgotten.py" --rounds "$forgotten_rounds"
}

run_operations() {
    step uninstall "$here/cluster.sh" exec "$here/../../deploy/uninstall.sh"
    step quickstart "$here/cluster.sh" exec "$here/../../deploy/quickstart.sh"
    step monitoring "$here/monitoring.sh"
}

run_rights() {
    step missed-rights "$here/cluster.sh" exec "$here/../../deploy/rbac.sh" each
}

# Programs that are installed inside are lost with the cluster, so install them before.
run_openstack() {
    "$here/../../setup/openstack.sh" >/dev/null
    step openstack "$here/cluster.sh" exec "$here/../../deploy/openstack.sh"
}

# Runs last, since it replaces the driver of the other parts.
run_guests() {
    local suite check=guests_check.sh of=disk directory=$SUITE_DIR-disk${CLOUD:+-$CLOUD}
    local specs=${FULL:+parallel disruptive}
    [ "${CLOUD:-}" != openstack ] || "$here/../../setup/openstack.sh" >/dev/null
    [ "${CLOUD:-}" != nfs ] || of=nfs directory=$SUITE_DIR-nfs check=nfs_check.sh
    [ "${CLOUD:-}" != local ] ||
        of=local directory=$SUITE_DIR-local check=guests_local_check.sh specs=
    suite=("$here/cluster.sh" exec env SUITE="$of" SUITE_DIR="$directory")
    step guests "$here/guests.sh" up "$bindir/belay-guest-cloud"
    step deploy-guests "$here/guests.sh" deploy "$work/images"
    step suite-guests "${suite[@]}" PARTS="$specs" "$here/suite/run.sh"
    [ "$of" != local ] || step suite-encrypted "$here/cluster.sh" exec \
        env SUITE=encrypted SUITE_DIR="$SUITE_DIR-encrypted" PARTS= "$here/suite/run.sh"
    step guests-checks "$here/$check"
    case ${CLOUD:-} in
        digitalocean | civo) step "$CLOUD-checks" "$here/twin_check.sh" ;;
        local) step nodes-checks "$here/guests_local_nodes_check.sh" "$bindir/belayctl" ;;
        openstack)
            step openstack-pages "$here/openstack_check.sh"
            step cinder-csi "$here/cinder_csi_check.sh" "$bindir/belayctl"
            ;;
    esac
    memory
    step guests-down "$here/guests.sh" down
}

for part in $parts; do
    declare -F "run_$part" >/dev/null ||
        give_up "there is no part $part; see the head of tests/beds/kubernetes/e2e.sh"
done
case " $parts " in
    *" guests "*) : "${GUESTS:=2}" && export GUESTS ;;
    *) unset GUESTS ;;
esac
rm -rf "$logs"
mkdir -p "$logs"
trap finish EXIT
trap 'exit 130' INT TERM HUP
step programs "$here/build/build.sh"
step images "$here/../../../deploy/images/build.sh" "$work/images" "$bindir"
step cluster "$here/cluster.sh" up
step deploy "$here/deploy.sh" "$work/images"
for part in $parts; do "run_$part"; done
step down "$here/cluster.sh" down
printf '== all: ok, %d s\n' $((SECONDS - started))
