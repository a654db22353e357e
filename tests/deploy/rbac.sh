#!/usr/bin/env bash
# Shows that the sidecars' rights are the least: a scenario has them do all they can do, successes
# and failures, and the API server's audit log then shows each right used and no request refused.
#
#   rbac.sh     within a cluster of the Kubernetes bed (cluster.sh exec) with the chart installed
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"

: "${BASE:?is set by cluster.sh exec}"
namespace=belay-system
driver=local.csi.belay.dev
controller=belay-controller-local
work=$(mktemp -d)

clean() {
    local code=$?
    trap - EXIT
    [ "$code" = 0 ] || tell_state >&2
    kubectl delete namespace belay-rights --ignore-not-found --timeout=120s >/dev/null || code=1
    kubectl delete storageclass,volumesnapshotclass --selector belay-test=rights >/dev/null || code=1
    rm -rf "$work"
    exit "$code"
}

tell_state() {
    kubectl --namespace belay-rights get pods,pvc,volumesnapshots,events || true
    kubectl get pv,volumeattachments,volumesnapshotcontents || true
}

apply() {
    kubectl --namespace belay-rights apply --filename - >/dev/null
}

# until SECONDS RESOURCE JSONPATH=VALUE
until_is() {
    kubectl --namespace belay-rights wait --timeout="$1s" "$2" --for=jsonpath="$3" >/dev/null
}

# A right to ask at the start is seen only at a start.
restart_controller() {
    kubectl --namespace "$namespace" rollout restart "deployment/$controller" >/dev/null
    kubectl --namespace "$namespace" rollout status "deployment/$controller" --timeout=180s >/dev/null
}

# Waits for a pod, and at once; what the driver does not know in a class makes each call fail.
make_classes() {
    apply <<YAML
{apiVersion: v1, kind: Namespace, metadata: {name: belay-rights}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: belay-rights, labels: {belay-test: rights}}
provisioner: $driver
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: belay-rights-unknown, labels: {belay-test: rights}}
provisioner: $driver
parameters: {colour: red}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: belay-rights, labels: {belay-test: rights}}
driver: $driver
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: belay-rights-unknown, labels: {belay-test: rights}}
driver: $driver
deletionPolicy: Delete
parameters: {colour: red}
YAML
    for _ in $(seq 100); do
        ! kubectl --namespace belay-rights get serviceaccount default >/dev/null 2>&1 || return 0
        sleep 0.2
    done
    return 1
}

# claim NAME CLASS [SOURCE-KIND SOURCE-NAME]
claim() {
    local source=
    [ "$#" = 2 ] || source="dataSource: {kind: $3, name: $4$(
        [ "$3" != VolumeSnapshot ] || echo ', apiGroup: snapshot.storage.k8s.io')}"
    apply <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec:
  storageClassName: $2
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 256Mi}}
  $source
YAML
}

# pod NAME: with a claim of that name.
pod() {
    apply <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: shell
      image: localhost/busybox:1
      command: [sh, -c, "date >/data/now && sync && sleep 3600"]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: $1}}]
YAML
}

snapshot() {
    apply <<YAML
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: $1}
spec: {volumeSnapshotClassName: $2, source: {persistentVolumeClaimName: data}}
YAML
}

resize() {
    kubectl --namespace belay-rights patch pvc "$1" --patch \
        "{\"spec\": {\"resources\": {\"requests\": {\"storage\": \"$2\"}}}}" >/dev/null
}

# Is there an event of that source and kind that has come more than once?
repeated() {
    kubectl --namespace "$1" get events --output \
        jsonpath='{range .items[*]}{.source.component} {.reason} {.count}{"\n"}{end}' |
        awk -v source="$2" 'index($1, source) == 1 && $3 > 1 { found = 1 } END { exit !found }'
}

await_repeated() {
    for _ in $(seq 300); do
        ! repeated "$@" || return 0
        sleep 0.2
    done
    printf 'belay: no event of %s in %s has come twice\n' "$2" "$1" >&2
    return 1
}

live() {
    claim data belay-rights
    pod data
    until_is 120 pod/data '{.status.phase}=Running'
    snapshot cut belay-rights
    until_is 60 volumesnapshot/cut '{.status.readyToUse}=true'
    claim restored belay-rights VolumeSnapshot cut
    claim cloned belay-rights PersistentVolumeClaim data
    pod restored
    pod cloned
    until_is 120 pod/restored '{.status.phase}=Running'
    until_is 120 pod/cloned '{.status.phase}=Running'
    resize data 512Mi
    until_is 120 pvc/data '{.status.capacity.storage}=512Mi'
}

fail_often() {
    claim unknown belay-rights-unknown
    snapshot unknown belay-rights-unknown
    resize restored 8Ei
    await_repeated belay-rights "$driver"
    await_repeated belay-rights external-resizer
}

end() {
    kubectl --namespace belay-rights delete pods --all --timeout=120s >/dev/null
    kubectl --namespace belay-rights delete volumesnapshots --all --timeout=120s >/dev/null
    kubectl --namespace belay-rights delete pvc --all --timeout=120s >/dev/null
    kubectl delete storageclass,volumesnapshotclass --selector belay-test=rights >/dev/null
    # Their volumes go after them, and are the provisioner's and the attacher's work.
    kubectl wait --for=delete --timeout=120s volumeattachment --all >/dev/null
    for _ in $(seq 600); do
        [ -n "$(kubectl get pv --output jsonpath='{.items[?(@.spec.claimRef.namespace=="belay-rights")].metadata.name}')" ] ||
            return 0
        sleep 0.2
    done
    printf 'belay: volumes are left over\n' >&2
    return 1
}

trap clean EXIT
(cd "$here" && go build -o "$work/rights" ./rights)
before=$(wc -c <"$BASE/log/audit.jsonl")
restart_controller
make_classes
live
fail_often
end
tail -c "+$((before + 1))" "$BASE/log/audit.jsonl" >"$work/audit.jsonl"
kubectl get clusterroles,roles --all-namespaces --output json \
    --selector app.kubernetes.io/name=belay >"$work/roles.json"
"$work/rights" "$work/audit.jsonl" "$work/roles.json"
