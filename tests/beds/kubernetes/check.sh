#!/usr/bin/env bash
# A first check of an installed driver from a user's point of view: volumes are created, written,
# read by another pod, expanded with and without a pod, and taken over by hand; the examples of
# `local` in deploy/examples run; and they leave nothing.
#
#   check.sh [CHECK...]     by default, all
#
# The official suite tests a hundred times more; this check shows within half a minute whether the
# suite can succeed.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

export PATH=$BASE/bin:$PATH KUBECONFIG=$BASE/kubeconfig
namespace=belay-check
driver=local.csi.belay.dev
seconds_max=180

k() {
    kubectl --namespace "$namespace" "$@"
}

inside() {
    "$here/cluster.sh" exec "$@"
}

apply() {
    k apply --filename - >/dev/null
}

# claim NAME CLASS SIZE [VOLUME]
claim() {
    apply <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: $2
  volumeName: "${4:-}"
  resources: {requests: {storage: $3}}
YAML
}

# A class that a user may add.
make_xfs_class() {
    apply <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: belay-check-xfs}
provisioner: $driver
parameters: {csi.storage.k8s.io/fstype: xfs}
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
YAML
}

# Whether a mounted ext4 can be expanded, which requires CAP_SYS_RESOURCE; root does not have it on
# every machine.
can_grow_ext4() {
    local capabilities
    capabilities=$(awk '/^CapBnd:/ { print $2 }' /proc/self/status)
    [ $((0x$capabilities >> 24 & 1)) = 1 ]
}

# pod NAME CLAIM COMMAND: returns when the command has said "done" in its log, or has failed.
pod() {
    apply <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
    - name: shell
      image: localhost/busybox:1
      command: [sh, -ec, "$3; echo done; exec sleep 3600"]
      volumeMounts: [{name: volume, mountPath: /data}]
  volumes: [{name: volume, persistentVolumeClaim: {claimName: $2}}]
YAML
    k wait --for=condition=Ready "pod/$1" --timeout="${seconds_max}s" >/dev/null ||
        { k describe "pod/$1" >&2 && k logs "$1" >&2 && return 1; }
    await "$seconds_max" "the end of pod $1" said_done "$1"
}

said_done() {
    k logs "$1" | grep -qx "done"
}

# room POD: prints the size of the volume in MiB, as the pod sees it.
room() {
    k exec "$1" -- df -m /data | awk 'END { print $(NF - 4) }'
}

remove() {
    k delete --timeout="${seconds_max}s" "$@" >/dev/null
}

grow() {
    k patch "persistentvolumeclaim/$1" --type merge \
        --patch "{\"spec\": {\"resources\": {\"requests\": {\"storage\": \"$2\"}}}}" >/dev/null
}

volume_of() {
    k get "persistentvolumeclaim/$1" --output jsonpath='{.spec.volumeName}'
}

# id_of VOLUME: prints the ID in CSI of a PersistentVolume.
id_of() {
    k get "persistentvolume/$1" --output jsonpath='{.spec.csi.volumeHandle}'
}

# staging_of ID: prints the path at which the kubelet stages a volume.
staging_of() {
    printf '/var/lib/kubelet/plugins/kubernetes.io/csi/%s/%s/globalmount\n' "$driver" \
        "$(printf %s "$1" | sha256sum | cut -d ' ' -f 1)"
}

is_unstaged() {
    local mounts
    mounts=$(inside cat /proc/1/mountinfo) || return 1
    ! grep -qF "$(staging_of "$1")" <<<"$mounts"
}

# has_grown POD BEFORE BY: whether the volume has grown, in MiB; a filesystem uses some space
# itself.
has_grown() {
    local now
    now=$(room "$1")
    [ "$now" -gt $(($2 + $3)) ] ||
        give_up "the volume of the pod $1 has $now MiB, and not $3 more than the $2 before"
}

# Waits for the complete size, which both the controller and the node have confirmed.
await_size() {
    k wait --for=jsonpath='{.status.capacity.storage}'="$2" "persistentvolumeclaim/$1" \
        --timeout="${seconds_max}s" >/dev/null
}

