#!/usr/bin/env bash
# Provides the definitions of the Prometheus operator's PodMonitor and PrometheusRule, with which an
# API server can validate Belay's objects. Prints their directory.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

version=v0.85.0
module=github.com/prometheus-operator/prometheus-operator
directory=$BELAY_CACHE/kubernetes/monitoring-crds-$version

if [ ! -e "$directory" ]; then
    announce "getting the CRDs of the Prometheus operator $version into $BELAY_CACHE (our objects" \
        "are checked against them)"
    source=$(cd / && go mod download -json "$module@$version" |
        sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -d "$source" ] || give_up "please make $module $version reachable for Go"
    mkdir -p "$directory.new"
    cp "$source"/example/prometheus-operator-crd/*_{podmonitors,prometheusrules}.yaml "$directory.new/"
    chmod -R u+w "$directory.new"
    mv -T "$directory.new" "$directory"
fi
printf '%s\n' "$directory"
