#!/usr/bin/env bash
# Writes the configuration of a cluster into its directory: keys, identities and settings.
#
#   config.sh BASE
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

BASE=$1
pki=$BASE/pki

# Creates an authority, and a certificate for the API server that it has signed, as in other
# clusters: strict clients do not accept a self-signed authority as a server.
write_keys() {
    local new=(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650)
    "${new[@]}" -keyout "$pki/ca.key" -out "$pki/ca.crt" -subj /CN=kubernetes-ca \
        -addext keyUsage=keyCertSign 2>/dev/null
    "${new[@]}" -keyout "$pki/tls.key" -out "$pki/tls.crt" -subj /CN=kubernetes \
        -CA "$pki/ca.crt" -CAkey "$pki/ca.key" \
        -addext "subjectAltName=IP:$api_address,IP:$node_address,IP:127.0.0.1,DNS:localhost" \
        -addext basicConstraints=critical,CA:FALSE 2>/dev/null
    openssl genrsa -out "$pki/service-accounts.key" 2048 2>/dev/null
}

# identity FILE USER [GROUP]: each component has its usual identity and rights.
identity() {
    local file=$1 user=$2 group=${3:-} token
    token=$(openssl rand -hex 24)
    install -m 600 /dev/null "$file"
    printf '%s,%s,%s,"%s"\n' "$token" "$user" "$user" "$group" >>"$pki/tokens.csv"
    cat >>"$file" <<YAML
apiVersion: v1
kind: Config
current-context: bed
contexts: [{name: bed, context: {cluster: bed, user: bed}}]
users: [{name: bed, user: {token: $token}}]
clusters:
  - name: bed
    cluster:
      server: https://$api_address:$api_port
      certificate-authority-data: $(base64 --wrap=0 "$pki/ca.crt")
YAML
}

write_identities() {
    : >"$pki/tokens.csv"
    identity "$BASE/kubeconfig" admin system:masters
    identity "$pki/controller-manager" system:kube-controller-manager
    identity "$pki/scheduler" system:kube-scheduler
    identity "$pki/kubelet" "system:node:$node" system:nodes
}

# write_bridge DIRECTORY SUBNET: writes the network configuration for a node's pods.
write_bridge() {
    cat >"$1/10-bridge.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true,
   "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "$2"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}}]}
JSON
}

write_names() {
    printf '127.0.0.1 localhost\n%s %s\n' "$node_address" "$node" >"$BASE/hosts"
    # There is no name server, so that an unknown name fails at once instead of after a timeout.
    printf 'nameserver 127.0.0.1\n' >"$BASE/resolv.conf"
}

# Selects a snapshotter: an overlay cannot be on an overlay, which the root of a container often is.
snapshotter() {
    case $(stat --file-system --format=%T "$BASE") in
        overlayfs) echo native ;;
        *) echo overlayfs ;;
    esac
}

# write_containerd FILE STATE SNAPSHOTTER TOOLS NETWORKS: all but the third are paths.
write_containerd() {
    local cri=io.containerd.grpc.v1.cri
    cat >"$1" <<TOML
version = 2
root = "$2"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$2/opt"
[plugins."$cri"]
  sandbox_image = "localhost/pause:1"
  # Lowering the score needs a capability that root does not have everywhere.
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."$cri".cni]
    bin_dir = "$4/cni"
    conf_dir = "$5"
  [plugins."$cri".containerd]
    snapshotter = "$3"
    default_runtime_name = "runc"
    [plugins."$cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
TOML
}

# write_kubelet FILE ADDRESS CGROUP PLUGINS NAMESERVERS: the last two are paths.
write_kubelet() {
    cat >"$1" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $2
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$3
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
# Its default lies below /usr, where nothing of a cluster may stay.
volumePluginDir: $4
resolvConf: $5
clusterDNS: [10.98.0.10]
evictionHard:
  {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
# Growing in use waits for the first, detaching for the second: by default a minute and 10 s.
syncFrequency: 10s
nodeStatusUpdateFrequency: 3s
registryPullQPS: 0
eventRecordQPS: 0
maxPods: 250
YAML
}

# Logs the driver's service accounts' requests to the API server, without contents, so that a test
# sees which of their rights are used.
write_audit() {
    cat >"$BASE/audit.yaml" <<YAML
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts:belay-system"]
  - level: None
YAML
}

# Writes the configuration of a guest. It sees this machine below /machine, and keeps its state on a
# disk at /node.
write_guest() {
    local name=$1 directory=$BASE/guests/$1 as
    mkdir -p "$directory/cni"
    # A guest can become a Node of another name.
    for as in "$name" "$name-new"; do
        identity "$directory/$as" "system:node:$as" system:nodes
    done
    write_bridge "$directory/cni" "$(guest_pods "$name")"
    write_containerd "$directory/containerd.toml" /node/containerd overlayfs \
        "/machine$node_tools" "/machine$directory/cni"
    write_kubelet "$directory/kubelet.yaml" "$(guest_address "$name")" '' /node/flexvolumes \
        "/machine$BASE/resolv.conf"
}

write_keys
write_identities
write_audit
write_names
write_bridge "$BASE/cni" "$pod_network"
write_containerd "$BASE/containerd.toml" "$BASE/containerd" "$(snapshotter)" "$node_tools" "$BASE/cni"
write_kubelet "$BASE/kubelet.yaml" "$node_address" "$(cat "$BASE/cgroup")" "$BASE/flexvolumes" \
    "$BASE/resolv.conf"
for guest in $(guest_names); do write_guest "$guest"; done
