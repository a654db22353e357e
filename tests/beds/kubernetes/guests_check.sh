#!/usr/bin/env bash
# A volume that moves from node to node, and power cuts of nodes, on a cluster whose guests run and
# have the driver (guests.sh).
#
#   guests_check.sh [CHECK...]
#
# A pod appends numbered lines to its volume, each synced. Lines that were written before the cut
# must be there when the pod is back: on its node, or on another one.
set -Eeuo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
. "$here/guests_cloud.sh"

namespace=belay-cuts
. "$here/checks.sh"

# start FILESYSTEM: a StatefulSet of one pod, which prefers the first guest.
start() {
    k apply --filename - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: belay-cuts-$1}
provisioner: $guests_driver
allowVolumeExpansion: true
parameters: {csi.storage.k8s.io/fstype: $1}
---
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

# is_writing [UID-BEFORE]: the pod runs, and has synced a line since its start.
is_writing() {
    [ "$(k get pod writer-0 --output jsonpath='{.metadata.uid}')" != "${1:-}" ] && synced
}

node_of() {
    k get pod writer-0 --output jsonpath='{.spec.nodeName}'
}

# Lines 1, 2, 3, ... without a gap, and at least so many.
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

# Of this driver: those of the suite on node1 are deleted when its controller comes back.
no_volumes() {
    [ -z "$(kubectl get persistentvolumes --output \
        jsonpath="{.items[?(@.spec.csi.driver=='$guests_driver')].metadata.name}")" ] &&
        [ -z "$(kubectl get volumeattachments --output name)" ]
}

is_lost() {
    kubectl wait --for=condition=Ready=Unknown "node/$1" --timeout=1s
}

restarts() {
    k get pod writer-0 --output jsonpath='{.status.containerStatuses[0].restartCount}'
}

has_restarted() {
    [ "$(restarts)" -gt "$1" ] && synced
}

# The bytes of the filesystem that the pod sees.
data_kib() {
    k exec writer-0 -- df -k /data | awk 'END { print $(NF - 4) }'
}

has_grown() {
    [ "$(data_kib)" -gt "$1" ]
}

# cloud_has SIZE: the cloud has the one volume, of that size in GiB, at the server of the pod's node.
# The node knows its server by the metadata service, and has a disk with the volume's serial.
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

# grow_in_use KIB: from so many.
grow_in_use() {
    request_growth
    await "$seconds_max" "the growth of the volume" has_grown $(($1 * 3 / 2))
    await 60 "the growth in the cloud" cloud_has 2
}

# Where the cloud grows only detached volumes; the pod starts again when it has.
grow_while_detached() {
    k scale statefulset writer --replicas 0 >/dev/null
    k wait pod/writer-0 --for=delete --timeout="${seconds_max}s" >/dev/null
    request_growth
    await "$seconds_max" "the growth in the cloud" volumes "[x['size'] for x in v] == [2]"
    k scale statefulset writer --replicas 1 >/dev/null
}

# It grows, and its next pod reads it on the other node. Whether the volume is deleted is seen in the
# cloud.
check_a_volume_moves() {
    local filesystem lines uid kib
    await "$seconds_max" "the deletion of all volumes before" cloud_is_empty
    for filesystem in ext4 xfs btrfs; do
        start "$filesystem"
        await "$seconds_max" "the first line of the pod" is_writing
        [ "$(node_of)" = "$first" ]
        cloud_has 1
        kib=$(data_kib)
        is_civo || grow_in_use "$kib"
        lines=$(synced) uid=$(k get pod writer-0 --output jsonpath='{.metadata.uid}')
        if is_civo; then moves "$uid" grow_while_detached; else moves "$uid" restart_pod; fi
        has_lines "$lines"
        has_grown $((kib * 3 / 2))
        cloud_has 2
        stop "$filesystem"
        await "$seconds_max" "the deletion of the volume" cloud_is_empty
    done
}

# The node returns at once: its pod starts again there.
check_a_node_returns() {
    local filesystem lines count
    for filesystem in ext4 xfs btrfs; do
        start "$filesystem"
        await "$seconds_max" "the first line of the pod" is_writing
        [ "$(node_of)" = "$first" ]
        lines=$(synced) count=$(restarts)
        "$here/guests.sh" cut "$first"
        "$here/guests.sh" boot "$first"
        await "$seconds_max" "the pod after the power cut" has_restarted "$count"
        has_lines "$lines"
        stop "$filesystem"
    done
}

