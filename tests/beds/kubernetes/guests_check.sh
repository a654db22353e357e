#!/usr/bin/env bash
# A volume that moves from node to node, and power cuts of nodes, on a cluster whose guests run and
# have the driver (guests.sh).
#
#   guests_check.sh [CHECK...]
#
# A pod appends numbered lines to its volume, and syncs each. Lines that were written before the cut
# must be there when the pod is back, on its node or on another one.
set -Eeuo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
. "$here/guests_cloud.sh"

namespace=belay-cuts
. "$here/checks.sh"
. "$here/writer.sh"

is_lost() {
    kubectl wait --for=condition=Ready=Unknown "node/$1" --timeout=1s
}

# For a cloud that expands only detached volumes: the pod starts again once its volume has grown.
grow_while_detached() {
    k scale statefulset writer --replicas 0 >/dev/null
    k wait pod/writer-0 --for=delete --timeout="${seconds_max}s" >/dev/null
    request_growth
    await "$seconds_max" "the growth in the cloud" volumes "[x['size'] for x in v] == [2]"
    k scale statefulset writer --replicas 1 >/dev/null
}

# Expands the volume, and reads it with the next pod on the other node. The cloud shows whether the
# volume is deleted.
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

check_a_node_returns() {
    local filesystem
    for filesystem in ext4 xfs btrfs; do survives_a_cut "$filesystem"; done
}

# The node stays off; the taint that declares it lost lets its pod start on the other node.
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
    # The node's memory of the pod and its volume must not harm the volume, which moves back.
    restart_pod
    await "$seconds_max" "the pod after its return" is_writing
    has_lines "$lines"
    stop ext4
}

# Records attachments as the driver that Belay replaces does: with its single key, or with none.
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

# Removes the whole driver, and installs Belay in its place, under a pod that continues to write.
# Then another pod on the node uses the volume, and the volume moves to the other node.
check_the_driver_is_replaced_under_a_pod() {
    local values lines uid
    start ext4
    await "$seconds_max" "the first line of the pod" is_writing
    uid=$(k get pod writer-0 --output jsonpath='{.metadata.uid}')
    values=$(mktemp)
    helm get values belay --namespace "$driver_namespace" --output yaml >"$values"
    # The sidecars must end before they lose their rights.
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
run_checks guests "${checks[@]}"
