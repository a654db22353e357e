#!/usr/bin/env bash
# The PodMonitor and PrometheusRule of the Prometheus operator, as an API server wants them
# described: so a cluster can judge ours. Prints their folder.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

version=v0.85.0
module=github.com/prometheus-operator/prometheus-operator
folder=$BELAY_CACHE/kubernetes/monitoring-crds-$version

if [ ! -e "$folder" ]; then
    announce "getting the CRDs of the Prometheus operator $version into $BELAY_CACHE (our objects" \
        "are checked against them)"
    source=$(cd / && go mod download -json "$module@$version" |
        sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -d "$source" ] || give_up "please make $module $version reachable for Go"
    mkdir -p "$folder.new"
    cp "$source"/example/prometheus-operator-crd/*_{podmonitors,prometheusrules}.yaml "$folder.new/"
    chmod -R u+w "$folder.new"
    mv -T "$folder.new" "$folder"
fi
printf '%s\n' "$folder"
