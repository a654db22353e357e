# shellcheck shell=bash
# Sourced by the checks that use a writing pod on guests: a StatefulSet whose pod appends numbered
# lines to its volume, and syncs each. `first` is the guest that the pod prefers, and `binding` the
# binding mode of its class.

# shellcheck disable=SC2012
first=$(ls "$BASE/guests" | head -n 1)

make_class() {
    k apply --filename - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: belay-cuts-$1}
provisioner: $guests_driver
allowVolumeExpansion: true
volumeBindingMode: ${binding:-Immediate}
parameters: {csi.storage.k8s.io/fstype: $1}
YAML
}

# start FILESYSTEM: starts a StatefulSet with one pod, which prefers the first guest.
start() {
    make_class "$1"
    k apply --filename - >/dev/null <<YAML
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: writer}
spec:
  serviceName: writer
  selector: {matchLabels: {app: writer}}
  template:
    metadata: {labels: {app: writer}}
    spec:
      terminationGracePeriodSeconds: 0
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              preference:
                matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [$first]}]
      containers:
        - name: shell
          image: localhost/busybox:1
          command:
            - sh
            - -c
            - |
              n=\$(wc -l </data/lines || echo 0)
              while :; do
                n=\$((n + 1)); echo \$n >>/data/lines; sync /data/lines; echo \$n >/tmp/synced; sleep 0.1
              done
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        storageClassName: belay-cuts-$1
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 1Gi}}
YAML
}

synced() {
    k exec writer-0 -- cat /tmp/synced
}

# is_writing [UID-BEFORE]: whether the pod runs, and has synced a line since its start.
is_writing() {
    [ "$(k get pod writer-0 --output jsonpath='{.metadata.uid}')" != "${1:-}" ] && synced
}

node_of() {
    k get pod writer-0 --output jsonpath='{.spec.nodeName}'
}

# has_lines N: whether the file contains lines 1, 2, 3, ... without a gap, and at least N of them.
has_lines() {
    k exec writer-0 -- awk -v least="$1" \
        'NR != $1 { bad = 1 } END { exit bad || NR < least }' /data/lines
}

stop() {
    k delete statefulset/writer persistentvolumeclaim/data-writer-0 --timeout="${seconds_max}s" \
        >/dev/null
    kubectl delete storageclass "belay-cuts-$1" >/dev/null
    await "$seconds_max" "the end of all volumes" no_volumes
}

# Whether no volume of this driver exists; the suite's volumes on node1 are deleted when its
# controller comes back.
no_volumes() {
    [ -z "$(kubectl get persistentvolumes --output \
        jsonpath="{.items[?(@.spec.csi.driver=='$guests_driver')].metadata.name}")" ] &&
        [ -z "$(kubectl get volumeattachments --output name)" ]
}

restarts() {
    k get pod writer-0 --output jsonpath='{.status.containerStatuses[0].restartCount}'
}

# Prints the size of the filesystem that the pod sees, in KiB.
data_kib() {
    k exec writer-0 -- df -k /data | awk 'END { print $(NF - 4) }'
}

has_grown() {
    [ "$(data_kib)" -gt "$1" ]
}

# cloud_has SIZE: whether the cloud has a single volume, of SIZE GiB, attached to the server of the
# pod's node. The node knows its server from the metadata service, and has a disk with the volume's
# serial.
cloud_has() {
    local name server
    has_volumes || return 0
    name=$(node_of) && server=$(cat "$BASE/guests/$name/server") &&
        [ "$(kubectl get csinode "$name" --output \
            jsonpath="{.spec.drivers[?(@.name=='$guests_driver')].nodeID}")" = "$server" ] &&
        volumes "[(x['size'], x['servers']) for x in v] == [($1, ['$server'])]" &&
        cloud_volumes | python3 -c 'import json, sys
print("test -b /dev/disk/by-id/" + json.load(sys.stdin)[0]["link"])' |
        "$here/guests.sh" run "$name"
}

cloud_is_empty() {
    ! has_volumes || volumes 'v == []'
}

request_growth() {
    k patch persistentvolumeclaim data-writer-0 --patch \
        '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}' >/dev/null
}

# grow_in_use KIB: expands the volume from this size.
grow_in_use() {
    request_growth
    await "$seconds_max" "the growth of the volume" has_grown $(($1 * 3 / 2))
    await 60 "the growth in the cloud" cloud_has 2
}

has_driver_everywhere() {
    local name
    for name in $(ls "$BASE/guests"); do is_registered "$name" || return 1; done
}

# Deletes the pod of the StatefulSet, which starts again if a node accepts it.
restart_pod() {
    k delete pod writer-0 --timeout="${seconds_max}s" >/dev/null
}

# moves UID COMMAND: checks that the pod with this UID, which the command ends, starts on the other
# node.
moves() {
    kubectl cordon "$first" >/dev/null
    "$2"
    await "$seconds_max" "the pod on the other node" is_writing "$1"
    kubectl uncordon "$first" >/dev/null
    [ "$(node_of)" != "$first" ]
}

has_written() {
    [ "$(synced)" -gt "$1" ]
}

has_restarted() {
    [ "$(restarts)" -gt "$1" ] && synced
}

# survives_a_cut FILESYSTEM: the node returns at once, and its pod starts again there.
survives_a_cut() {
    local lines count
    start "$1"
    await "$seconds_max" "the first line of the pod" is_writing
    [ "$(node_of)" = "$first" ]
    lines=$(synced) count=$(restarts)
    "$here/guests.sh" cut "$first"
    "$here/guests.sh" boot "$first"
    await "$seconds_max" "the pod after the power cut" has_restarted "$count"
    has_lines "$lines"
    stop "$1"
}
