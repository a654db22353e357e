#!/usr/bin/env bash
# Writes the plain manifests, which can be applied as they are: the chart, rendered with the values
# files of the same names in its ci/ directory.
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

# Renders the chart without output that depends only on helm, so that each release of helm writes
# the same: template paths, empty lines, and the version of the cluster. Also removes hook
# annotations: Argo CD would run the hooks before the namespace exists.
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
