#!/usr/bin/env bash
# cargo-deny judges bans, licences and sources in `make check`. It is built from source, once.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

have cargo-deny && exit 0
announce "building cargo-deny into $BELAY_CACHE (make check needs it; two to three minutes, once)"
# A folder of its own: the workspace's flags and lints are not its business.
cargo install cargo-deny --locked --quiet --root "$BELAY_CACHE" --target-dir "$BELAY_CACHE/build" ||
    give_up "cargo-deny could not be built; please run: cargo install cargo-deny --locked"
rm -rf "$BELAY_CACHE/build"
