#!/usr/bin/env bash
# Keeps the logs of a failed run, and prints the ends of the most important ones.
#
#   report.sh DIRECTORY
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

directory=$1
lines=25
export PATH=$BASE/bin:$PATH KUBECONFIG=$BASE/kubeconfig

show() {
    [ -s "$1" ] || return 0
    printf -- '---- the end of %s\n' "$1"
    tail -n "$lines" "$1" | cut -c 1-400
}

keep_objects() {
    kubectl get events --all-namespaces --sort-by=.lastTimestamp >"$directory/events.txt" 2>&1
    kubectl get pods,persistentvolumeclaims,persistentvolumes,volumeattachments,csinodes \
        --all-namespaces --output wide >"$directory/objects.txt" 2>&1
    kubectl get localdisks,localvolumes,localsnapshots --output yaml >"$directory/local.yaml" 2>&1
    kubectl describe pods --all-namespaces >"$directory/pods.txt" 2>&1
}

mkdir -p "$directory"
[ ! -d "$BASE/log" ] || cp -r "$BASE/log/." "$directory/"
if "$here/cluster.sh" status; then keep_objects || true; fi
if [ -e "$BASE/run/guests.program" ]; then
    "$here/guests.sh" logs "$directory/guests" || true
fi
{
    for log in "$directory"/{inside,helm,kubelet}.log "$directory"/pods/belay-system_*/*/*.log \
        "$directory"/objects.txt "$directory"/events.txt; do
        show "$log"
    done
    printf -- '---- all logs are in %s\n' "$directory"
} >&2
