#!/usr/bin/env bash
# Checks volumes and snapshots of the driver `digitalocean` or `civo` on a cluster whose guests run
# with that CLOUD and have the driver (guests.sh): uses the chart's classes, and compares the
# volumes with the cloud's.
#
#   twin_check.sh [CHECK...]
set -Eeuo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
. "$here/guests_cloud.sh"

namespace=belay-twin
. "$here/checks.sh"
. "$here/page.sh"

case $guests_twin in
    digitalocean)
        short=dobs class=do-block-storage snapshot_class=do-block-storage
        page=digitalocean.md section=Kubernetes
        ;;
    civo)
        # The class on the page waits for the scheduler, which these checks do not need.
        short=civo class=civo-now snapshot_class=civo-volume-snapshot
        page=civo.md section='Install with the chart'
        ;;
    *) give_up "the guests have another cloud; please start them with CLOUD=digitalocean or civo" ;;
esac

# fill POD: writes a file with new content, which is on the disk when this returns.
fill() {
    k exec "$1" -- sh -c \
        'dd if=/dev/urandom of=/data/file bs=1M count=16 conv=notrunc,fsync 2>/dev/null && sync'
}

sum() {
    k exec "$1" -- sha256sum /data/file | cut -d ' ' -f 1
}

# Waits until the cloud has deleted its volumes, after their claims were deleted.
await_empty() {
    await "$seconds_max" "the deletion of all volumes" has_left_none
    await "$seconds_max" "the deletion in the cloud" volumes 'v == []'
}

# A snapshot of a volume in use contains the data that was written before it; the volume also
# contains later data. Both are mounted on one node.
check_a_snapshot_has_the_data_of_its_moment() {
    local before after
    claim source "$class" ReadWriteOnce
    pod writer "${nodes[0]}" source 'sleep 3600'
    fill writer
    before=$(sum writer)
    k delete pod writer --timeout="${seconds_max}s" >/dev/null
    pod moved "${nodes[1]}" source 'sleep 3600'
    [ "$(sum moved)" = "$before" ]
    snapshot moment source
    fill moved
    after=$(sum moved)
    [ "$after" != "$before" ]
    claim restored "$class" ReadWriteOnce "$(from_snapshot moment)"
    # The restored volume also works without the snapshot.
    k delete volumesnapshot moment --timeout="${seconds_max}s" >/dev/null
    pod reader "${nodes[1]}" restored 'sleep 3600'
    [ "$(sum reader)" = "$before" ]
    [ "$(sum moved)" = "$after" ]
    volumes "{x['name'] for x in v} == {'$(volume_of source)', '$(volume_of restored)'}"
    end_pods
    pod source "${nodes[0]}" source 'sleep 3600'
    [ "$(sum source)" = "$after" ]
    end_pods
    k delete persistentvolumeclaim --all --timeout="${seconds_max}s" >/dev/null
    await_empty
    [ "$(twin_call GET 'snapshots?resource_type=volume' | grep -o '\[[^]]*\]' | head -n 1)" = '[]' ]
}

# start_pods COMMAND SHIFT: starts a pod for each claim, alternating between the two nodes. N in the
# command is the claim's number.
start_pods() {
    local n
    for n in $(seq "$many"); do
        start_pod "on-$n" "${nodes[(n + $2) % 2]}" "many-$n" "${1//N/$n}"
    done
}

await_pods() {
    local n
    for n in $(seq "$many"); do await_pod "on-$n"; done
}

# Kills the controller while it creates, attaches, detaches and deletes volumes. None is lost or
# created twice, and each claim contains what its pod has written.
check_the_controller_is_killed_at_work() {
    local n many=6 names=()
    for n in $(seq "$many"); do
        request "many-$n" "$class" ReadWriteOnce
        [ "$n" != 3 ] || kill_controller "$short"
    done
    await "$seconds_max" "all volumes after the controller was killed" are_bound "$many"
    for n in $(seq "$many"); do names+=("'$(volume_of "many-$n")',"); done
    volumes "sorted(x['name'] for x in v) == sorted([${names[*]}])"
    start_pods 'echo N >/data/n && sync && sleep 3600' 0
    sleep 2
    kill_controller "$short"
    await_pods
    k delete pod --all --wait=false >/dev/null
    sleep 1
    kill_controller "$short"
    end_pods
    start_pods 'sleep 3600' 1
    await_pods
    for n in $(seq "$many"); do [ "$(k exec "on-$n" -- cat /data/n)" = "$n" ]; done
    end_pods
    k delete persistentvolumeclaim --all --wait=false >/dev/null
    sleep 0.5
    kill_controller "$short"
    await_empty
}