# The node stays off: the taint that declares it lost lets its pod start on the other node.
check_a_node_is_gone() {
    local lines uid taint=node.kubernetes.io/out-of-service=nodeshutdown:NoExecute
    start ext4
    await "$seconds_max" "the first line of the pod" is_writing
    [ "$(node_of)" = "$first" ]
    lines=$(synced) uid=$(k get pod writer-0 --output jsonpath='{.metadata.uid}')
    "$here/guests.sh" cut "$first"
    await "$seconds_max" "the loss of the node $first" is_lost "$first"
    kubectl taint node "$first" "$taint" >/dev/null
    await "$seconds_max" "the pod on the other node" is_writing "$uid"
    [ "$(node_of)" != "$first" ]
    has_lines "$lines"
    "$here/guests.sh" boot "$first"
    kubectl taint node "$first" "$taint-" >/dev/null
    # What the node remembers of the pod and its volume must not harm the volume, which moves back.
    restart_pod
    await "$seconds_max" "the pod after its return" is_writing
    has_lines "$lines"
    stop ext4
}

# As the driver that Belay replaces records them: with its one key, or none.
record_attachments_as_others() {
    local attachment volume recorded
    while read -r attachment volume; do
        case $guests_driver in
            cinder.*) recorded='{"DevicePath": "/dev/vdz"}' ;;
            dobs.*) recorded="{\"$guests_driver/volume-name\": \"$volume\"}" ;;
            *) recorded='{}' ;;
        esac
        kubectl patch volumeattachment "$attachment" --subresource=status --type=json --patch \
            "[{\"op\": \"add\", \"path\": \"/status/attachmentMetadata\", \"value\": $recorded}]" >/dev/null
    done < <(kubectl get volumeattachments --output jsonpath="{range \
        .items[?(@.spec.attacher=='$guests_driver')]}{.metadata.name} {.spec.source.persistentVolumeName}{'\n'}{end}")
}

has_driver_everywhere() {
    local name
    for name in $(ls "$BASE/guests"); do is_registered "$name" || return 1; done
}

# The pod of the StatefulSet ends, and starts again if a node takes it.
restart_pod() {
    k delete pod writer-0 --timeout="${seconds_max}s" >/dev/null
}

# moves UID COMMAND: the pod of that UID, which the command ends, starts on the other node.
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

# All of the driver leaves, and Belay comes in its place, under a pod that writes on. Its volume is then
# used by another pod of the node, and moves to the other node.
check_the_driver_is_replaced_under_a_pod() {
    local values lines uid
    start ext4
    await "$seconds_max" "the first line of the pod" is_writing
    uid=$(k get pod writer-0 --output jsonpath='{.metadata.uid}')
    values=$(mktemp)
    helm get values belay --namespace "$driver_namespace" --output yaml >"$values"
    # Its sidecars end before they lose their rights.
    kubectl --namespace "$driver_namespace" scale deployment --all --replicas 0 >/dev/null
    kubectl --namespace "$driver_namespace" wait pod --selector belay.dev/driver --for=delete \
        --timeout=60s >/dev/null
    helm uninstall belay --namespace "$driver_namespace" --wait --timeout 2m >/dev/null
    record_attachments_as_others
    lines=$(synced)
    await 30 "lines without a driver" has_written $((lines + 10))
    helm install belay "$here/../../../deploy/chart" --namespace "$driver_namespace" \
        --values "$values" --wait --timeout 5m >/dev/null
    rm "$values"
    await "$seconds_max" "the driver on all nodes" has_driver_everywhere
    lines=$(synced)
    await 30 "lines with the new driver" has_written $((lines + 10))
    [ "$(k get pod writer-0 --output jsonpath='{.metadata.uid}')" = "$uid" ]
    [ "$(restarts)" = 0 ]
    pod reader "$first" data-writer-0 'sleep 3600'
    k exec reader -- awk -v least="$lines" \
        'NR != $1 { bad = 1 } END { exit bad || NR < least }' /data/lines
    k delete pod reader --timeout="${seconds_max}s" >/dev/null
    has_lines "$lines"
    moves "$uid" restart_pod
    has_lines "$lines"
    stop ext4
}

checks=("$@")
[ $# -gt 0 ] ||
    checks=(a_volume_moves a_node_returns a_node_is_gone the_driver_is_replaced_under_a_pod)
# shellcheck disable=SC2012
first=$(ls "$BASE/guests" | head -n 1)
run_checks guests "${checks[@]}"
