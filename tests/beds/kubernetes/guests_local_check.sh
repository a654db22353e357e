#!/usr/bin/env bash
# Checks the driver `local` on a cluster whose guests run with CLOUD=local and have the driver
# (guests.sh): volumes are on the disks of three nodes, restores and clones on the disk
# of their source, and nodes lose power.
#
#   guests_local_check.sh [CHECK...]
#
# BELAY_NIGHTLY=1 repeats more, and forgets the disk of a lost node, which takes eight minutes.
set -Eeuo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
. "$here/guests_local.sh"

namespace=belay-disks
class=belay-local
snapshot_class=belay-local
binding=WaitForFirstConsumer
rounds=${ROUNDS:-$([ -n "${BELAY_NIGHTLY:-}" ] && echo 20 || echo 3)}
# The silence of a disk before it is forgotten, and the time after which it is gone.
gone_seconds=180
. "$here/checks.sh"
. "$here/writer.sh"

# free_pod NAME CLAIM COMMAND [SPEC]: creates a pod, for which the scheduler selects the node. SPEC
# is added to its spec, in YAML's flow style.
free_pod() {
    k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec: {${4:+$4, }terminationGracePeriodSeconds: 0, containers: [{name: shell,
  image: "localhost/busybox:1", command: [sh, -ec, '$3'],
  volumeMounts: [{name: data, mountPath: /data}]}],
  volumes: [{name: data, persistentVolumeClaim: {claimName: $2}}]}
YAML
}

# only NODE, rather NODE: print what selects or prefers a node, for the last argument of free_pod.
only() {
    printf 'nodeSelector: {kubernetes.io/hostname: %s}' "$1"
}

rather() {
    printf 'affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{%s}]}}' \
        "weight: 100, preference: {matchExpressions: [{key: kubernetes.io/hostname, \
operator: In, values: [$1]}]}"
}

# wanted NAME [SOURCE]: creates a claim of the class, which its pod binds.
wanted() {
    request "$1" "$class" ReadWriteOnce "${2:-}"
}

node_of_pod() {
    k get pod "$1" --output jsonpath='{.spec.nodeName}'
}

# place_of CLAIM: prints the node that has the claim's volume.
place_of() {
    kubectl get localvolume "$(volume_of "$1")" --output jsonpath='{.spec.node}'
}

sum_of() {
    k exec "$1" -- sha256sum /data/file
}

# run_on NODE <SCRIPT
run_on() {
    if [ "$1" = "$node" ]; then
        "$here/cluster.sh" exec bash -s
    else
        "$here/guests.sh" run "$1"
    fi
}

# files_on NODE: prints the files of the volumes and snapshots on the node.
files_on() {
    run_on "$1" <<<'find /var/lib/belay/{volumes,snapshots} -type f | sort'
}

# Whether no object and no file of any volume or snapshot exists.
is_empty() {
    local name
    has_left_none && [ -z "$(kubectl get localvolumes,localsnapshots --output name)" ] || return 1
    for name in "${nodes[@]}"; do [ -z "$(files_on "$name")" ] || return 1; done
}

# Removes the objects of a check. Nothing may be left.
remove_all() {
    k delete statefulset --all --timeout="${seconds_max}s" >/dev/null
    end_pods
    k delete volumesnapshot,persistentvolumeclaim --all --timeout="${seconds_max}s" >/dev/null
    await "$seconds_max" "the end of all volumes and snapshots" is_empty
}

# has_reported NODE TIME: whether the node's store has reported the disk since.
has_reported() {
    [[ "$(kubectl get localdisk "$1.default" --output jsonpath='{.status.reported}')" > "$2" ]]
}

# has_room NODE CLASS: whether the scheduler has learned of room for the class on the node. Otherwise
# it would select another node, whatever a pod prefers.
has_room() {
    kubectl --namespace "$driver_namespace" get csistoragecapacities --output jsonpath="{range \
.items[?(@.storageClassName=='$2')]}{.nodeTopology.matchLabels.*} {.capacity}{'\n'}{end}" |
        grep -q "^$1 [1-9]"
}

await_room() {
    await "$seconds_max" "room for $2 on $1" has_room "$@"
}

now() {
    date --utc +%FT%TZ
}

spread() {
    k apply --filename - >/dev/null <<YAML
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: spread}
spec:
  serviceName: spread
  replicas: ${#nodes[@]}
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: spread}}
  template:
    metadata: {labels: {app: spread}}
    spec:
      terminationGracePeriodSeconds: 0
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector: {matchLabels: {app: spread}}
      containers:
        - name: shell
          image: localhost/busybox:1
          command:
            - sh
            - -c
            - '[ -e /data/name ] || hostname >/data/name && sync && exec sleep 3600'
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        storageClassName: $class
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 1Gi}}
YAML
}

