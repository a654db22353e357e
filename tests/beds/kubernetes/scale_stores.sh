#!/usr/bin/env bash
# Tests `local` on 50 nodes without kubelets: objects for the nodes, and the real stores,
# controllers and csi-provisioner, with the chart's definitions, rights, policies and flags.
#
#   scale_stores.sh BINDIR
#
# COUNTS lists the numbers of volumes at which it measures: 100 and 500, or with BELAY_NIGHTLY=1,
# 100, 1,000 and 5,000.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
bindir=$(readlink -f "${1:?the directory of the programs}")
work=$(mktemp -d -t belay-scale.XXXXXX)
export BASE=$work/cluster KUBELET=none
. "$here/env.sh"

logs=${CARGO_TARGET_DIR:-$here/../../../target}/scale
default_counts=100,500
[ -z "${BELAY_NIGHTLY:-}" ] || default_counts=100,1000,5000

finish() {
    local code=$?
    trap - EXIT
    trap '' INT TERM HUP
    [ "$code" = 0 ] || [ "$code" = 130 ] || keep_logs || true
    "$here/cluster.sh" down && rm -rf "$work" || code=1
    exit "$code"
}

keep_logs() {
    rm -rf "$logs"
    "$here/report.sh" "$logs"
}

# Installs the chart without the node agent, which needs a kubelet. The controllers tolerate nodes
# that report nothing. Volumes are small, but count as large as the smallest filesystem.
install() {
    local values="drivers[0].backend=local,drivers[0].overcommit=1000,node.enabled=false"
    helm template belay "$here/../../../deploy/chart" --namespace belay-system \
        --kube-version 1.36.0 --set "$values,controller.tolerations[0].operator=Exists" \
        >"$BASE/chart.yaml"
    inside kubectl create namespace belay-system
    inside kubectl apply --filename "$(bed_binaries)/snapshot-crds"
    inside kubectl apply --filename "$BASE/chart.yaml"
}

inside() {
    "$here/cluster.sh" exec "$@"
}

trap finish EXIT
trap 'exit 130' INT TERM HUP
"$here/build/build.sh"
"$here/cluster.sh" up
install >"$BASE/log/helm.log"
inside "$here/stress/scale_stores.py" --base "$BASE" --programs "$bindir" \
    --counts "${COUNTS:-$default_counts}"
