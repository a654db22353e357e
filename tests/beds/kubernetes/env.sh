# shellcheck shell=bash
# Sourced by the scripts of the bed: its names, addresses and directories.
#
#   BASE   the cluster's directory: all of its state, one cluster each
#   BIN    finished binaries to use instead of the ones that build.sh makes
#   GUESTS how many User-mode Linux guests can become nodes next to node1, see guests.sh
#   KUBELET  none: a control plane without node1, whose Nodes are only objects

. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../setup/env.sh"

bed=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
node=node1
# Nothing of this leaves the cluster's network namespace, so several clusters may use the same
# addresses.
node_address=10.99.0.1
pod_network=10.97.0.0/24
service_network=10.98.0.0/24
# The first address of the service network, which every pod has as KUBERNETES_SERVICE_HOST.
api_address=10.98.0.1
api_port=443
# Guests are on a bridge of their cluster, on which the cloud that runs them also listens.
bridge_address=10.99.1.1
cloud_address=$bridge_address:8774
guests_network=10.99.1.0/24
# The NFS server of the guests, see guests_nfs.sh.
filer_address=10.99.1.254
guests_driver=cinder.csi.openstack.org
node_tools=$BELAY_CACHE/kubernetes/node
components=(etcd containerd kube-apiserver kube-controller-manager kube-scheduler kubelet)

export BASE=${BASE:-$BELAY_CACHE/kubernetes/cluster}
[ ! -d "$BASE/filer" ] || guests_driver=nfs.csi.k8s.io
[ ! -d "$BASE/disks" ] || guests_driver=local.csi.belay.dev
# The twin that is the cloud of the guests, if any: see guests_cloud.sh.
guests_twin=$(ls "$BASE/twins" 2>/dev/null || true)
case $guests_twin in
    digitalocean) guests_driver=dobs.csi.digitalocean.com ;;
    civo) guests_driver=csi.civo.com ;;
esac
export BED_NODE=$node

# Prints the directory of the binaries, which build.sh names after their sources.
bed_binaries() {
    printf '%s\n' "${BIN:-$("$bed/build/build.sh" --where)}"
}

has_kubelet() {
    [ "${KUBELET:-}" != none ]
}

# Prints node2, node3, ...: as many names as GUESTS.
guest_names() {
    seq --format=node%g 2 $((${GUESTS:-0} + 1))
}

guest_address() {
    printf '10.99.1.%d\n' "${1#node}"
}

# Prints the network of a guest's pods.
guest_pods() {
    printf '10.97.%d.0/24\n' "${1#node}"
}

# example NAME: prints this file of deploy/examples, with the bed's image.
example() {
    sed 's|image: busybox$|image: localhost/busybox:1|' "$bed/../../../deploy/examples/$1.yaml"
}

# await SECONDS WHAT COMMAND...: waits until the command succeeds; runs it five times a second.
await() {
    local seconds=$1 what=$2 tries
    shift 2
    for ((tries = 0; tries < seconds * 5; tries++)); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.2
    done
    printf 'belay: %s: not within %s s\n' "$what" "$seconds" >&2
    return 1
}
