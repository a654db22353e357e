#!/usr/bin/env bash
# Switches from cinder-csi-plugin to Belay and back, as docs/switching describes, with the plugin's
# real program, on a cluster whose guests run with CLOUD=openstack: each driver is replaced by the
# other under a pod that writes, whose volume the replaced driver has created, attached, staged and
# published. Ends without a driver.
#
#   cinder_csi_check.sh BELAYCTL [CHECK...]
set -Eeuo pipefail
here=$(dirname "$(readlink -f "$0")")
belayctl=$(readlink -f "${1:?the program belayctl}")
shift
. "$here/env.sh"
. "$here/guests_cloud.sh"
. "$here/../../deploy/doctor.sh"

namespace=belay-rehearsal
. "$here/checks.sh"
. "$here/page.sh"
. "$here/writer.sh"

# Variables for page.sh.
# shellcheck disable=SC2034
page=switching/cinder-csi.md section='Switch to Belay'
plugin_namespace=kube-system
controller=csi-cinder-controllerplugin
# The address at which the plugin looks for the metadata service; it has no flag for another
# address.
link_local=169.254.169.254
work=$BASE/run/cinder-csi

is_openstack || give_up "the guests have another cloud; please start them with CLOUD=openstack"

import_images() {
    local archive
    for archive in $("$here/cinder_csi/image.sh"); do
        "$here/guests.sh" import "$archive"
        "$here/cluster.sh" exec ctr --namespace k8s.io images import "$archive" >/dev/null
    done
}

# Serves metadata. Guests reach the address through the gateway of their network.
serve_metadata() {
    local name servers=()
    # shellcheck disable=SC2012
    for name in $(ls "$BASE/guests"); do
        servers+=("$(guest_address "$name")=$(cat "$BASE/guests/$name/server")")
    done
    "$here/cluster.sh" exec ip address replace "$link_local/32" dev br0
    user metadata "$link_local:80" "${servers[@]}" >"$BASE/log/link-local.log" 2>&1 </dev/null &
}

# Sets the provider IDs of nodes, as the cloud controller manager does.
write_provider_ids() {
    local name
    # shellcheck disable=SC2012
    for name in $(ls "$BASE/guests"); do
        kubectl patch node "$name" --patch \
            "{\"spec\": {\"providerID\": \"openstack:///$(cat "$BASE/guests/$name/server")\"}}" >/dev/null
    done
}

p() {
    kubectl --namespace "$plugin_namespace" "$@"
}

# Creates the Secret as in the plugin's manifests.
put_secret() {
    p create secret generic cloud-config --from-file="$BASE/run/clone/cloud.conf" --dry-run=client \
        --output yaml | kubectl apply --filename - >/dev/null
}

install_plugin() {
    kubectl apply --filename "$here/cinder_csi/plugin.yaml" >/dev/null
    p rollout status "deployment/$controller" daemonset/csi-cinder-nodeplugin --timeout=3m >/dev/null
    await "$seconds_max" "the plugin on all nodes" has_driver_everywhere
}

# Removes all objects of the plugin except the Secret.
remove_plugin() {
    kubectl delete --filename "$here/cinder_csi/plugin.yaml" --ignore-not-found --timeout=2m >/dev/null
}

# Prepares the release by the page: values, namespace and Secret.
prepare_belay() {
    block yaml 1 | sed 's/\bNAME\b/kubernetes/' >"$BASE/run/clone/belay.yaml"
    follow 4 >/dev/null
    follow 5 >/dev/null
}

install_belay() {
    follow 3 >/dev/null
    await "$seconds_max" "Belay on all nodes" has_driver_everywhere
}

uid() {
    k get pod writer-0 --output jsonpath='{.metadata.uid}'
}

# writes_on UID: whether the pod with this UID continues to write and was never restarted.
writes_on() {
    local before
    before=$(synced)
    await 60 "lines of the pod" has_written $((before + 10))
    [ "$(uid)" = "$1" ]
    [ "$(restarts)" = 0 ]
}

# says CODE LINE...: checks the report of belayctl. Runs in a subshell, which ends at the first line
# that the report lacks.
says() (
    doctor "$1"
    expect "${@:2}"
)

# cure LINE: prints the command of the finding that begins with LINE.
cure() {
    grep -F -- "$1" "$work/report" | grep -o 'kubectl [^;]*'
}

# has_only NAME...: whether only findings with these names are wrong.
has_only() {
    local names
    names=$(printf '|%s' "$@")
    ! grep '^NO ' "$work/report" | grep -vE "^NO (${names#|}) "
}

# Whether the volume has a mark of Belay, which shows that Belay created it: the plugin writes none.
is_marked() {
    cloud_volumes | grep -q '"belay\.dev/'
}

is_unmarked() {
    ! is_marked
}

# Checks that another pod on the node reads all lines.
is_read_by_another() {
    pod reader "$(node_of)" data-writer-0 'sleep 3600'
    k exec reader -- awk -v least="$1" \
        'NR != $1 { bad = 1 } END { exit bad || NR < least }' /data/lines
    k delete pod reader --timeout="${seconds_max}s" >/dev/null
}

# used_by_the_next FILESYSTEM UID KIB: with the driver that was installed last, expands the volume
# under the pod, mounts it in another pod, and moves it to the other node; then deletes it.
used_by_the_next() {
    local filesystem=$1 lines
    shift
    grow_in_use "$2"
    lines=$(synced)
    is_read_by_another "$lines"
    has_lines "$lines"
    [ "$(uid)" = "$1" ]
    [ "$(restarts)" = 0 ]
    lines=$(synced)
    moves "$1" restart_pod
    has_lines "$lines"
    has_grown $(($2 * 3 / 2))
    cloud_has 2
    lines=$(synced)
    await 60 "lines on the other node" has_written $((lines + 10))
    stop "$filesystem"
    await "$seconds_max" "the deletion of the volume" cloud_is_empty
}

