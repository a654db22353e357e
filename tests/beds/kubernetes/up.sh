#!/usr/bin/env bash
# Makes a cluster with Belay in it that stays, or brings a new build into the one that runs, and
# says how to talk to it.
#
#   up.sh BINDIR
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

bindir=${1:?the folder of the programs}
images=$(mktemp -d)
trap 'rm -rf "$images"' EXIT

tell() {
    cat <<TEXT

Belay runs in a Kubernetes of one node. This makes a shell talk to it:

    export PATH=$BASE/bin:\$PATH KUBECONFIG=$BASE/kubeconfig

    kubectl get pods --all-namespaces
    kubectl apply -f $here/example.yaml    # a claim, and a pod that writes on it
    kubectl exec example -- df -h /data
    helm list --all-namespaces

What the node itself sees:    BASE=$BASE $here/cluster.sh exec losetup --list
Logs of everything:           $BASE/log
Another build into it:        make cluster
And away with it:             make cluster-down
TEXT
}

"$here/build/build.sh"
"$here/../../../deploy/images/build.sh" "$images" "$bindir"
"$here/cluster.sh" status || "$here/cluster.sh" up
"$here/deploy.sh" "$images"
tell
