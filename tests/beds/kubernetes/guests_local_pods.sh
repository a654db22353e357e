# shellcheck shell=bash
# Sourced by the checks of the driver `local` on guests, after env.sh: provides pods for which the
# scheduler selects a node, and looks at the disks.

. "$bed/guests_local.sh"

namespace=belay-disks
class=belay-local
snapshot_class=belay-local
binding=WaitForFirstConsumer
. "$bed/checks.sh"
. "$bed/writer.sh"

is_local || give_up "the guests have no disks for volumes; please start them with CLOUD=local"
mapfile -t nodes < <(printf '%s\n' "$node" && ls "$BASE/guests")

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

# is_empty NODE...: whether no object of any volume or snapshot exists, and no file on these nodes.
is_empty() {
    local name found files
    found=$(kubectl get localvolumes,localsnapshots --output name) || return 1
    for name; do
        files=$(files_on "$name") || return 1
        found+=$files
    done
    has_left_none && [ -z "$found" ]
}

# remove_all [NODE...]: removes the objects of a check. Nothing may be left, on all nodes or on
# these.
remove_all() {
    [ $# -gt 0 ] || set -- "${nodes[@]}"
    k delete statefulset --all --timeout="${seconds_max}s" >/dev/null
    end_pods
    k delete volumesnapshot,persistentvolumeclaim --all --timeout="${seconds_max}s" >/dev/null
    await "$seconds_max" "the end of all volumes and snapshots" is_empty "$@"
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

# prepare FILESYSTEM: creates the class of the pod that writes, so that the pod gets its preference.
prepare() {
    make_class "$1"
    await_room "$first" "belay-cuts-$1"
}

has_unlisted() {
    [ "$(kubectl get localdisk "$1.default" \
        --output jsonpath='{.status.unlisted.count}')" = "$2" ]
}