check_data_outlives_its_pod() {
    local attached
    claim kept belay-local 256Mi
    pod writer kept 'echo fast >/data/file'
    attached=$(k get volumeattachments \
        --output jsonpath="{.items[?(@.spec.attacher=='$driver')].metadata.name}")
    [ -z "$attached" ] || give_up "a volume of a driver that attaches none is attached: $attached"
    remove pod/writer
    pod reader kept 'grep -qx fast /data/file'
    remove pod/reader persistentvolumeclaim/kept
}

# grows CLASS: expands a volume with a pod, and without.
grows() {
    local name=grown-${1##*-} before
    claim "$name" "$1" 320Mi
    pod "$name" "$name" 'echo fast >/data/file'
    before=$(room "$name")
    grow "$name" 640Mi
    await_size "$name" 640Mi
    has_grown "$name" "$before" 200
    remove "pod/$name"
    # While the volume stays staged, it would be expanded in use again.
    await "$seconds_max" "the unstage of the volume" is_unstaged "$(id_of "$(volume_of "$name")")"
    grow "$name" 960Mi
    pod "$name" "$name" 'grep -qx fast /data/file'
    await_size "$name" 960Mi
    has_grown "$name" "$before" 500
    remove "pod/$name" "persistentvolumeclaim/$name"
}

check_grows_in_use_and_between_pods() {
    make_xfs_class
    grows belay-check-xfs
    if can_grow_ext4; then grows belay-local; else refuses_to_grow_ext4; fi
}

# The claim reports the problem within seconds, and the pod continues.
refuses_to_grow_ext4() {
    claim refused belay-local 320Mi
    pod refused refused 'echo fast >/data/file'
    grow refused 640Mi
    await "$seconds_max" "the reason in the claim why its ext4 does not grow" is_told_why refused
    k exec refused -- grep -qx fast /data/file
    remove pod/refused persistentvolumeclaim/refused
}

is_told_why() {
    k get "persistentvolumeclaim/$1" \
        --output jsonpath='{.status.conditions[?(@.type=="NodeResizeError")].message}' |
        grep -qF 'growing a mounted ext4 needs CAP_SYS_RESOURCE'
}

# As an operator who moves a volume to a new cluster does: writes the PersistentVolume by hand.
check_takes_over_by_hand() {
    local volume
    claim first belay-local 256Mi
    pod maker first 'echo fast >/data/file'
    volume=$(volume_of first)
    k patch "persistentvolume/$volume" --type merge \
        --patch '{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}' >/dev/null
    remove pod/maker persistentvolumeclaim/first
    by_hand "$volume"
    claim second "" 256Mi by-hand
    pod heir second 'grep -qx fast /data/file'
    remove pod/heir persistentvolumeclaim/second
}

# Creates a volume and deletes its claim and PersistentVolume; `id` is its ID.
abandon() {
    local volume
    claim forgotten belay-local 256Mi
    pod user forgotten 'echo fast >/data/file'
    volume=$(volume_of forgotten)
    id=$(id_of "$volume")
    if "${belayctl[@]}" remove "$id" --yes; then return 1; fi
    k patch "persistentvolume/$volume" --type merge \
        --patch '{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}' >/dev/null
    remove pod/user persistentvolumeclaim/forgotten
    await "$seconds_max" "the unstage of the volume" is_unstaged "$id"
    kubectl delete "persistentvolume/$volume" --timeout="${seconds_max}s" >/dev/null
}

# Whether neither a file nor an object of the volume exists.
is_removed() {
    local found
    found=$(inside find /var/lib/belay/volumes -name "$1")
    found+=$(kubectl get localvolumes --output name)
    [ -z "$found" ]
}

# `belayctl local` lists a volume that has lost its PersistentVolume, and removes it with its file.
# BELAYCTL is the program.
check_removes_an_unclaimed_volume() {
    local id belayctl=("$BELAYCTL" local)
    "${belayctl[@]}" disks | grep -qE "^$BED_NODE +default .* -$"
    "${belayctl[@]}" nodes | grep -qE "^$BED_NODE +$BED_NODE +1 .* -$"
    abandon
    "${belayctl[@]}" volumes --node "$BED_NODE" | grep -qE "$id .* unclaimed +-$"
    # The volume is not old enough.
    [ "$("${belayctl[@]}" unclaimed)" = "no unclaimed objects" ]
    [ "$("${belayctl[@]}" unlisted)" = "no unlisted files" ]
    "${belayctl[@]}" doctor
    "${belayctl[@]}" remove "$id" --yes
    is_removed "$id"
}

is_unlisted() {
    "${belayctl[@]}" unlisted | grep -qE "^$BED_NODE +default +$1 "
}

# All objects are lost with their definition, and the file is kept until it is removed.
check_removes_a_file_without_an_object() {
    local id belayctl=("$BELAYCTL" local)
    abandon
    kubectl get crd localvolumes.belay.dev --output json |
        kubectl replace --force --timeout="${seconds_max}s" --filename - >/dev/null
    await "$seconds_max" "a report of the file without an object" is_unlisted "$id"
    "${belayctl[@]}" remove "$id" --yes
    is_removed "$id"
}

# The example's pod syncs each line before it writes the next.
has_two_lines() {
    k exec local -- sh -c '[ "$(wc -l </data/times)" -gt 1 ]'
}

check_runs_the_examples() {
    local name
    example local | apply
    await "$seconds_max" "two lines of the example" has_two_lines
    for name in snapshot clone raw-block; do example "$name" | apply; done
    k wait --for=condition=Ready pod/restored pod/clone pod/raw-block \
        --timeout="${seconds_max}s" >/dev/null
    k exec restored -- test -s /data/times
    k exec clone -- test -s /data/times
    example expansion | apply
    if can_grow_ext4; then
        await_size local 2Gi
    else
        await "$seconds_max" "the reason why the example does not grow" is_told_why local
    fi
    for name in raw-block clone snapshot local; do example "$name" | remove --filename -; done
}

# by_hand VOLUME: creates a PersistentVolume with its handle, replacing the existing one.
by_hand() {
    local handle
    handle=$(id_of "$1")
    kubectl delete "persistentvolume/$1" --timeout="${seconds_max}s" >/dev/null
    apply <<YAML
apiVersion: v1
kind: PersistentVolume
metadata:
  name: by-hand
  annotations: {pv.kubernetes.io/provisioned-by: $driver}
spec:
  capacity: {storage: 256Mi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Delete
  csi: {driver: $driver, volumeHandle: $handle, fsType: ext4}
YAML
}

# Whether nothing of the driver is left in the API, on the disk or in the kernel.
is_clean() {
    local found
    found=$(k get persistentvolumes --output name) || return 1
    found+=$(k get localvolumes,localsnapshots --output name) || return 1
    found+=$(inside find /var/lib/belay/volumes -type f) || return 1
    found+=$(inside cat /proc/1/mountinfo | grep -F "/$driver/")
    [ -z "$found" ]
}

check_leaves_nothing() {
    await "$seconds_max" "the end of all volumes and mounts of $driver" is_clean
}

clean_up() {
    kubectl delete namespace "$namespace" --ignore-not-found --timeout=60s >/dev/null
    kubectl delete storageclass belay-check-xfs --ignore-not-found >/dev/null
}

# Runs the checks concurrently, since they are independent; the output of each is printed in one
# piece.
run() {
    local check pids=() failed=0 started=$SECONDS
    for check in "$@"; do
        (
            "check_$check"
            printf 'check: %s: ok, %d s\n' "${check//_/ }" $((SECONDS - started))
        ) >"$notes/$check" 2>&1 &
        pids+=($!)
    done
    for check in "$@"; do
        wait "${pids[0]}" || { failed=1 && printf 'check: %s: FAILED\n' "${check//_/ }"; }
        cat "$notes/$check"
        pids=("${pids[@]:1}")
    done
    return "$failed"
}

checks=("$@")
[ $# -gt 0 ] || checks=(data_outlives_its_pod grows_in_use_and_between_pods takes_over_by_hand runs_the_examples)
notes=$(mktemp -d)
trap 'rm -rf "$notes"' EXIT
clean_up
kubectl create namespace "$namespace" >/dev/null
await "$seconds_max" "the service account of $namespace" k get serviceaccount default
run "${checks[@]}"
run leaves_nothing
clean_up
