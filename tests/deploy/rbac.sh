#!/usr/bin/env bash
# Tests that the sidecars' rights are minimal. Runs within a cluster of the Kubernetes bed
# (cluster.sh exec) in which the chart is installed.
#
#   rbac.sh         a scenario has the sidecars do all they can do; then the API server's audit log
#                   shows each right used, and no request refused
#   rbac.sh each    takes one right after the other away, and has to see it missed (half an hour)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
: "${BASE:?is set by cluster.sh exec}"
. "$here/../beds/kubernetes/env.sh"
. "$here/rbac_scenario.sh"

namespace=belay-system
controller=belay-controller-local
work=$(mktemp -d)
roles=$work/roles.json
failed=
running=

clean() {
    local code=$?
    trap - EXIT
    stop_scenario
    [ "$code" = 0 ] || tell_state >&2
    if [ -e "$roles" ]; then give_back; fi
    remove_leftovers || code=1
    restart_controller - || code=1
    rm -rf "$work"
    exit "$code"
}

# Restarts the controller, since rights that it uses only at its start are seen only then. Sidecars
# that may not stream lists fall back to the requests for older API servers: first `list`, then
# `watch`.
restart_controller() {
    kubectl --namespace "$namespace" set env "deployment/$controller" \
        --containers 'csi-*' "KUBE_FEATURE_WatchListClient$1" >/dev/null
    kubectl --namespace "$namespace" rollout status "deployment/$controller" --timeout=180s >/dev/null
}

# Marks the current end of the audit log.
mark() {
    marked=$(wc -c <"$BASE/log/audit.jsonl")
}

since_mark() {
    tail -c "+$((marked + 1))" "$BASE/log/audit.jsonl"
}

rights() {
    "$work/rights" "$@"
}

# Has the sidecars create their leases again, which outlive their pods.
forget_leaders() {
    kubectl --namespace "$namespace" delete leases --all >/dev/null
}

use_all() {
    mark
    forget_leaders
    restart_controller =false
    scenario
    since_mark >"$work/audit.jsonl"
    rights compare "$work/audit.jsonl" "$roles"
}

give_back() {
    kubectl replace --filename "$roles" >/dev/null
}

is_missed() {
    since_mark | rights refused "$1" "$2"
}

stop_scenario() {
    [ -n "$running" ] || return 0
    kill -- "-$running" 2>/dev/null || true
    wait "$running" 2>/dev/null || true
    running=
}

# miss VERB RESOURCE: whether the sidecars try a call without the right to it.
miss() {
    local missed=
    rights without "$1" "$2" "$roles" | kubectl replace --filename - >/dev/null
    mark
    forget_leaders
    # Do not wait for the rollout: without some of its rights, the controller never becomes ready.
    kubectl --namespace "$namespace" rollout restart "deployment/$controller" >/dev/null
    # Use a separate process group, so that the scenario's children end with it.
    set -m
    scenario >/dev/null 2>&1 &
    running=$!
    set +m
    while [ -z "$missed" ] && kill -0 "$running" 2>/dev/null; do
        ! is_missed "$1" "$2" || missed=1
        sleep 0.5
    done
    stop_scenario
    [ -n "$missed" ] || is_missed "$1" "$2"
}

recover() {
    give_back
    kubectl --namespace "$namespace" rollout restart "deployment/$controller" >/dev/null
    kubectl --namespace "$namespace" rollout status "deployment/$controller" --timeout=180s >/dev/null
    end
}

take_each_away() {
    local verb resource
    restart_controller =false
    while read -r verb resource <&3; do
        if miss "$verb" "$resource"; then
            printf '%-6s %s: missed\n' "$verb" "$resource"
        else
            printf 'belay: no sidecar needed the right to %s %s\n' "$verb" "$resource" >&2
            failed=1
        fi
        recover
    done 3< <(rights list "$roles")
    [ -z "$failed" ]
}

trap clean EXIT
(cd "$here" && go build -o "$work/rights" ./rights)
kubectl get clusterroles,roles --all-namespaces --output json \
    --selector app.kubernetes.io/name=belay | "$work/rights" plain >"$roles"
case ${1:-} in
    '') use_all ;;
    each) take_each_away ;;
    *) give_up "usage: rbac.sh [each]" ;;
esac
