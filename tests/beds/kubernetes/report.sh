#!/usr/bin/env bash
# Keeps what tells why a run failed, and prints the ends of what mostly matters.
#
#   report.sh FOLDER
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

folder=$1
lines=25
export PATH=$BASE/bin:$PATH KUBECONFIG=$BASE/kubeconfig

show() {
    [ -s "$1" ] || return 0
    printf -- '---- the end of %s\n' "$1"
    tail -n "$lines" "$1" | cut -c 1-400
}

keep_objects() {
    kubectl get events --all-namespaces --sort-by=.lastTimestamp >"$folder/events.txt" 2>&1
    kubectl get pods,persistentvolumeclaims,persistentvolumes,volumeattachments,csinodes \
        --all-namespaces --output wide >"$folder/objects.txt" 2>&1
    kubectl describe pods --all-namespaces >"$folder/pods.txt" 2>&1
}

mkdir -p "$folder"
[ ! -d "$BASE/log" ] || cp -r "$BASE/log/." "$folder/"
if "$here/cluster.sh" status; then keep_objects || true; fi
{
    for log in "$folder"/{inside,helm,kubelet}.log "$folder"/pods/belay-system_*/*/*.log \
        "$folder"/objects.txt "$folder"/events.txt; do
        show "$log"
    done
    printf -- '---- all of it is in %s\n' "$folder"
} >&2
