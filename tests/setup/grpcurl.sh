#!/usr/bin/env bash
# Provides grpcurl, a client in docs/tools.md. Go builds it, once for each version.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

module=github.com/fullstorydev/grpcurl
version=v1.9.4

is_go_build grpcurl "$module" "$version" && exit
announce "building grpcurl $version into $BELAY_CACHE (make standalone runs it)"
GOBIN=$BELAY_CACHE/bin go install "$module/cmd/grpcurl@$version" ||
    give_up "grpcurl could not be built; please make $module $version reachable for Go"
