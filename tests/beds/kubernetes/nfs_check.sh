#!/usr/bin/env bash
# Checks volumes of the backend nfs on a cluster whose guests run with CLOUD=nfs and have the driver
# (guests.sh): volumes are shared by pods on two nodes, and compared with the server's files.
#
#   nfs_check.sh [CHECK...]
set -Eeuo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
. "$here/guests_nfs.sh"

namespace=belay-files
snapshot_class=belay-nfs
. "$here/checks.sh"

# on_server <SCRIPT: runs a script in the share.
on_server() {
    { printf 'cd %s\n' "$share" && cat; } | "$here/guests.sh" run filer
}

# class NAME [PARAMETERS]: creates a class in addition to the chart's.
class() {
    kubectl apply --filename - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $1, labels: {belay-test: $namespace}}
provisioner: $guests_driver
allowVolumeExpansion: true
parameters: {server: filer, share: /${2:+, $2}}
YAML
}

# shared NAME [CLASS]: creates a claim for pods on all nodes.
shared() {
    claim "$1" "${2:-belay-nfs}" ReadWriteMany
}

is_gone() {
    ! kubectl get persistentvolume "$1"
}

# has COMMAND...: runs a command in the share on the server.
has() {
    on_server <<<"$*"
}

# remove CLAIM...: deletes claims, whose pods are deleted before.
remove() {
    local one volumes=()
    for one in "$@"; do volumes+=("$(volume_of "$one")"); done
    k delete persistentvolumeclaim "$@" --timeout="${seconds_max}s" >/dev/null
    for one in "${volumes[@]}"; do
        await "$seconds_max" "the deletion of the volume $one" is_gone "$one"
    done
}

# Each pod reads the other pod's files; the server has both.
check_two_nodes_share_a_volume() {
    local name volume
    shared shared
    volume=$(volume_of shared)
    for name in "${nodes[@]}"; do
        pod "on-$name" "$name" shared "echo of $name >/data/$name; sleep 3600"
    done
    for name in "${nodes[@]}"; do
        await 60 "the file of ${nodes[0]} on $name" \
            k exec "on-$name" -- grep -qx "of ${nodes[0]}" "/data/${nodes[0]}"
        await 60 "the file of ${nodes[1]} on $name" \
            k exec "on-$name" -- grep -qx "of ${nodes[1]}" "/data/${nodes[1]}"
    done
    [ "$(on_server <<<"cat $volume/${nodes[0]} $volume/${nodes[1]}")" = \
        "of ${nodes[0]}"$'\n'"of ${nodes[1]}" ]
    end_pods
    # The volume is removed with its files.
    remove shared
    has "[ ! -e $volume ] && [ -z \"\$(ls .belay/trash .belay/tmp | grep -v :)\" ]"
}

are_two_files() {
    [ "$(k exec deployment/nfs -- ls /data | wc -l)" = 2 ]
}

# Runs the examples of deploy/examples for volumes on several nodes.
check_the_examples_run() {
    local placed
    example nfs | k apply --filename - >/dev/null
    await "$seconds_max" "a file of each pod of the example" are_two_files
    example statefulset | sed 's/belay-cinder/belay-nfs/' | k apply --filename - >/dev/null
    k rollout status statefulset/statefulset --timeout="${seconds_max}s" >/dev/null
    placed=$(k get pods --selector app=statefulset --output jsonpath='{.items[*].spec.nodeName}')
    [ "$(tr ' ' '\n' <<<"$placed" | sort | paste -sd ' ')" = "${nodes[*]}" ]
    k delete deployment/nfs statefulset/statefulset --cascade=foreground \
        --timeout="${seconds_max}s" >/dev/null
    remove nfs data-statefulset-0 data-statefulset-1
}

check_a_sub_path_is_a_directory_of_the_volume() {
    local volume
    shared parts
    volume=$(volume_of parts)
    pod part "${nodes[0]}" parts 'echo one >/data/file; sleep 3600' 'subPath: a/b'
    has "grep -qx one $volume/a/b/file"
    pod whole "${nodes[1]}" parts 'sleep 3600' 'readOnly: true'
    k exec whole -- grep -qx one /data/a/b/file
    [ "$(k exec whole -- sh -c 'touch /data/x 2>/dev/null || echo refused')" = refused ]
    end_pods
    remove parts
}

size_of() {
    kubectl get persistentvolume "$(volume_of "$1")" --output jsonpath='{.spec.capacity.storage}'
}

has_size() {
    [ "$(size_of "$1")" = "$2" ] &&
        [ "$(k get persistentvolumeclaim "$1" --output jsonpath='{.status.capacity.storage}')" = "$2" ]
}

check_a_claim_is_expanded_in_use() {
    shared growing
    pod user "${nodes[0]}" growing 'sleep 3600'
    k patch persistentvolumeclaim growing --patch \
        '{"spec": {"resources": {"requests": {"storage": "3Gi"}}}}' >/dev/null
    await "$seconds_max" "the new size" has_size growing 3Gi
    k exec user -- touch /data/still
    end_pods
    remove growing
}

