#!/usr/bin/env bash
# Provides Helm, which renders and checks the chart, and installs it in the Kubernetes bed. Go
# builds it, once for each version.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

version=v4.3.1
module=helm.sh/helm/v4

is_go_build helm "$module" "$version" && exit 0
announce "building helm $version into $BELAY_CACHE (make chart and make e2e need it; some minutes, once)"
GOBIN=$BELAY_CACHE/bin go install -ldflags "-s -w -X $module/internal/version.version=$version" \
    "$module/cmd/helm@$version" ||
    give_up "helm could not be built; please make $module $version reachable for Go"
