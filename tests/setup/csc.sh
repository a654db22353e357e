#!/usr/bin/env bash
# Provides csc, a client in docs/tools.md. Go builds it, once for each version.
#
# `go install` also requests the list of all versions, which a proxy with only some of them refuses;
# a module that requires this version does not cause that request.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

module=github.com/rexray/gocsi
version=v1.2.2

is_go_build csc "$module" "$version" && exit
announce "building csc $version into $BELAY_CACHE (make standalone runs it)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'module csc\nrequire %s %s\n' "$module" "$version" >"$work/go.mod"
mkdir -p "$BELAY_CACHE/bin"
(cd "$work" && GOFLAGS=-mod=mod go build -o "$BELAY_CACHE/bin/csc" "$module/csc") ||
    give_up "csc could not be built; please make $module $version reachable for Go"
