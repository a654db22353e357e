#!/usr/bin/env bash
# Tests several disks as in docs/helm.md: a second disk is added by an upgrade under a pod that
# writes, before the node has it; the node gets it without a restart of a pod; one pod uses volumes
# of both disks; and the second disk can be removed again.
#
#   drivers.sh     in a cluster of the Kubernetes bed (cluster.sh exec), with the chart installed
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
: "${BASE:?is set by cluster.sh exec}"
. "$here/../beds/kubernetes/env.sh"
. "$here/claims.sh"

namespace=belay-system
spot=belay-disks
second=$BED_NODE.second
disk=/var/lib/belay-second-disk
work=$(mktemp -d)

clean() {
    local code=$?
    trap - EXIT
    if [ "$code" != 0 ]; then
        kubectl get pods,pvc,events --all-namespaces >&2 || true
        tail -n 50 "$work/helm" >&2 || true
    fi
    kubectl delete namespace "$spot" --ignore-not-found --timeout=120s >/dev/null || code=1
    upgrade one || code=1
    # Only the LocalDisk of a node knows that it had the disk.
    kubectl delete localdisk "$second" --ignore-not-found --timeout=60s >/dev/null || code=1
    ! mountpoint --quiet "$disk" || umount "$disk" || code=1
    rm -rf "$work" "$BASE/second.img" "$disk"
    exit "$code"
}

make_disk() {
    truncate --size 4G "$BASE/second.img"
    mkfs.xfs -q "$BASE/second.img"
    mount -o loop "$BASE/second.img" "$disk"
    mkdir -m 700 "$disk/state"
}

# Writes one.json and two.json: the release's values, and the values with a second disk.
write_values() {
    helm get values belay --namespace "$namespace" --output json >"$work/one.json"
    python3 - "$work" "$disk/state" <<'PY'
import json, pathlib, sys
work, directory = pathlib.Path(sys.argv[1]), sys.argv[2]
values = json.loads((work / "one.json").read_text())
values["drivers"][0] |= {
    "disks": [{"name": "default"}, {"name": "second", "dir": directory, "create": False}],
    "storageClasses": [{"name": "belay-local"}, {"name": "belay-second", "disk": "second"}]}
(work / "two.json").write_text(json.dumps(values))
PY
}

# upgrade one|two
upgrade() {
    helm upgrade belay "$here/../../deploy/chart" --namespace "$namespace" --wait --timeout 3m \
        --values "$work/$1.json" >"$work/helm" 2>&1
}

# pod NAME COMMAND CLAIM...: starts a pod with each claim at /CLAIM.
pod() {
    local name=$1 command=$2 claim mounts='' volumes=''
    shift 2
    for claim; do
        mounts+="{name: $claim, mountPath: /$claim}, "
        volumes+="{name: $claim, persistentVolumeClaim: {claimName: $claim}}, "
    done
    kubectl --namespace "$spot" apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $name}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
    - {name: shell, image: "localhost/busybox:1", command: [sh, -c, "$command"], volumeMounts: [$mounts]}
  volumes: [$volumes]
YAML
    kubectl --namespace "$spot" wait --for=condition=Ready "pod/$name" --timeout=180s >/dev/null
}

in_pod() {
    kubectl --namespace "$spot" exec "$1" -- sh -c "$2"
}

# Prints the pods of the agent and the store.
pods_of_node() {
    kubectl --namespace "$namespace" get pods --output name \
        --selector 'app.kubernetes.io/component in (node, store)' | sort
}

# Whether the store serves the second disk.
is_served() {
    [ "$(kubectl get localdisk "$second" --output jsonpath='{.status.problem}{.status.bytes}')" -gt 0 ]
}

trap clean EXIT
write_values
make_namespace "$spot"
for class in belay-local belay-second; do
    make_claim "$spot" "$class" "$class"
done
pod writer 'n=0; while :; do n=$((n + 1)); echo $n >>/belay-local/numbers; sync; sleep 0.1; done' \
    belay-local
upgrade two
# The node lacks the disk, and its pods are ready.
sleep 5
[ -z "$(kubectl get localdisk "$second" --ignore-not-found --output name)" ]
before=$(pods_of_node)
[ "$(wc -l <<<"$before")" = 2 ]
make_disk
await 60 "the second disk" is_served

pod both 'sleep 3600' belay-local belay-second
in_pod both 'echo second >/belay-second/file; sync'
in_pod both '[ -s /belay-local/numbers ] && [ ! -e /belay-second/numbers ] && [ ! -e /belay-local/file ]'
# The same pods serve both disks, each with its own files.
[ "$(pods_of_node)" = "$before" ]
[ "$(find "$disk/state/volumes" -type f | wc -l)" = 1 ]
kubectl --namespace "$spot" delete pod both >/dev/null
pod reader 'sleep 3600' belay-second
in_pod reader 'grep -qx second /belay-second/file'
kubectl --namespace "$spot" delete pod/reader pvc/belay-second --timeout=120s >/dev/null
await 60 "the end of the second disk's volume" eval '[ -z "$(ls "$disk/state/volumes")" ]'

upgrade one
in_pod writer 'awk "NR != \$1 { bad = 1 } END { exit bad || NR < 20 }" /belay-local/numbers'
printf 'a second disk came and went, and the pod on the first one missed no line\n'