# described NAME: prints the request for a volume with this name.
described() {
    if is_civo; then
        printf '{"name": "%s", "size_gb": 1, "cluster_id": "%s"}' "$1" "$civo_cluster"
    else
        printf '{"name": "%s", "region": "nyc1", "size_gigabytes": 1}' "$1"
    fi
}

# A volume of the account that belongs to no claim is adopted by its ID: it is read before it could
# be formatted, and kept.
check_a_volume_of_the_account_is_adopted() {
    local id
    id=$(twin_call POST volumes "$(described adopted)" |
        python3 -c 'import json, sys
made = json.load(sys.stdin)
print(made.get("volume", made)["id"])')
    kubectl apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: {name: belay-adopted}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {namespace: $namespace, name: adopted}
  csi: {driver: $guests_driver, volumeHandle: $id, fsType: ext4}
YAML
    claim adopted '""' ReadWriteOnce
    pod first "${nodes[0]}" adopted 'echo adopted >/data/file && sync && sleep 3600'
    end_pods
    pod second "${nodes[1]}" adopted 'sleep 3600'
    [ "$(k exec second -- cat /data/file)" = adopted ]
    end_pods
    k delete persistentvolumeclaim adopted --timeout="${seconds_max}s" >/dev/null
    kubectl delete persistentvolume belay-adopted --timeout="${seconds_max}s" >/dev/null
    volumes "[(x['id'], x['servers']) for x in v] == [('$id', [])]"
    twin_call DELETE "volumes/$id" >/dev/null
}

has_droplets() {
    follow 3 >"$BASE/run/said" && grep -q '^node2 *102$' "$BASE/run/said" &&
        grep -q '^node3 *103$' "$BASE/run/said"
}

check_the_page_works_as_it_stands() {
    remove_driver
    follow 1 >/dev/null
    follow 2 >/dev/null
    "follow_$guests_twin"
    end_pods
    k delete volumesnapshot --all --timeout="${seconds_max}s" >/dev/null
    k delete persistentvolumeclaim --all --timeout="${seconds_max}s" >/dev/null
    await_empty
}

# follow_pod NUMBER: runs this block, which creates a claim and a pod in the default namespace. Then
# removes both.
follow_pod() {
    follow "$1" >"$BASE/run/said"
    tail -n 1 "$BASE/run/said" | grep -q '20[0-9][0-9]$'
    kubectl delete pod/writer persistentvolumeclaim/data --timeout="${seconds_max}s" >/dev/null
}

# Runs the page's blocks for a claim of its class, which is the cluster's default.
follow_civo() {
    [ "$(kubectl get storageclass civo-volume --output \
        jsonpath='{.metadata.annotations.storageclass\.kubernetes\.io/is-default-class}')" = true ]
    follow_pod 3
}

# Runs the page's blocks up to a restored snapshot.
follow_digitalocean() {
    local before
    await 60 "the droplets of the nodes" has_droplets
    grep -q '^storageclass.*/do-block-storage (default)' "$BASE/run/said"
    grep -q '^volumesnapshotclass.*/do-block-storage ' "$BASE/run/said"
    follow_pod 4
    request data "$class" ReadWriteOnce
    pod user "${nodes[0]}" data 'sleep 3600'
    fill user
    before=$(sum user)
    block yaml 2 | k apply --filename - >/dev/null
    await_snapshot data-1
    block yaml 3 | k apply --filename - >/dev/null
    pod restored "${nodes[1]}" restored 'sleep 3600'
    [ "$(sum restored)" = "$before" ]
    [ "$(k exec restored -- df -k /data | awk 'END { print $(NF - 4) }')" -gt $((18 << 20)) ]
}

check_no_right_was_missed() {
    no_right_was_missed "$short"
}

checks=("$@")
# The page uninstalls the chart, so sidecars that are still ending lose their rights then.
[ $# -gt 0 ] || checks=(a_snapshot_has_the_data_of_its_moment the_controller_is_killed_at_work
    a_volume_of_the_account_is_adopted no_right_was_missed the_page_works_as_it_stands)
mapfile -t nodes < <(ls "$BASE/guests")
run_checks "$guests_twin" "${checks[@]}"
