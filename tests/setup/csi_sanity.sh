#!/usr/bin/env bash
# Provides csi-sanity, the official test suite for CSI drivers. Go builds it, once for each version.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

version=v5.6.0
module=github.com/kubernetes-csi/csi-test/v5

is_go_build csi-sanity "$module" "$version" && exit 0
announce "building csi-sanity $version into $BELAY_CACHE (make test runs it)"
GOBIN=$BELAY_CACHE/bin go install "$module/cmd/csi-sanity@$version" ||
    give_up "csi-sanity could not be built; please make $module $version reachable for Go"