# The class determines what a deletion does. The directories are named after claims, whose names
# --extra-create-metadata passes.
check_a_deletion_does_what_the_class_says() {
    local policy
    # shellcheck disable=SC2016
    for policy in delete retain archive; do
        class "belay-files-$policy" "onDelete: $policy, mountPermissions: \"0770\", subDir: \
'\${pvc.metadata.namespace}/\${pvc.metadata.name}'"
        shared "$policy" "belay-files-$policy"
        has "[ \$(stat -c %a $namespace/$policy) = 770 ]"
        has "echo $policy >$namespace/$policy/file"
    done
    remove delete retain archive
    has "[ ! -e $namespace/delete ] && [ ! -e $namespace/archive ]"
    has "grep -qx retain $namespace/retain/file"
    has "grep -qx archive archived-$namespace/archive/file"
    # The claim was deleted, but not its files: another volume must not get them.
    request retain belay-files-retain ReadWriteMany
    await 60 "the refusal of a directory that exists" refused retain AlreadyExists
    k delete persistentvolumeclaim retain --timeout=60s >/dev/null
    has "rm -r $namespace archived-$namespace"
}

# refused CLAIM WORD: whether an event of the claim contains the word.
refused() {
    k get events --field-selector "involvedObject.name=$1" --output jsonpath='{.items[*].message}' |
        grep -q "$2"
}

# Creates and deletes claims while the controller is killed; none is lost, and nothing stays on the
# server.
check_the_controller_is_killed_at_work() {
    local n before
    before=$(on_server <<<'ls -A . .belay/claims')
    for n in $(seq 10); do
        request "many-$n" belay-nfs ReadWriteMany
        [ "$n" != 5 ] || kill_controller nfs
    done
    await "$seconds_max" "ten volumes after the controller was killed" are_bound 10
    k delete persistentvolumeclaim --all --wait=false >/dev/null
    sleep 0.5
    kill_controller nfs
    await "$seconds_max" "the deletion of ten volumes" has_left_none
    [ "$(on_server <<<'ls -A . .belay/claims')" = "$before" ]
    [ -z "$(on_server <<<'ls -A .belay/trash .belay/tmp | grep -v : || true')" ]
}

# list VOLUME: prints names, types, owners, modes, links and content, as the server has them.
list() {
    on_server <<<"cd $1 && find . -printf '%P %y %U:%G %m %n %l\n' | sort &&
        find . -type f -exec sha256sum {} + | sort -k 2"
}

fill() {
    k exec "$1" -- sh -c 'mkdir -p /data/a/b && chmod 2750 /data/a && ln -s a/b/file /data/link &&
        dd if=/dev/urandom of=/data/a/b/file bs=1M count=8 2>/dev/null &&
        truncate -s 64M /data/sparse && chown 1000:2000 /data/a/b/file && ln /data/a/b/file /data/hard &&
        echo of the moment >/data/state && sync'
}

# A snapshot and a clone contain the volume's earlier data, while a pod has the volume and continues
# to write. A restore needs neither the volume nor, once it is complete, the snapshot.
check_a_snapshot_and_a_clone_have_the_data_of_their_moment() {
    local before source restored cloned
    shared source
    source=$(volume_of source)
    pod writer "${nodes[0]}" source 'sleep 3600'
    fill writer
    before=$(list "$source")
    snapshot moment source
    claim cloned belay-nfs ReadWriteMany "$(from_claim source)"
    k exec writer -- sh -c 'echo later >/data/state && rm -r /data/a && sync'
    cloned=$(volume_of cloned)
    [ "$(list "$cloned")" = "$before" ]
    end_pods
    remove source
    claim restored belay-nfs ReadWriteMany "$(from_snapshot moment)"
    restored=$(volume_of restored)
    has "[ -e snapshot-*/$source.tar.gz ]"
    k delete volumesnapshot moment --timeout="${seconds_max}s" >/dev/null
    await 60 "the deletion of the archive" has "[ ! -e snapshot-*/$source.tar.gz ]"
    [ "$(list "$restored")" = "$before" ]
    pod reader "${nodes[1]}" restored 'sleep 3600'
    k exec reader -- grep -qx 'of the moment' /data/state
    k exec reader -- cmp /data/link /data/hard
    end_pods
    remove restored cloned
    has "[ -z \"\$(ls -A .belay/snapshots .belay/trash .belay/tmp | grep -v :)\" ]"
}

lines() {
    k exec writer -- cat /tmp/synced
}

has_more_lines() {
    [ "$(lines)" -gt "$1" ]
}

# Cuts the server's power while a pod writes and a claim waits. The pod continues where it was, and
# each line that was synced is there.
check_the_server_loses_power() {
    local synced
    shared lasting
    pod writer "${nodes[0]}" lasting 'n=0; while :; do n=$((n + 1)); echo $n >>/data/lines;
        sync /data/lines && echo $n >/tmp/synced; sleep 0.1; done'
    await 60 "ten lines" has_more_lines 10
    "$here/guests.sh" cut filer
    synced=$(lines)
    request waiting belay-nfs ReadWriteMany
    await "$seconds_max" "the failure of a call" refused waiting 'filer'
    "$here/guests.sh" boot filer
    await "$seconds_max" "more lines after the power cut" has_more_lines "$((synced + 10))"
    k exec writer -- awk 'NR != $1 { bad = 1 } END { exit bad }' /data/lines
    await_bound waiting
    end_pods
    remove lasting waiting
}

check_no_right_was_missed() {
    no_right_was_missed nfs
}

is_nfs || give_up "the cluster has no NFS server; please start the guests with CLOUD=nfs"
checks=("$@")
[ $# -gt 0 ] || mapfile -t checks < <(declare -F | sed -n 's/^declare -f check_//p' |
    grep -v '^no_right')
mapfile -t nodes < <(ls "$BASE/guests")
run_checks nfs "${checks[@]}" no_right_was_missed
