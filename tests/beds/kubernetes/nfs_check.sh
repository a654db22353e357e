#!/usr/bin/env bash
# Volumes of the backend nfs on a cluster whose guests run with CLOUD=nfs and have the driver
# (guests.sh): shared by pods of two nodes, and compared with what the server has.
#
#   nfs_check.sh [CHECK...]
set -Eeuo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
. "$here/guests_nfs.sh"

namespace=belay-files
seconds_max=240
driver_namespace=belay-system
controller=belay-controller-nfs
export PATH=$BASE/bin:$PATH KUBECONFIG=$BASE/kubeconfig

k() {
    kubectl --namespace "$namespace" "$@"
}

# on_server <SCRIPT: in the share.
on_server() {
    { printf 'cd %s\n' "$share" && cat; } | "$here/guests.sh" run filer
}

# class NAME [PARAMETERS]: next to that of the chart.
class() {
    kubectl apply --filename - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $1, labels: {belay-test: files}}
provisioner: $guests_driver
allowVolumeExpansion: true
parameters: {server: filer, share: /${2:+, $2}}
YAML
}

# claim NAME [CLASS]
claim() {
    k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec:
  storageClassName: ${2:-belay-nfs}
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 1Gi}}
YAML
    k wait "persistentvolumeclaim/$1" --for=jsonpath='{.status.phase}'=Bound \
        --timeout="${seconds_max}s" >/dev/null
}

# pod NAME NODE CLAIM COMMAND [MOUNT]: the last is more of the volume's mount.
pod() {
    k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  nodeName: $2
  terminationGracePeriodSeconds: 0
  containers:
    - name: shell
      image: localhost/busybox:1
      command: [sh, -c, '$4']
      volumeMounts: [{name: data, mountPath: /data${5:+, $5}}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: $3}}]
YAML
    k wait "pod/$1" --for=condition=Ready --timeout="${seconds_max}s" >/dev/null
}

# volume_of CLAIM: the name of its PersistentVolume.
volume_of() {
    k get persistentvolumeclaim "$1" --output jsonpath='{.spec.volumeName}'
}

is_gone() {
    ! kubectl get persistentvolume "$1"
}

# has COMMAND...: in the share of the server.
has() {
    on_server <<<"$*"
}

# remove CLAIM...: pods are deleted before.
remove() {
    local one volumes=()
    for one in "$@"; do volumes+=("$(volume_of "$one")"); done
    k delete persistentvolumeclaim "$@" --timeout="${seconds_max}s" >/dev/null
    for one in "${volumes[@]}"; do
        await "$seconds_max" "the deletion of the volume $one" is_gone "$one"
    done
}

end_pods() {
    k delete pod --all --timeout="${seconds_max}s" >/dev/null
}

# Each pod reads what the other has written; the server has both.
check_two_nodes_share_a_volume() {
    local name volume
    claim shared
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
    # With its files.
    remove shared
    has "[ ! -e $volume ] && [ -z \"\$(ls .belay/trash .belay/tmp | grep -v :)\" ]"
}

check_a_sub_path_is_a_directory_of_the_volume() {
    local volume
    claim parts
    volume=$(volume_of parts)
    pod part "${nodes[0]}" parts 'echo one >/data/file; sleep 3600' 'subPath: a/b'
    has "grep -qx one $volume/a/b/file"
    pod whole "${nodes[1]}" parts 'sleep 3600' 'readOnly: true'
    k exec whole -- grep -qx one /data/a/b/file
    ! k exec whole -- touch /data/x 2>/dev/null
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
    claim growing
    pod user "${nodes[0]}" growing 'sleep 3600'
    k patch persistentvolumeclaim growing --patch \
        '{"spec": {"resources": {"requests": {"storage": "3Gi"}}}}' >/dev/null
    await "$seconds_max" "the new size" has_size growing 3Gi
    k exec user -- touch /data/still
    end_pods
    remove growing
}

# By the class; the directories have the names of claims, which --extra-create-metadata passes.
check_a_deletion_does_what_the_class_says() {
    local policy
    # shellcheck disable=SC2016
    for policy in delete retain archive; do
        class "belay-files-$policy" "onDelete: $policy, mountPermissions: \"0770\", subDir: \
'\${pvc.metadata.namespace}/\${pvc.metadata.name}'"
        claim "$policy" "belay-files-$policy"
        has "[ \$(stat -c %a $namespace/$policy) = 770 ]"
        has "echo $policy >$namespace/$policy/file"
    done
    remove delete retain archive
    has "[ ! -e $namespace/delete ] && [ ! -e $namespace/archive ]"
    has "grep -qx retain $namespace/retain/file"
    has "grep -qx archive archived-$namespace/archive/file"
    # Its claim is gone, but not its files: another volume must not get them.
    k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: retain}
