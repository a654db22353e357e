#!/usr/bin/env bash
# Checks the driver `local` on a cluster whose guests run with CLOUD=local and have the driver
# (guests.sh): volumes are on the disks of three nodes, restores and clones on the disk
# of their source, and nodes lose power.
#
#   guests_local_check.sh [CHECK...]
#
# BELAY_NIGHTLY=1 repeats more.
set -Eeuo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
. "$here/guests_local_pods.sh"

rounds=${ROUNDS:-$([ -n "${BELAY_NIGHTLY:-}" ] && echo 20 || echo 3)}

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

check_volumes_survive_a_power_cut() {
    local filesystem
    for filesystem in ext4 xfs btrfs; do
        prepare "$filesystem"
        survives_a_cut "$filesystem"
    done
}

# passphrases CURRENT [PREVIOUS]: writes the Secret of the encrypted class.
passphrases() {
    k create secret generic volume-key --dry-run=client --output yaml \
        --from-literal="encryptionPassphrase=$1" \
        ${2:+--from-literal="encryptionPassphrasePrevious=$2"} | k apply --filename - >/dev/null
}

make_encrypted_class() {
    k apply --filename - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: belay-encrypted}
provisioner: $guests_driver
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
parameters:
  encrypted: "true"
  csi.storage.k8s.io/node-stage-secret-name: volume-key
  csi.storage.k8s.io/node-stage-secret-namespace: $namespace
YAML
}

has_grown() {
    [ "$(k exec vault -- df -m /data | awk 'END { print $(NF - 4) }')" -gt 1500 ]
}

# file_of CLAIM: prints the file of the claim's volume on its node.
file_of() {
    printf '/var/lib/belay/volumes/'
    kubectl get persistentvolume "$(volume_of "$1")" --output jsonpath='{.spec.csi.volumeHandle}'
}

# opens CLAIM PASSPHRASE: whether the passphrase opens the file of the claim's volume.
opens() {
    run_on "$first" <<<"printf %s '$2' | cryptsetup open --test-passphrase --disable-locks \
        --key-file - $(file_of "$1")"
}

# has_mappers NUMBER: whether this number of encrypted volumes is staged on the first guest.
has_mappers() {
    [ "$(run_on "$first" <<<'ls /sys/block | grep -c ^dm- || true')" = "$1" ]
}

check_encrypted_volumes_grow_and_get_another_passphrase() {
    local sum name
    run_on "$first" <<<'modprobe --all dm-crypt xts'
    passphrases one
    make_encrypted_class
    await_room "$first" belay-encrypted
    request vault belay-encrypted ReadWriteOnce
    free_pod vault vault 'dd if=/dev/urandom of=/data/file bs=1M count=8 && sync &&
        exec sleep 3600' "$(only "$first")"
    await_pod vault
    await 60 "the data" sum_of vault
    sum=$(sum_of vault)
    [ "$(run_on "$first" <<<"head -c 4 $(file_of vault)")" = LUKS ]
    snapshot moment vault
    k patch persistentvolumeclaim vault --type merge \
        --patch '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}' >/dev/null
    await "$seconds_max" "the growth of the encrypted volume" has_grown
    # The restore has the passphrase of its source, which the Secret has as the previous one.
    passphrases two one
    request again belay-encrypted ReadWriteOnce "$(from_snapshot moment)"
    free_pod again again 'exec sleep 3600'
    await_pod again
    [ "$(sum_of again)" = "$sum" ]
    opens vault one
    k delete pod vault --timeout="${seconds_max}s" >/dev/null
    # Until the volume is unstaged, a new pod would use it as it is staged.
    await 120 "the unstage" has_mappers 1
    free_pod vault vault 'exec sleep 3600'
    await_pod vault
    [ "$(sum_of vault)" = "$sum" ]
    for name in vault again; do
        opens "$name" two
        if opens "$name" one; then
            echo "$name is still opened by its previous passphrase" >&2
            return 1
        fi
    done
    remove_all
    has_mappers 0
    k delete storageclass belay-encrypted >/dev/null
    k delete secret volume-key >/dev/null
}

checks=("$@")
[ $# -gt 0 ] || checks=(three_pods_are_on_three_nodes restores_and_clones_follow_their_source
    a_restore_for_another_node_waits encrypted_volumes_grow_and_get_another_passphrase
    a_silent_node_is_passed_over volumes_survive_a_power_cut)
run_checks local "${checks[@]}"
