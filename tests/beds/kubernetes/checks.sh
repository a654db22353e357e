# shellcheck shell=bash
# Sourced by the checks of clusters with guests, which have set `namespace`, the only one that they
# use: provides functions for its objects, and runs the checks. A check is a function check_NAME.

seconds_max=300
driver_namespace=belay-system
export PATH=$BASE/bin:$PATH KUBECONFIG=$BASE/kubeconfig

k() {
    kubectl --namespace "$namespace" "$@"
}

# request NAME CLASS MODE [MORE]: creates a claim of 1 GiB. MORE is added to its spec, in YAML's
# flow style.
request() {
    k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec: {storageClassName: $2, accessModes: [$3], resources: {requests: {storage: 1Gi}}${4:+, $4}}
YAML
}

# claim NAME CLASS MODE [MORE]: creates a claim; returns when it is bound.
claim() {
    request "$@"
    await_bound "$1"
}

await_bound() {
    k wait "persistentvolumeclaim/$1" --for=jsonpath='{.status.phase}'=Bound \
        --timeout="${seconds_max}s" >/dev/null
}

# pod NAME NODE CLAIM COMMAND [MOUNT]: starts a pod. MOUNT is added to the volume's mount.
pod() {
    start_pod "$@"
    await_pod "$1"
}

start_pod() {
    k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  nodeName: $2
  terminationGracePeriodSeconds: 0
  containers:
    - name: shell
      image: localhost/busybox:1
      command: [sh, -c, '$4']
      volumeMounts: [{name: data, mountPath: /data${5:+, $5}}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: $3}}]
YAML
}

await_pod() {
    k wait "pod/$1" --for=condition=Ready --timeout="${seconds_max}s" >/dev/null
}

end_pods() {
    k delete pod --all --timeout="${seconds_max}s" >/dev/null
}

# volume_of CLAIM: prints the name of the claim's PersistentVolume.
volume_of() {
    k get persistentvolumeclaim "$1" --output jsonpath='{.spec.volumeName}'
}

# snapshot NAME CLAIM: creates a snapshot with the class `snapshot_class`; returns when it can be
# restored.
snapshot() {
    k apply --filename - >/dev/null <<YAML
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: $1}
spec: {volumeSnapshotClassName: $snapshot_class, source: {persistentVolumeClaimName: $2}}
YAML
    await_snapshot "$1"
}

await_snapshot() {
    k wait "volumesnapshot/$1" --for=jsonpath='{.status.readyToUse}'=true \
        --timeout="${seconds_max}s" >/dev/null
}

# from_snapshot NAME, from_claim NAME: print the source of a new claim, for the last argument of
# `request`.
from_snapshot() {
    printf 'dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: %s}' "$1"
}

from_claim() {
    printf 'dataSource: {kind: PersistentVolumeClaim, name: %s}' "$1"
}

# are_bound N: whether there are N claims, all of them bound.
are_bound() {
    [ "$(k get persistentvolumeclaim --output jsonpath='{.items[*].status.phase}')" = \
        "$(printf 'Bound %.0s' $(seq "$1") | sed 's/ $//')" ]
}

# has_left_none: whether no volume of a claim in the namespace exists.
has_left_none() {
    [ -z "$(kubectl get persistentvolumes --output \
        jsonpath="{.items[?(@.spec.claimRef.namespace=='$namespace')].metadata.name}")" ]
}

# kill_controller DRIVER: kills the pod of the driver's controller, including its sidecars. DRIVER
# is the short name.
kill_controller() {
    kubectl --namespace "$driver_namespace" delete pod --selector "belay.dev/driver=$1" --force \
        --grace-period=0 >/dev/null 2>&1
}

# no_right_was_missed DRIVER: checks that the API server has refused no request of the sidecars.
no_right_was_missed() {
    python3 - "$BASE/log/audit.jsonl" "$driver_namespace:belay-controller-$1" <<'PY'
import json, sys
made = refused = 0
for line in open(sys.argv[1]):
    event = json.loads(line)
    if not event["user"]["username"].endswith(sys.argv[2]):
        continue
    made += 1
    if event.get("responseStatus", {}).get("code") == 403:
        refused += 1
        print(event["userAgent"].split("/")[0], event["verb"], event["requestURI"], file=sys.stderr)
sys.exit(refused > 0 or made == 0)
PY
}

# Classes of a check have the label belay-test, with the namespace as its value.
clean_up() {
    kubectl delete namespace "$namespace" --ignore-not-found --timeout=180s >/dev/null
    kubectl delete storageclass --selector "belay-test=$namespace" >/dev/null
}

# run_checks LABEL CHECK...: runs the checks. LABEL begins each line of the output.
run_checks() {
    local label=$1 check start
    shift
    trap 'printf "%s: line %s: %s\n" "${BASH_SOURCE[0]##*/}" "$LINENO" "$BASH_COMMAND" >&2' ERR
    clean_up
    kubectl create namespace "$namespace" >/dev/null
    for check; do
        start=$SECONDS
        "check_$check"
        printf '%s: %s: ok, %d s\n' "$label" "${check//_/ }" $((SECONDS - start))
    done
    clean_up
}
