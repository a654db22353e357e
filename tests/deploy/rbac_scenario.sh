# shellcheck shell=bash
# Sourced by rbac.sh: a scenario in which the sidecars do everything that they can do, with
# successes and failures. All objects are in a separate namespace, or have a label.

driver=local.csi.belay.dev

apply() {
    kubectl --namespace belay-rights apply --filename - >/dev/null
}

# until_is SECONDS RESOURCE JSONPATH=VALUE
until_is() {
    kubectl --namespace belay-rights wait --timeout="$1s" "$2" --for=jsonpath="$3" >/dev/null
}

# Creates a class whose volumes wait for a pod, and a class whose volumes are created at once.
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
metadata: {name: belay-rights-at-once, labels: {belay-test: rights}}
provisioner: $driver
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
    await 30 "the default service account" \
        kubectl --namespace belay-rights get serviceaccount default
}

# claim NAME CLASS SIZE [SOURCE-KIND SOURCE-NAME]
claim() {
    local source=
    [ "$#" = 3 ] || source="dataSource: {kind: $4, name: $5$(
        [ "$4" != VolumeSnapshot ] || echo ', apiGroup: snapshot.storage.k8s.io')}"
    apply <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec:
  storageClassName: $2
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: $3}}
  $source
YAML
}

# pod NAME: starts a pod with the claim of this name.
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

# Whether an event of this source has occurred more than once.
repeated() {
    kubectl --namespace belay-rights get events --output \
        jsonpath='{range .items[*]}{.source.component} {.count}{"\n"}{end}' |
        awk -v source="$1" 'index($1, source) == 1 && $NF > 1 { found = 1 } END { exit !found }'
}

# Prints the size of a claim's volume.
size_of() {
    kubectl get pv --output jsonpath='{.spec.capacity.storage}' \
        "$(kubectl --namespace belay-rights get pvc "$1" --output jsonpath='{.spec.volumeName}')"
}

live() {
    claim data belay-rights 256Mi
    pod data
    until_is 120 pod/data '{.status.phase}=Running'
    snapshot cut belay-rights
    until_is 60 volumesnapshot/cut '{.status.readyToUse}=true'
    claim restored belay-rights 256Mi VolumeSnapshot cut
    claim cloned belay-rights 256Mi PersistentVolumeClaim data
    pod restored
    pod cloned
    until_is 120 pod/restored '{.status.phase}=Running'
    until_is 120 pod/cloned '{.status.phase}=Running'
    resize data 512Mi
    await 60 "the growth of a volume" eval '[ "$(size_of data)" = 512Mi ]'
}

# Makes calls that fail repeatedly: no disk is that large, and no class has such a parameter.
fail_often() {
    claim large belay-rights-at-once 1Pi
    resize restored 1Pi
    snapshot unknown belay-rights-unknown
    await 60 "a second failure to make a volume" repeated "$driver"
    await 60 "a second failure to grow a volume" repeated external-resizer
}

# Whether no objects outside of namespaces belong to the driver: neither volumes nor snapshots nor
# capacities.
has_ended() {
    local owners
    # A failed query must not count as an empty result.
    owners=$(kubectl get pv,volumesnapshotcontents,csistoragecapacities --all-namespaces --output \
        jsonpath='{range .items[*]}{.spec.claimRef.namespace} {.spec.volumeSnapshotRef.namespace} {.storageClassName}{"\n"}{end}') ||
        return 1
    ! grep -q belay-rights <<<"$owners"
}

end() {
    local kind
    for kind in pods volumesnapshots pvc; do
        kubectl --namespace belay-rights delete "$kind" --all --timeout=120s >/dev/null
    done
    kubectl delete storageclass,volumesnapshotclass --selector belay-test=rights >/dev/null
    await 120 "the end of volumes, snapshots and reports of room" has_ended
}

scenario() {
    make_classes
    live
    fail_often
    end
}

remove_leftovers() {
    kubectl delete namespace belay-rights --ignore-not-found --timeout=120s >/dev/null
    kubectl delete storageclass,volumesnapshotclass --selector belay-test=rights >/dev/null
}

tell_state() {
    kubectl --namespace belay-rights get pods,pvc,volumesnapshots,events || true
    kubectl get pv,volumesnapshotcontents || true
}