# start_raw NODE COMMAND: starts a pod with the raw volume, which runs COMMAND.
start_raw() {
    k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: raw}
spec:
  nodeName: $1
  terminationGracePeriodSeconds: 0
  containers:
    - name: shell
      image: localhost/busybox:1
      command: [sh, -c, '$2; sleep 2147483647']
      volumeDevices: [{name: data, devicePath: /dev/data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: raw}}]
YAML
    await_pod raw
}

# Prints the checksum of the data that the raw pod has written.
raw_sum() {
    k exec raw -- sh -c 'dd if=/dev/data bs=1M count=8 2>/dev/null | sha256sum'
}

# raw_moves SUM UID: checks that the pod with the raw volume published by the plugin continues, and
# then uses the volume on the other node.
raw_moves() {
    [ "$(raw_sum)" = "$1" ]
    [ "$(k get pod raw --output jsonpath='{.metadata.uid} {.status.containerStatuses[0].restartCount}')" = "$2 0" ]
    k delete pod raw --timeout="${seconds_max}s" >/dev/null
    start_raw "$(ls "$BASE/guests" | tail -n 1)" true
    [ "$(raw_sum)" = "$1" ]
    k delete pod/raw persistentvolumeclaim/raw --timeout="${seconds_max}s" >/dev/null
    await "$seconds_max" "the deletion of the raw volume" volumes 'len(v) == 1'
}

# stop_plugin VOLUMES: stops the plugin with the commands that belayctl prints, while this many
# volumes are attached.
stop_plugin() {
    local lease=cinder-csi-openstack-org node=csi-cinder-nodeplugin volumes=$1
    doctor 2
    has_only 'pods of the driver' 'leases of the sidecars'
    expect "NO pods of the driver Deployment $plugin_namespace/$controller: 1" \
        "NO pods of the driver DaemonSet $plugin_namespace/$node: 2" \
        "Secret $plugin_namespace/cloud-config copy it into Belay's namespace" \
        'ok node IDs 2 nodes, 2 of them compared' "ok attachments $volumes complete" \
        "ok volumes $volumes can be taken over"
    grep '^NO leases' "$work/report" | grep -q "$lease"
    bash -c "$(cure "Deployment $plugin_namespace/$controller")" >/dev/null
    await 120 "the end of the leases" says 2 'ok leases of the sidecars none is held' \
        "ok pods of the driver Deployment $plugin_namespace/$controller: none"
    doctor 2
    has_only 'pods of the driver'
    bash -c "$(cure "DaemonSet $plugin_namespace/$node")" >/dev/null
    await 120 "the end of its pods" says 0 "ok attachments $volumes complete"
    [ -z "$(p get pods --selector "app in ($controller, $node)" --output name)" ]
    # Remove the CSIDriver object and the rights of the sidecars, too.
    remove_plugin
    doctor 0
}

# Stops the plugin as belayctl says, and installs Belay as the page says.
check_belay_replaces_cinder_csi() {
    local filesystem uid kib sum raw
    for filesystem in ext4 xfs; do
        remove_driver
        install_plugin
        start "$filesystem"
        await "$seconds_max" "the first line of the pod" is_writing
        uid=$(uid) kib=$(data_kib)
        [ "$(node_of)" = "$first" ]
        cloud_has 1
        is_unmarked
        request raw "belay-cuts-$filesystem" ReadWriteOnce 'volumeMode: Block'
        start_raw "$first" 'dd if=/dev/urandom of=/dev/data bs=1M count=8 conv=fsync'
        sum=$(raw_sum) raw=$(k get pod raw --output jsonpath='{.metadata.uid}')
        prepare_belay
        stop_plugin 2
        writes_on "$uid"
        install_belay
        writes_on "$uid"
        raw_moves "$sum" "$raw"
        used_by_the_next "$filesystem" "$uid" "$kib"
    done
}

# Creates a volume with Belay, and installs the plugin again.
check_cinder_csi_replaces_belay() {
    local filesystem uid kib
    for filesystem in ext4 xfs; do
        remove_driver
        prepare_belay
        install_belay
        start "$filesystem"
        await "$seconds_max" "the first line of the pod" is_writing
        uid=$(uid) kib=$(data_kib)
        [ "$(node_of)" = "$first" ]
        cloud_has 1
        is_marked
        kubectl --namespace "$driver_namespace" scale deployment belay-controller-cinder --replicas 0 \
            >/dev/null
        kubectl --namespace "$driver_namespace" wait pod --selector belay.dev/driver=cinder --for=delete \
            --timeout=2m >/dev/null
        helm uninstall belay --namespace "$driver_namespace" --wait --timeout 2m >/dev/null
        writes_on "$uid"
        install_plugin
        writes_on "$uid"
        used_by_the_next "$filesystem" "$uid" "$kib"
        remove_plugin
    done
}

checks=("$@")
[ $# -gt 0 ] || checks=(belay_replaces_cinder_csi cinder_csi_replaces_belay)
mkdir -p "$BASE/run/clone" "$work"
credentials "$BASE/run/clone"
import_images
write_provider_ids
serve_metadata
put_secret
run_checks cinder-csi "${checks[@]}"
remove_driver
p delete secret cloud-config >/dev/null
