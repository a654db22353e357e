#!/usr/bin/env bash
# Starts a cluster with Belay and keeps it, or installs a new build in the running one, and prints how
# to use it.
#
#   up.sh BINDIR
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

bindir=${1:?the directory of the programs}
examples=$(readlink -f "$here/../../../deploy/examples")
images=$(mktemp -d)
trap 'rm -rf "$images"' EXIT

print_addresses() {
    cat <<TEXT

Belay runs in a Kubernetes of one node. To use it:

    export PATH=$BASE/bin:\$PATH KUBECONFIG=$BASE/kubeconfig

    kubectl get pods --all-namespaces
    # A claim, and a pod that writes to it.
    sed 's|busybox$|localhost/busybox:1|' $examples/local.yaml | kubectl apply -f -
    kubectl exec local -- df -h /data
    helm list --all-namespaces

On the node itself:           BASE=$BASE $here/cluster.sh exec losetup --list
Logs:                         $BASE/log
Install a new build:          make cluster
Remove the cluster:           make cluster-down
TEXT
}

"$here/build/build.sh"
"$here/../../../deploy/images/build.sh" "$images" "$bindir"
"$here/cluster.sh" status || "$here/cluster.sh" up
"$here/deploy.sh" "$images"
print_addresses
