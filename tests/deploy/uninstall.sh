#!/usr/bin/env bash
# Tests the promises of docs/helm.md about volumes: an upgrade does not leave them behind; a pod
# continues to write without the driver, and its volume stays; and the same release, installed
# again, continues with both.
#
#   uninstall.sh     in a cluster of the Kubernetes bed (cluster.sh exec), with the chart installed
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
: "${BASE:?is set by cluster.sh exec}"
. "$here/../beds/kubernetes/env.sh"
. "$here/claims.sh"

namespace=belay-system
spot=belay-uninstall
work=$(mktemp -d)

clean() {
    local code=$?
    trap - EXIT
    if [ "$code" != 0 ]; then kubectl --namespace "$spot" get pods,pvc,events >&2 || true; fi
    if ! helm status belay --namespace "$namespace" >/dev/null 2>&1; then install || code=1; fi
    kubectl delete namespace "$spot" --ignore-not-found --timeout=120s >/dev/null || code=1
    rm -rf "$work"
    exit "$code"
}

install() {
    helm install belay "$here/../../deploy/chart" --namespace "$namespace" --wait --timeout 3m \
        --values "$work/values.yaml" >/dev/null
}

# pod NAME COMMAND: starts a pod with the claim `data`.
pod() {
    kubectl --namespace "$spot" apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
    - name: shell
      image: localhost/busybox:1
      command: [sh, -c, "$2"]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
YAML
}

lines() {
    kubectl --namespace "$spot" exec writer -- sh -c 'wc -l </data/numbers'
}

has_more_lines_than() {
    [ "$(lines)" -gt "$1" ]
}

# refused SETTING WHY: checks that an upgrade that would create an empty store is refused.
refused() {
    ! helm upgrade belay "$here/../../deploy/chart" --namespace "$namespace" \
        --values "$work/values.yaml" --set "$1" >"$work/output" 2>&1 && grep -q "$2" "$work/output"
}

trap clean EXIT
helm get values belay --namespace "$namespace" --output yaml >"$work/values.yaml"
refused 'drivers[0].disks[0].dir=/elsewhere' 'the volumes of disk default are in /var/lib/belay'

make_namespace "$spot"
make_claim "$spot" data belay-local
pod writer 'n=0; while :; do n=$((n + 1)); echo $n >>/data/numbers; sync; sleep 0.1; done'
await 120 "the writer's first line" has_more_lines_than 0

helm uninstall belay --namespace "$namespace" --wait --timeout 2m >/dev/null
left=$(kubectl get csidriver/local.csi.belay.dev storageclass/belay-local --ignore-not-found \
    --output name)
[ -z "$left" ] || give_up "helm has left behind: $left"
await 60 "the end of the driver's pods" eval \
    '[ -z "$(kubectl --namespace "$namespace" get pods --output name)" ]'
without=$(lines)
await 30 "a line written without the driver" has_more_lines_than "$without"
kubectl --namespace "$spot" get pvc data --output jsonpath='{.status.phase}' | grep -qx Bound
# Deleted objects wait for the driver meanwhile.
kubectl --namespace "$spot" delete pod writer --wait=false >/dev/null

install
await 120 "the end of the deleted pod" eval '! kubectl --namespace "$spot" get pod writer'
# The numbers have no gap, starting at 1: nothing was lost in between.
pod reader "awk 'NR != \$1 { bad = 1 } END { exit bad || NR <= $without }' /data/numbers"
kubectl --namespace "$spot" wait pod/reader --timeout=120s \
    --for=jsonpath='{.status.phase}'=Succeeded >/dev/null
printf 'a pod wrote on without the driver, and its %s lines and more are there\n' "$without"
