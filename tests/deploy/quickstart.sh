#!/usr/bin/env bash
# Runs the commands of docs/quickstart.md, from the installation on, exactly as printed, with the
# bed's node as NODE, and busybox as the bed's image.
#
#   quickstart.sh     within a cluster of the Kubernetes bed (cluster.sh exec), with the chart
#                     installed, which is replaced by a new user's release, and then restored
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
: "${BASE:?is set by cluster.sh exec}"
. "$here/../beds/kubernetes/env.sh"
. "$here/../beds/kubernetes/suite/capabilities.sh"

namespace=belay-system
project=$here/../..
work=$(mktemp -d)

clean() {
    local code=$?
    trap - EXIT
    if [ "$code" != 0 ]; then kubectl get pods,pvc,events --all-namespaces >&2 || true; fi
    kubectl delete pod/writer pvc/data --ignore-not-found --timeout=120s >/dev/null || code=1
    helm upgrade --install belay "$project/deploy/chart" --namespace "$namespace" --wait \
        --timeout 3m --values "$work/before.yaml" >/dev/null || code=1
    rm -rf "$work"
    exit "$code"
}

# block SECTION NUMBER: prints this block of shell of the section.
block() {
    awk -v section="## $1." -v number="$2" '
        /^## / { inside = index($0, section) == 1 }
        /^```/ { if (inside && $0 == "```sh") seen++; open = $0 == "```sh"; next }
        inside && open && seen == number' "$project/docs/quickstart.md" |
        sed -e "s/\bNODE\b/$BED_NODE/g" -e 's|image: busybox$|image: localhost/busybox:1|' \
            -e '/--watch/d'
}

# follow SECTION NUMBER: runs the block in a directory that looks like a clone.
follow() {
    block "$@" >"$work/block.sh"
    [ -s "$work/block.sh" ] || give_up "docs/quickstart.md has no piece $2 of shell in section $1"
    (cd "$work/clone" && bash -euo pipefail "$work/block.sh") >"$work/said" 2>&1 || {
        cat "$work/block.sh" "$work/said" >&2
        give_up "section $1 of docs/quickstart.md does not work as it stands"
    }
}

lines_are() {
    [ "$(kubectl exec writer -- sh -c 'wc -l </data/dates')" = "$1" ]
}

mkdir "$work/clone"
ln -s "$(readlink -f "$project/deploy")" "$work/clone/deploy"
helm get values belay --namespace "$namespace" --output yaml >"$work/before.yaml"
trap clean EXIT
helm uninstall belay --namespace "$namespace" --wait --timeout 2m >/dev/null
kubectl delete namespace "$namespace" --timeout=120s >/dev/null

follow 3 1
follow 3 2
follow 4 1
grep -q '^/dev/loop' "$work/said"
await 30 "the first line of the pod" lines_are 1
kubectl delete pod writer >/dev/null
follow 4 1
await 30 "the second line, by another pod" lines_are 2
if ! lacks CAP_SYS_RESOURCE; then
    follow 4 2
    kubectl wait --for=jsonpath='{.status.capacity.storage}'=2Gi pvc/data --timeout=120s >/dev/null
fi
follow 5 1
follow 6 1
await 60 "the end of the volume" eval '[ -z "$(ls /var/lib/belay/volumes)" ]'
if helm status belay --namespace "$namespace" >/dev/null 2>&1; then give_up "the release is still there"; fi
printf 'the quickstart works as it stands\n'
