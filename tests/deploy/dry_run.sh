#!/usr/bin/env bash
# Has the real API server validate the chart, rendered with each values file of its ci/ directory, and
# the examples, without creating anything. Unknown fields and warnings are failures: the API server would drop
# unknown fields, and people ignore warnings.
#
#   dry_run.sh     with KUBECONFIG, in a cluster that has the snapshot API
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"

namespace=belay-dry-run
work=$(mktemp -d)
made_monitors=

clean() {
    local code=$?
    trap - EXIT
    kubectl delete namespace "$namespace" --ignore-not-found --timeout=60s >/dev/null || code=1
    [ -z "$made_monitors" ] || kubectl delete --filename "$work/crd.yaml" >/dev/null || code=1
    rm -rf "$work"
    exit "$code"
}

crd() {
    cat <<YAML
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ${1}s.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: $2, plural: ${1}s}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
YAML
}

# Without the Prometheus operator, nothing validates its objects; this definition accepts every
# field.
make_monitors() {
    ! kubectl get crd podmonitors.monitoring.coreos.com >/dev/null 2>&1 || return 0
    { crd podmonitor PodMonitor; crd prometheusrule PrometheusRule; } >"$work/crd.yaml"
    made_monitors=1
    kubectl apply --filename "$work/crd.yaml" >/dev/null
    kubectl wait --for=condition=Established --timeout=30s --filename "$work/crd.yaml" >/dev/null
}

# A dry run creates no namespace that later objects could be in, so they are created in an existing
# one.
judge() {
    local manifest=$1 reported
    reported=$(sed "s/belay-system/$namespace/" "$manifest" |
        kubectl apply --dry-run=server --validate=strict --filename - 2>&1) || {
        printf '%s\n' "$reported" >&2
        return 1
    }
    # Helm has made the same objects, and keeps no such note on them.
    reported=$(grep -v 'last-applied-configuration annotation' <<<"$reported")
    if grep -i warning <<<"$reported" >&2; then
        return 1
    fi
    printf '%s: %d objects\n' "$(basename "$manifest")" "$(wc -l <<<"$reported")"
}

trap clean EXIT
kubectl create namespace "$namespace" --save-config >/dev/null
make_monitors
deploy=$here/../../deploy
"$deploy/manifests/generate.sh" "$work" "$deploy"/chart/ci/*.yaml
failed=
manifests=("$deploy"/examples/*.yaml)
for values in "$deploy"/chart/ci/*.yaml; do manifests+=("$work/$(basename "$values")"); done
for manifest in "${manifests[@]}"; do
    judge "$manifest" || { printf 'belay: %s is refused\n' "$manifest" >&2; failed=1; }
done
[ -z "$failed" ]
