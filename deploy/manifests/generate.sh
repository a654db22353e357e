#!/usr/bin/env bash
# Writes the plain manifests that are applied as they are: the chart, rendered with the values of its
# ci/ directory that have their names.
#
#   deploy/manifests/generate.sh [OUTDIR [VALUES...]]     default: these six into this directory, as
#                                                         `make manifests` does
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../../tests/setup/env.sh"

outdir=${1:-$here}
chart=$here/../chart
shift || true
[ $# -gt 0 ] || set -- "$chart"/ci/{local,local-without-snapshots,openstack,digitalocean,civo,nfs}.yaml
"$here/../../tests/setup/helm.sh"

# Without what depends on helm alone, so that each release of it writes the same: where it found an
# object, empty lines, and what it takes the cluster for. And without its hooks: Argo CD would run them
# before the namespace exists.
render() {
    helm template belay "$chart" --namespace belay-system --kube-version 1.36.0 --values "$1" |
        awk '/^# Source: / || /^    helm\.sh\/hook/ { next }
             /^  annotations:$/ { held = $0 "\n"; next }
             held != "" { if (/^    /) printf "%s", held; held = "" }
             /^$/ { blank = blank "\n"; next }
             /^---$/ { blank = "" } { printf "%s%s\n", blank, $0; blank = "" }'
}

for values; do
    name=$(basename "$values")
    {
        printf '# Made by `make manifests` from deploy/chart/ci/%s. Change the chart instead.\n' "$name"
        sed -n '/^#/!q; p' "$values"
        render "$values"
    } >"$outdir/$name"
done
