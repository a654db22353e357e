#!/usr/bin/env bash
# cargo_tool.sh NAME PURPOSE: builds a cargo tool from source, once.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

have "$1" && exit 0
announce "building $1 into $BELAY_CACHE ($2 needs it; two to three minutes, once)"
# Use a separate directory, to which the workspace's flags and lints do not apply.
cargo install "$1" --locked --quiet --root "$BELAY_CACHE" --target-dir "$BELAY_CACHE/build" ||
    give_up "$1 could not be built; please run: cargo install $1 --locked"
rm -rf "$BELAY_CACHE/build"
