#!/usr/bin/env bash
# Builds belay-guest-cloud and puts it into a directory, which is the first argument; the others go
# to cargo.
set -euo pipefail

directory=$1
shift
cargo build "$@" --release -p belay-guest --bin belay-guest-cloud
mkdir -p "$directory"
ln -f "${CARGO_TARGET_DIR:-target}/release/belay-guest-cloud" "$directory/belay-guest-cloud"
