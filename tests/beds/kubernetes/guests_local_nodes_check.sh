#!/usr/bin/env bash
# Checks what docs/operations.md and docs/runbook.md promise for nodes and disks of the driver
# `local` that are lost, replaced, copied, renamed or moved, by the commands of these pages. Needs a
# cluster as guests_local_check.sh does.
#
#   guests_local_nodes_check.sh BELAYCTL [CHECK...]
#
# BELAY_NIGHTLY=1 also forgets nodes, which needs minutes of silence. The last two of these checks
# leave a guest with another name, and a guest without its disk.
set -Eeuo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
. "$here/guests_cloud.sh"
. "$here/guests_local_pods.sh"

belayctl=${1:?the program belayctl}
shift
# The silence of a disk after which it can be forgotten, and the time after which it is then gone.
gone_seconds=185

# follow PAGE COMMAND [WORD...]: runs the command of belayctl that the page documents, with these
# words in place of the words in capitals. The page may break the line within the command.
follow() {
    local page=$1 command=$2 documented
    shift 2
    documented=$(tr '\n' ' ' <"$bed/../../../docs/$page" | grep -oE "belayctl $command( [A-Z]+)*" |
        head -n 1)
    [ "$(wc -w <<<"${documented#"belayctl $command"}")" = $# ] ||
        give_up "docs/$page does not document belayctl $command with $# words: $documented"
    # shellcheck disable=SC2086
    "$belayctl" $command "$@" --yes
}

# is_refused WHY COMMAND...: whether the command fails, and says why.
is_refused() {
    local why=$1 said
    shift
    if said=$("$@" 2>&1); then return 1; fi
    grep -qF "$why" <<<"$said" || { printf '%s\n' "$said" >&2 && return 1; }
}

# printed [PATTERN]: runs the commands, with this pattern, that belayctl has printed on stdin.
printed() {
    local commands
    commands=$(grep '^  kubectl ' | grep "${1:-}")
    bash -euo pipefail <<<"$commands" >/dev/null
}

# turn_off NODE...: cuts the power of these guests, and notes the time.
turn_off() {
    local name
    for name; do "$here/guests.sh" cut "$name"; done
    silent_since=$SECONDS
}

# Waits until the disks of the guests that were turned off can be forgotten.
await_silence() {
    local seconds=$((silent_since + gone_seconds - SECONDS))
    [ "$seconds" -le 0 ] || sleep "$seconds"
}

# has_problem NODE [WHY]: whether the disk has a problem that contains WHY; without WHY, whether it
# has none.
has_problem() {
    local problem
    problem=$(kubectl get localdisk "$1.default" --output jsonpath='{.status.problem}') || return 1
    if [ $# -gt 1 ]; then grep -qF "$2" <<<"$problem"; else [ -z "$problem" ]; fi
}

# is_alarmed NODE: whether a controller reports the disk to the alert BelayDiskUnusable.
is_alarmed() {
    local pod
    pod=$(kubectl --namespace "$driver_namespace" get pods --selector belay.dev/driver=local \
        --output jsonpath='{.items[0].metadata.name}')
    kubectl get --raw "/api/v1/namespaces/$driver_namespace/pods/$pod:9809/proxy/metrics" |
        grep -q "^belay_controller_disk_unusable{disk=\"$1.default\"} 1"
}

# delete_programs NODE [COMPONENT]: deletes Belay's pods on the node, as the runbook demands.
delete_programs() {
    kubectl --namespace "$driver_namespace" delete pods --field-selector "spec.nodeName=$1" \
        --selector "app.kubernetes.io/name=belay,app.kubernetes.io/component${2:+=$2}" >/dev/null
}

# keep NAME NODE: starts a pod on the node with a new volume, and prints the checksum of its data.
# If the volume exists, its data must not have changed.
keep() {
    wanted "$1"
    free_pod "$1" "$1" '[ -e /data/file ] || dd if=/dev/urandom of=/data/file bs=1M count=8;
        sync && exec sleep 3600' "$(only "$2")"
    await_pod "$1"
    await 60 "the data of $1" sum_of "$1"
    sum_of "$1"
}

# has_sum POD SUM: whether the pod runs, and its data is as before.
has_sum() {
    [ "$(sum_of "$1")" = "$2" ]
}

# start_writer: starts the StatefulSet of writer.sh on the first guest; sets `volume`, `uid` and
# `lines`, the number of lines that must never be lost.
start_writer() {
    prepare ext4
    start ext4
    await "$seconds_max" "the first line of the pod" is_writing
    [ "$(place_of data-writer-0)" = "$first" ]
    volume=$(volume_of data-writer-0) lines=$(synced)
    uid=$(k get pod writer-0 --output jsonpath='{.metadata.uid}')
}

# is_deleted KIND/NAME
is_deleted() {
    local found
    found=$(kubectl get "$1" --ignore-not-found --output name) || return 1
    [ -z "$found" ]
}

phase_of() {
    kubectl get localvolume "$1" --output jsonpath='{.status.phase}'
}

# Prints the identities of all objects that must survive.
identities() {
    kubectl get localdisks,localvolumes,persistentvolumes --output \
        jsonpath='{range .items[*]}{.kind} {.metadata.name} {.metadata.uid}{"\n"}{end}'
}

check_a_node_that_is_registered_again_keeps_its_volumes() {
    local before name
    start_writer
    before=$(identities)
    kubectl delete node "$first" >/dev/null
    # The kubelet, which is started again, registers the Node.
    run_on "$first" <<'SH'
kill "$(cat /node/run/kubelet.pid)"
SH
    await 60 "the Node again" is_registered "$first"
    await "$seconds_max" "the pod" is_writing
    lines=$(synced)
    await "$seconds_max" "more lines" has_lines $((lines + 5))
    [ "$(node_of)" = "$first" ]
    [ "$(identities)" = "$before" ]
    stop ext4
}

# The runbook: the empty disk is mounted, and the pods are deleted.
check_a_replaced_disk_is_used_after_a_reset() {
    local lost sum
    sum=$(keep lost "$first")
    lost=$(volume_of lost)
    turn_off "$first"
    mkfs.xfs -q -f "$disks/$first"
    "$here/guests.sh" boot "$first"
    await "$seconds_max" "a refusal of the empty disk" has_problem "$first" \
        "belayctl local reset $first default"
    delete_programs "$first"
    [ "$(phase_of "$lost")" = Ready ]
    await "$seconds_max" "the reset" follow runbook.md 'local reset' "$first" default
    [ "$(phase_of "$lost")" = Lost ]
    "$belayctl" local volumes | grep -q "$lost.* Lost"
    k delete persistentvolumeclaim lost --wait=false >/dev/null
    k delete pod lost --force >/dev/null 2>&1
    await "$seconds_max" "the deletion of the lost volume" is_deleted "persistentvolume/$lost"
    await_room "$first" "$class"
    [ "$(keep new "$first")" != "$sum" ]
    [ "$(place_of new)" = "$first" ]
    remove_all
}

# The copy is refused on a known node, and on a new one, which cannot get the place either.
check_a_copied_disk_is_refused() {
    start_writer
    turn_off "$first" "$second"
    mv "$disks/$second" "$disks/$second.own"
    cp --sparse=always "$disks/$first" "$disks/$second"
    "$here/guests.sh" boot "$first"
    "$here/guests.sh" boot "$second"
    await "$seconds_max" "a refusal of the copy" has_problem "$second" "mount the right disk"
    await 60 "the alert of the copy" is_alarmed "$second"
    "$here/guests.sh" cut "$second"
    "$here/guests.sh" boot "$second" "$second-new"
    await "$seconds_max" "a refusal of the copy" has_problem "$second-new" \
        "belayctl local rehome $first $second-new"
    is_refused "first run \`belayctl local forget $first\`" \
        follow operations.md 'local rehome' "$first" "$second-new"
    is_refused "its store still reports" follow operations.md 'local forget' "$first"
    await "$seconds_max" "the pod with the original" is_writing
    [ "$(node_of)" = "$first" ]
    has_lines "$lines"
    "$here/guests.sh" cut "$second"
    mv "$disks/$second.own" "$disks/$second"
    kubectl delete "node/$second-new" "localdisk/$second-new.default" >/dev/null
    "$here/guests.sh" boot "$second"
    await "$seconds_max" "the disk of $second" has_problem "$second"
    stop ext4
}

# Creates the PersistentVolume of the second volume again from its backup, for no claim.
restore_again() {
    python3 -c 'import json, sys
volume = json.load(sys.stdin)
name, spec = volume["metadata"]["name"], volume["spec"]
del spec["claimRef"]
spec["persistentVolumeReclaimPolicy"] = "Retain"
volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
print(json.dumps(volume))' <"$BASE/run/again.json" | kubectl create --filename - >/dev/null
}

is_ready_volume() {
    [ "$(phase_of "$1")" = Ready ]
}

# The node returns with three volumes: one has kept its claim, the PersistentVolume of the second
# was created again, and the third is only reported, until it is removed.
check_a_forgotten_node_returns() {
    local kept again id sums
    start_writer
    sums=("$(keep kept "$first")" "$(keep again "$first")")
    kept=$(volume_of kept) again=$(volume_of again)
    id=$(kubectl get localvolume "$volume" --output jsonpath='{.spec.id}')
    kubectl get persistentvolume "$again" --output json >"$BASE/run/again.json"
    turn_off "$first"
    is_refused "its store still reports" follow operations.md 'local forget' "$first"
    await_silence
    follow operations.md 'local forget' "$first" >"$BASE/run/forgotten"
    "$belayctl" local disks | grep -q "^$first .*gone: no LocalDisk"
    sleep "$gone_seconds"
    printed 'data-writer-0$' <"$BASE/run/forgotten"
    printed 'again$' <"$BASE/run/forgotten"
    # Kubernetes may have evicted them meanwhile.
    k delete pod writer-0 again --force --ignore-not-found >/dev/null 2>&1
    await "$seconds_max" "the deletion of $volume" is_deleted "persistentvolume/$volume"
    await "$seconds_max" "the deletion of $again" is_deleted "persistentvolume/$again"
    await "$seconds_max" "the pod on another node" is_writing "$uid"
    [ "$(node_of)" != "$first" ]
    restore_again
    "$here/guests.sh" boot "$first"
    await "$seconds_max" "the adoption of $again" is_ready_volume "$again"
    await "$seconds_max" "the disk with one unlisted file" has_unlisted "$first" 1
    "$belayctl" local unlisted | grep -q "$id.*$volume"
    [ "$(keep kept "$first")" = "${sums[0]}" ]
    [ "$(volume_of kept)" = "$kept" ]
    request again "$class" ReadWriteOnce "volumeName: $again"
    free_pod again again 'exec sleep 3600'
    await_pod again
    has_sum again "${sums[1]}"
    follow runbook.md 'local remove' "$id" >/dev/null
    k delete persistentvolumeclaim again --wait=false >/dev/null
    k delete pod again >/dev/null
    kubectl delete persistentvolume "$again" >/dev/null
    follow runbook.md 'local remove' \
        "$(kubectl get localvolume "$again" --output jsonpath='{.spec.id}')" >/dev/null
    k delete statefulset writer >/dev/null
    remove_all
    kubectl delete storageclass belay-cuts-ext4 >/dev/null
}

# serves_at NODE PLACE: checks that the writer continues on the second guest, which has this Node
# and now this place, and that a new volume, a snapshot, a restore and deletions work there.
serves_at() {
    local sum
    await "$seconds_max" "the pod on $1" is_writing "$uid"
    [ "$(node_of)" = "$1" ]
    [ "$(volume_of data-writer-0)" = "$volume" ]
    has_lines "$lines"
    await_room "$2" "$class"
    sum=$(keep new "$1")
    snapshot moment new
    wanted restored "$(from_snapshot moment)"
    free_pod restored restored 'exec sleep 3600'
    await_pod restored
    has_sum restored "$sum"
    [ "$(place_of restored)" = "$1" ]
    # The other guest is off.
    remove_all "$second"
    kubectl delete storageclass belay-cuts-ext4 >/dev/null
}

check_a_renamed_node_serves_after_a_rehome() {
    local new=$second-new
    first=$second start_writer
    kubectl drain "$second" --ignore-daemonsets --delete-emptydir-data >/dev/null 2>&1
    turn_off "$second"
    "$here/guests.sh" boot "$second" "$new"
    await "$seconds_max" "a refusal of the disk" has_problem "$new" \
        "belayctl local rehome $second $new"
    await_silence
    if is_writing "$uid" 2>/dev/null || has_room "$new" "$class"; then return 1; fi
    follow operations.md 'local forget' "$second" >/dev/null
    follow operations.md 'local rehome' "$second" "$new" | printed
    serves_at "$new" "$second"
}

# The old node fails before it is drained. The new one may have been renamed before.
check_disks_move_to_a_node_without_volumes() {
    local new
    new=$(kubectl get localdisks --output jsonpath="{.items[?(@.spec.place=='$second')].spec.node}")
    start_writer
    turn_off "$first" "$second"
    kubectl delete node "$first" >/dev/null
    mv "$disks/$first" "$disks/$second"
    "$here/guests.sh" boot "$second" "$new"
    await "$seconds_max" "a refusal of the disk" has_problem "$new" "mount the right disk"
    await_silence
    if is_writing "$uid" 2>/dev/null; then return 1; fi
    follow operations.md 'local forget' "$first" >/dev/null
    # The node had another disk, so the command first prints how to forget that disk.
    is_refused "kubectl delete localdisk $new.default" \
        follow operations.md 'local rehome' "$first" "$new"
    delete_programs "$new" store
    kubectl delete localdisk "$new.default" >/dev/null
    follow operations.md 'local rehome' "$first" "$new" | printed
    serves_at "$new" "$first"
}

second=${nodes[2]}
checks=("$@")
[ $# -gt 0 ] || checks=(a_node_that_is_registered_again_keeps_its_volumes
    a_replaced_disk_is_used_after_a_reset a_copied_disk_is_refused
    ${BELAY_NIGHTLY:+a_forgotten_node_returns a_renamed_node_serves_after_a_rehome
        disks_move_to_a_node_without_volumes})
run_checks local "${checks[@]}"