spec:
  storageClassName: belay-files-retain
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 1Gi}}
YAML
    await 60 "the refusal of a directory that exists" refused retain AlreadyExists
    k delete persistentvolumeclaim retain --timeout=60s >/dev/null
    has "rm -r $namespace archived-$namespace"
}

# refused CLAIM WORD: an event of the claim has it.
refused() {
    k get events --field-selector "involvedObject.name=$1" --output jsonpath='{.items[*].message}' |
        grep -q "$2"
}

is_bound() {
    [ "$(k get persistentvolumeclaim --output jsonpath='{.items[*].status.phase}')" = \
        "$(printf 'Bound %.0s' $(seq "$1") | sed 's/ $//')" ]
}

volumes_left() {
    kubectl get persistentvolumes --output \
        jsonpath="{.items[?(@.spec.claimRef.namespace=='$namespace')].metadata.name}"
}

no_volumes() {
    [ -z "$(volumes_left)" ]
}

kill_controller() {
    kubectl --namespace "$driver_namespace" delete pod --selector belay.dev/driver=nfs --force \
        --grace-period=0 >/dev/null 2>&1
}

# Claims are made and deleted meanwhile; none is lost, and nothing stays on the server.
check_the_controller_is_killed_at_work() {
    local n before
    before=$(on_server <<<'ls -A . .belay/claims')
    for n in $(seq 10); do
        k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: many-$n}
spec:
  storageClassName: belay-nfs
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 1Gi}}
YAML
        [ "$n" != 5 ] || kill_controller
    done
    await "$seconds_max" "ten volumes after the controller was killed" is_bound 10
    k delete persistentvolumeclaim --all --wait=false >/dev/null
    sleep 0.5
    kill_controller
    await "$seconds_max" "the deletion of ten volumes" no_volumes
    [ "$(on_server <<<'ls -A . .belay/claims')" = "$before" ]
    [ -z "$(on_server <<<'ls -A .belay/trash .belay/tmp | grep -v : || true')" ]
}

lines() {
    k exec writer -- cat /tmp/synced
}

has_more_lines() {
    [ "$(lines)" -gt "$1" ]
}

# Its power is cut while a pod writes, and with a claim that waits. The pod continues where it was,
# and each line that was synced is there.
check_the_server_loses_power() {
    local synced
    claim lasting
    pod writer "${nodes[0]}" lasting 'n=0; while :; do n=$((n + 1)); echo $n >>/data/lines;
        sync /data/lines && echo $n >/tmp/synced; sleep 0.1; done'
    await 60 "ten lines" has_more_lines 10
    "$here/guests.sh" cut filer
    synced=$(lines)
    k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: waiting}
spec:
  storageClassName: belay-nfs
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 1Gi}}
YAML
    await "$seconds_max" "the failure of a call" refused waiting 'filer'
    "$here/guests.sh" boot filer
    await "$seconds_max" "more lines after the power cut" has_more_lines "$((synced + 10))"
    k exec writer -- awk 'NR != $1 { bad = 1 } END { exit bad }' /data/lines
    k wait persistentvolumeclaim/waiting --for=jsonpath='{.status.phase}'=Bound \
        --timeout="${seconds_max}s" >/dev/null
    end_pods
    remove lasting waiting
}

# The sidecars may do what they did, and asked for nothing else.
check_no_right_was_missed() {
    python3 - "$BASE/log/audit.jsonl" "$driver_namespace:$controller" <<'PY'
import json, sys
made = refused = 0
for line in open(sys.argv[1]):
    event = json.loads(line)
    if not event["user"]["username"].endswith(sys.argv[2]):
        continue
    made += 1
    if event.get("responseStatus", {}).get("code") == 403:
        refused += 1
        print(event["userAgent"].split("/")[0], event["verb"], event["requestURI"], file=sys.stderr)
sys.exit(refused > 0 or made == 0)
PY
}

clean_up() {
    kubectl delete namespace "$namespace" --ignore-not-found --timeout=180s >/dev/null
    kubectl delete storageclass --selector belay-test=files >/dev/null
}

is_nfs || give_up "the cluster has no NFS server; please start the guests with CLOUD=nfs"
trap 'printf "nfs: line %s: %s\n" "$LINENO" "$BASH_COMMAND" >&2' ERR
checks=("$@")
[ $# -gt 0 ] || mapfile -t checks < <(declare -F | sed -n 's/^declare -f check_//p' |
    grep -v '^no_right')
mapfile -t nodes < <(ls "$BASE/guests")
clean_up
kubectl create namespace "$namespace" >/dev/null
for check in "${checks[@]}" no_right_was_missed; do
    start=$SECONDS
    "check_$check"
    printf 'nfs: %s: ok, %d s\n' "${check//_/ }" $((SECONDS - start))
done
clean_up
