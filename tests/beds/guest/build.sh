#!/usr/bin/env bash
# Builds belay-guest-cloud, and belay-twins for it, and puts them into a directory, which is the
# first argument; the others go to cargo.
set -euo pipefail

directory=$1
shift
cargo build "$@" --release -p belay-guest -p belay-twins --bin belay-guest-cloud --bin belay-twins
mkdir -p "$directory"
for program in belay-guest-cloud belay-twins; do
    ln -f "${CARGO_TARGET_DIR:-target}/release/$program" "$directory/$program"
done
