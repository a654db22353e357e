#!/usr/bin/env bash
# Process 1 of a cluster's namespaces: sets up the node, starts every component, and restarts each
# component when it ends, as systemd would.
#
#   inside.sh BASE BIN
set -euo pipefail
[ $$ = 1 ] || { echo "inside.sh: is started by cluster.sh only" >&2; exit 64; }
. "$(dirname "$(readlink -f "$0")")/env.sh"
. "$(dirname "$(readlink -f "$0")")/supervise.sh"

BASE=$1 bin=$2
export TMPDIR=$BASE/tmp PATH=$bin:$node_tools/bin:$PATH

# The kubelet sets these values for the whole machine. Here, it finds them already set, in files
# that only it sees, and so does not change the machine's.
shield_kernel_settings() {
    local setting name value
    for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        name=${setting%=*} value=${setting#*=}
        [ -e "/proc/sys/$name" ] || continue
        printf '%s\n' "$value" >"$BASE/run/${name//\//.}"
        mount --bind "$BASE/run/${name//\//.}" "/proc/sys/$name"
    done
}

# All other paths that a node writes to are mounts that end with the namespace.
make_folders() {
    local resolv
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p /run/containerd /run/lock /run/var-lib/{upper,work}
    # Do not hide /var/lib, since the programs may be there, in the home of the user who built them.
    mount -t overlay -o lowerdir=/var/lib,upperdir=/run/var-lib/upper,workdir=/run/var-lib/work \
        overlay /var/lib
    mkdir -p /var/lib/kubelet /var/lib/belay
    mount --bind "$BASE/log" /var/log
    mount --bind "$BASE/kubelet" /var/lib/kubelet
    mount -o loop "$BASE/volumes.img" /var/lib/belay
    mount --bind "$BASE/hosts" /etc/hosts
    # resolv.conf is often a link into /run, which is empty now.
    resolv=$(readlink -m /etc/resolv.conf)
    mkdir -p "$(dirname "$resolv")"
    [ -e "$resolv" ] || : >"$resolv"
    mount --bind "$BASE/resolv.conf" "$resolv"
}

# Sets up the network. The only service has the node's address, so no proxy of service addresses is
# needed.
make_network() {
    ip link set lo up
    ip address add "$node_address/32" dev lo
    ip address add "$api_address/32" dev lo
    ip route add default dev lo
    echo 1 >/proc/sys/net/ipv4/ip_forward
}

start_etcd() {
    # The data need not survive a power cut: the directory is removed with the cluster.
    supervise etcd etcd --data-dir="$BASE/etcd" --unsafe-no-fsync --log-level=warn \
        --listen-client-urls=http://127.0.0.1:2379 --listen-peer-urls=http://127.0.0.1:2380 \
        --advertise-client-urls=http://127.0.0.1:2379 &
}

start_apiserver() {
    supervise kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
        --bind-address=0.0.0.0 --secure-port="$api_port" --advertise-address="$node_address" \
        --endpoint-reconciler-type=none --service-cluster-ip-range="$service_network" \
        --tls-cert-file="$BASE/pki/tls.crt" --tls-private-key-file="$BASE/pki/tls.key" \
        --token-auth-file="$BASE/pki/tokens.csv" --authorization-mode=Node,RBAC \
        --enable-admission-plugins=NodeRestriction --allow-privileged=true --profiling=false \
        --service-account-issuer=https://kubernetes.default.svc \
        --service-account-key-file="$BASE/pki/service-accounts.key" \
        --service-account-signing-key-file="$BASE/pki/service-accounts.key" \
        --shutdown-watch-termination-grace-period=3s \
        --audit-policy-file="$BASE/audit.yaml" --audit-log-path="$BASE/log/audit.jsonl" \
        --kubelet-preferred-address-types=InternalIP "${gates[@]}" &
}

start_controller_manager() {
    # Use at least twice the default frequency, since specs wait for these rounds.
    supervise kube-controller-manager kube-controller-manager --leader-elect=false \
        --kubeconfig="$BASE/pki/controller-manager" --bind-address=127.0.0.1 \
        --use-service-account-credentials=true --root-ca-file="$BASE/pki/ca.crt" \
        --service-account-private-key-file="$BASE/pki/service-accounts.key" \
        --flex-volume-plugin-dir="$BASE/flexvolumes" \
        --attach-detach-reconcile-sync-period=10s --pvclaimbinder-sync-period=5s "${gates[@]}" &
}

start_scheduler() {
    supervise kube-scheduler kube-scheduler --leader-elect=false --bind-address=127.0.0.1 \
        --kubeconfig="$BASE/pki/scheduler" "${gates[@]}" &
}

start_kubelet() {
    supervise kubelet kubelet --config="$BASE/kubelet.yaml" --kubeconfig="$BASE/pki/kubelet" \
        --hostname-override="$node" --node-ip="$node_address" --root-dir=/var/lib/kubelet --v=2 \
        "${gates[@]}" &
}

import_images() {
    local archive
    await 90 "an answer of containerd" ctr version
    for archive in "$BASE"/images/*.tar; do
        [ -e "$archive" ] || continue
        ctr --namespace k8s.io images import "$archive" >>"$BASE/log/import.log" 2>&1 || {
            printf 'belay: the image %s could not be imported\n' "$archive" >&2
            return 1
        }
    done
}

gates=()
[ -z "${BED_FEATURE_GATES:-}" ] || gates=(--feature-gates="$BED_FEATURE_GATES")
kubectl=(kubectl --kubeconfig="$BASE/kubeconfig")

# Mounts that are made here must reach the containers, but not the machine outside.
mount --make-rshared /
shield_kernel_settings
make_folders
make_network
start_etcd
start_apiserver
if has_kubelet; then
    supervise containerd containerd --config "$BASE/containerd.toml" &
    import_images &
    images=$!
fi
await 180 "an answer of the API server" "${kubectl[@]}" get --raw /readyz
start_controller_manager
start_scheduler
if has_kubelet; then
    wait "$images"
    start_kubelet
    await 180 "the node $node" "${kubectl[@]}" wait --for=condition=Ready "node/$node" --timeout=1s
fi
await 180 "the default service account" "${kubectl[@]}" get serviceaccount default
touch "$BASE/run/ready"
# Bash reaps the orphans of process 1, which sleep alone would not do.
while :; do
    sleep 3600 &
    wait $! || true
done
