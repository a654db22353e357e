#!/usr/bin/env bash
# csc, a client of docs/tools.md. It is built by Go, once for each version.
#
# `go install` asks for the list of all versions too, which a proxy with only some of them refuses; a
# module that requires this version does not.
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
