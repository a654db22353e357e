#!/usr/bin/env bash
# Builds belay-guest-cloud and belay-twins and puts them into the directory given as the first
# argument; the other arguments are passed to cargo.
set -euo pipefail

directory=$1
shift
cargo build "$@" --release -p belay-guest -p belay-twins --bin belay-guest-cloud --bin belay-twins
mkdir -p "$directory"
for program in belay-guest-cloud belay-twins; do
    ln -f "${CARGO_TARGET_DIR:-target}/release/$program" "$directory/$program"
done
