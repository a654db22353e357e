#!/usr/bin/env bash
# csi-sanity is the official test suite for CSI drivers. It is built by Go, once for each version.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

version=v5.6.0
module=github.com/kubernetes-csi/csi-test/v5

# The binary says "(dev)" of itself; what Go stamped into it is the truth.
installed() {
    [ -x "$BELAY_CACHE/bin/csi-sanity" ] &&
        go version -m "$BELAY_CACHE/bin/csi-sanity" 2>/dev/null |
        awk -v module="$module" -v version="$version" \
            '$1 == "mod" && $2 == module && $3 == version { found = 1 } END { exit !found }'
}

installed && exit 0
announce "building csi-sanity $version into $BELAY_CACHE (make test runs it)"
GOBIN=$BELAY_CACHE/bin go install "$module/cmd/csi-sanity@$version" ||
    give_up "csi-sanity could not be built; please make $module $version reachable for Go"
