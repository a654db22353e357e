#!/usr/bin/env bash
# Tests the drain in docs/operations.md with the command on the page: pods and their mounts are
# removed, the controller comes back on the cordoned node, and after `kubectl uncordon`, the pods
# continue where they stopped.
#
#   drain.sh     within a cluster of the Kubernetes bed (cluster.sh exec), with the chart installed
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
: "${BASE:?is set by cluster.sh exec}"
. "$here/../beds/kubernetes/env.sh"
. "$here/claims.sh"

namespace=belay-system
spot=belay-drain
driver=local.csi.belay.dev

clean() {
    local code=$?
    trap - EXIT
    if [ "$code" != 0 ]; then kubectl get pods --all-namespaces >&2 || true; fi
    kubectl uncordon "$BED_NODE" >/dev/null || code=1
    kubectl delete namespace "$spot" --ignore-not-found --timeout=120s >/dev/null || code=1
    exit "$code"
}

# Starts a pod that a controller recreates, as a drain requires. It continues counting.
make_writer() {
    make_namespace "$spot"
    make_claim "$spot" data belay-local
    kubectl --namespace "$spot" apply --filename - >/dev/null <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: writer}
spec:
  strategy: {type: Recreate}
  selector: {matchLabels: {app: writer}}
  template:
    metadata: {labels: {app: writer}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - name: shell
          image: localhost/busybox:1
          command:
            - sh
            - -c
            - 'n=$(tail -n 1 /data/numbers 2>/dev/null || echo 0);
               while :; do n=$((n + 1)); echo $n >>/data/numbers; sync; sleep 0.1; done'
          volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
YAML
}

lines() {
    kubectl --namespace "$spot" exec deployment/writer -- sh -c 'wc -l </data/numbers'
}

has_more_lines_than() {
    [ "$(lines)" -gt "$1" ]
}

# Whether nothing of the driver is mounted.
is_free() {
    local mounts
    mounts=$(cat /proc/self/mountinfo) || return 1
    [[ $mounts != *"/$driver/"* ]]
}

phase_of_writer() {
    kubectl --namespace "$spot" get pods --selector app=writer --output jsonpath='{.items[*].status.phase}'
}

trap clean EXIT
make_writer
await 120 "the writer's first lines" has_more_lines_than 10

before=$(lines)
kubectl drain "$BED_NODE" --ignore-daemonsets --delete-emptydir-data --timeout=180s >/dev/null
await 60 "the end of all mounts of $driver" is_free
# Both programs stay, or come back, on a node that accepts no other pods. The bed's values have a
# toleration for the controller.
kubectl --namespace "$namespace" rollout status daemonset/belay-node --timeout=60s >/dev/null
kubectl --namespace "$namespace" rollout status deployment/belay-controller-local --timeout=120s \
    >/dev/null
[ "$(phase_of_writer)" = Pending ]

kubectl uncordon "$BED_NODE" >/dev/null
kubectl --namespace "$spot" rollout status deployment/writer --timeout=180s >/dev/null
await 60 "a line more than before the drain" has_more_lines_than "$before"
kubectl --namespace "$spot" exec deployment/writer -- \
    awk 'NR != $1 { bad = 1 } END { exit bad }' /data/numbers
# Wait for the rest of the cluster, for the next test.
kubectl wait --for=condition=Available deployment --all --all-namespaces --timeout=180s >/dev/null
printf 'a drained pod found its volume again, with all of its lines\n'
