#!/usr/bin/env bash
# Installs Belay into a running cluster as a user would: the snapshot API, the images, the chart.
# Returns when the driver is registered with the kubelet and every pod is ready.
#
#   deploy.sh IMAGES [HELM-FLAG...]    IMAGES: the directory that deploy/images/build.sh has filled
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

images=${1:?the directory of the images}
shift
chart=$here/../../../deploy/chart
namespace=belay-system
driver=local.csi.belay.dev
snapshot_controller=v8.6.0
export PATH=$BASE/bin:$PATH KUBECONFIG=$BASE/kubeconfig

import_images() {
    local name
    for name in belay-node belay-controller; do
        [ -e "$images/$name.tar" ] ||
            give_up "there is no $images/$name.tar; please run:" \
                "deploy/images/build.sh $images BINDIR"
        "$here/cluster.sh" exec ctr --namespace k8s.io images import "$images/$name.tar" >/dev/null
    done
}

# Installs the official manifest, but with the version that is built here, and with one replica on
# the single node.
install_snapshots() {
    local programs
    programs=$(cat "$BASE/programs")
    kubectl apply -f "$programs/snapshot-crds" >/dev/null
    kubectl wait --for=condition=Established --timeout=180s -f "$programs/snapshot-crds" >/dev/null
    rm -rf "$BASE/snapshots"
    cp -r "$programs/snapshot-controller-manifests" "$BASE/snapshots"
    cat >>"$BASE/snapshots/kustomization.yaml" <<YAML
images: [{name: registry.k8s.io/sig-storage/snapshot-controller, newTag: $snapshot_controller}]
replicas: [{name: snapshot-controller, count: 1}]
YAML
    kubectl apply -k "$BASE/snapshots" >/dev/null
}

# Installs the chart. The second installation is an upgrade; the digest causes new pods for a new
# build, which has the old build's tag.
install_chart() {
    local digest
    digest=$(cat "$images"/belay-{node,controller}.tar | sha256sum | cut -c 1-16)
    helm upgrade --install belay "$chart" --namespace "$namespace" --create-namespace \
        --values "$here/values.yaml" --set-string "node.podAnnotations.build=$digest" \
        --set-string "controller.podAnnotations.build=$digest" --wait --timeout 5m "$@" \
        >"$BASE/log/helm.log" 2>&1 || {
        cat "$BASE/log/helm.log" >&2
        give_up "helm could not install the chart; its pods' logs are in $BASE/log/pods"
    }
}

is_registered() {
    kubectl get csinode "$node" --output jsonpath='{.spec.drivers[*].name}' | grep -qw "$driver"
}

[ -x "$BELAY_CACHE/bin/helm" ] || give_up "there is no helm; please run: tests/setup/helm.sh"
import_images
install_snapshots
install_chart "$@"
await 180 "the registration of $driver with the kubelet" is_registered
kubectl wait --namespace kube-system --for=condition=Ready pod --timeout=180s \
    --selector app.kubernetes.io/name=snapshot-controller >/dev/null