is_spread() {
    [ "$(k get statefulset spread --output jsonpath='{.status.readyReplicas}')" = ${#nodes[@]} ]
}

# Prints the pods with their nodes.
placed() {
    k get pods --selector app=spread \
        --output jsonpath='{range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}' | sort
}

# Each pod comes back to its data.
check_three_pods_are_on_three_nodes() {
    local before pod place
    spread
    await "$seconds_max" "a pod on each node" is_spread
    before=$(placed)
    [ "$(cut -d ' ' -f 2 <<<"$before" | sort | paste -sd ' ')" = "${nodes[*]}" ]
    k delete pod --selector app=spread --timeout="${seconds_max}s" >/dev/null
    await "$seconds_max" "the pods again" is_spread
    [ "$(placed)" = "$before" ]
    while read -r pod place; do
        [ "$(place_of "data-$pod")" = "$place" ]
        [ "$(k exec "$pod" -- cat /data/name </dev/null)" = "$pod" ]
    done <<<"$before"
    remove_all
}

# The pod of the restore can run on any node; the pod of the clone would rather run on another one.
check_restores_and_clones_follow_their_source() {
    local round home other sum name
    for ((round = 0; round < rounds; round++)); do
        home=${nodes[round % ${#nodes[@]}]} other=${nodes[(round + 1) % ${#nodes[@]}]}
        wanted source
        free_pod source source 'dd if=/dev/urandom of=/data/file bs=1M count=8 && sync &&
            exec sleep 3600' "$(only "$home")"
        await_pod source
        await 60 "the source's data" sum_of source
        sum=$(sum_of source)
        snapshot moment source
        wanted restored "$(from_snapshot moment)"
        wanted cloned "$(from_claim source)"
        free_pod restored restored 'exec sleep 3600'
        free_pod cloned cloned 'exec sleep 3600' "$(rather "$other")"
        for name in restored cloned; do
            await_pod "$name"
            [ "$(node_of_pod "$name")" = "$home" ]
            [ "$(place_of "$name")" = "$home" ]
            [ "$(sum_of "$name")" = "$sum" ]
        done
        remove_all
    done
}

# is_refused POD: whether the scheduler finds no node for the pod because of its volume.
is_refused() {
    k get pod "$1" --output jsonpath='{.status.conditions[?(@.type=="PodScheduled")].message}' |
        grep -q "didn't match PersistentVolume's node affinity"
}

# The volume is created where its source is, so its pod waits.
check_a_restore_for_another_node_waits() {
    wanted source
    free_pod source source 'exec sleep 3600' "$(only "${nodes[0]}")"
    await_pod source
    snapshot moment source
    wanted far "$(from_snapshot moment)"
    free_pod far far 'exec sleep 3600' "$(only "${nodes[1]}")"
    await "$seconds_max" "the scheduler's reason" is_refused far
    [ "$(k get pod far --output jsonpath='{.status.phase}')" = Pending ]
    [ "$(place_of far)" = "${nodes[0]}" ]
    remove_all
}

# The scheduler still considers the node ready, and selects it for the volume.
check_a_silent_node_is_passed_over() {
    local started booted
    [ -z "$(files_on "$first")" ]
    await_room "$first" "$class"
    "$here/guests.sh" cut "$first"
    started=$SECONDS
    wanted passed
    free_pod passed passed 'exec sleep 3600' "$(rather "$first")"
    await_pod passed
    printf 'local: the pod runs on another node after %d s\n' $((SECONDS - started))
    [ "$(node_of_pod passed)" != "$first" ]
    [ "$(place_of passed)" = "$(node_of_pod passed)" ]
    # The first attempt was on the node that is off.
    [ -n "$(k get events --output name --field-selector \
        involvedObject.name=passed,reason=ProvisioningFailed)" ]
    booted=$(now)
    "$here/guests.sh" boot "$first"
    await "$seconds_max" "a report of the disk that is back" has_reported "$first" "$booted"
    [ -z "$(kubectl get localvolumes --field-selector "spec.node=$first" --output name)" ]
    [ -z "$(files_on "$first")" ]
    remove_all
}

# prepare FILESYSTEM: creates the class of the pod that writes, so that the pod gets its preference.
prepare() {
    make_class "$1"
    await_room "$first" "belay-cuts-$1"
}

check_volumes_survive_a_power_cut() {
    local filesystem
    for filesystem in ext4 xfs btrfs; do
        prepare "$filesystem"
        survives_a_cut "$filesystem"
    done
}

has_unlisted() {
    [ "$(kubectl get localdisk "$1.default" \
        --output jsonpath='{.status.unlisted.count}')" = "$2" ]
}

is_deleted() {
    ! kubectl get persistentvolume "$1"
}

# As `belayctl local forget` does. The claim is created again, and its volume elsewhere. The file
# stays on the disk, so this check is the last.
check_a_lost_disk_is_forgotten() {
    local volume uid started
    prepare ext4
    start ext4
    await "$seconds_max" "the first line of the pod" is_writing
    [ "$(node_of)" = "$first" ]
    volume=$(volume_of data-writer-0) uid=$(k get pod writer-0 --output jsonpath='{.metadata.uid}')
    "$here/guests.sh" cut "$first"
    sleep "$gone_seconds"
    kubectl delete localdisk "$first.default" >/dev/null
    sleep "$gone_seconds"
    started=$SECONDS
    k delete persistentvolumeclaim data-writer-0 --wait=false >/dev/null
    k delete pod writer-0 --force >/dev/null 2>&1
    await "$seconds_max" "the deletion of the volume $volume" is_deleted "$volume"
    await "$seconds_max" "the pod on another node" is_writing "$uid"
    printf 'local: the pod has a new volume after %d s\n' $((SECONDS - started))
    [ "$(node_of)" != "$first" ]
    "$here/guests.sh" boot "$first"
    await "$seconds_max" "the disk with one unlisted file" has_unlisted "$first" 1
    stop ext4
}

is_local || give_up "the guests have no disks for volumes; please start them with CLOUD=local"
mapfile -t nodes < <(printf '%s\n' "$node" && ls "$BASE/guests")
checks=("$@")
[ $# -gt 0 ] || checks=(three_pods_are_on_three_nodes restores_and_clones_follow_their_source
    a_restore_for_another_node_waits a_silent_node_is_passed_over volumes_survive_a_power_cut
    ${BELAY_NIGHTLY:+a_lost_disk_is_forgotten})
run_checks local "${checks[@]}"
