#!/usr/bin/env bash
# Fuzzes the parsers of data from disks and from the kernel, with libFuzzer.
#
#   run.sh [TARGET...]     all of them, if none is named
#
# MINUTES=n   how long in all (4)
# KEEP=1      replaces the corpus by the fewest inputs that reach all code that was reached
#
# An input that makes a parser panic is kept below target/fuzz/crashes: copy it to the corpus, which
# the unit tests replay, and fix the parser.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. tests/setup/env.sh

: "${MINUTES:=4}"
place=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
corpus=tests/fuzz/corpus
have c++ || apt_install g++

# Sets the flags as cargo-fuzz does, with counters only: the parsers have no unsafe code for a
# sanitizer.
flags=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares)
# Set a target, so that the flags do not apply to build scripts.
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="${flags[*]}" cargo build --release --quiet --locked --target "$host" \
    --manifest-path tests/fuzz/Cargo.toml --target-dir "$place"

# fuzz TARGET FLAG... DIRECTORY...
fuzz() {
    BELAY_TARGET=$1 "$place/$host/release/belay-fuzz" -verbosity=0 "${@:2}" 2>&1 |
        sed '/^WARNING: Failed to find function/d; /^INFO:/d'
}

targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(find "$corpus" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort)
seconds=$((MINUTES * 60 / ${#targets[@]}))
for target in "${targets[@]}"; do
    found=$place/found/$target kept=$place/kept/$target
    mkdir -p "$found" "$place/crashes/$target"
    announce "fuzz: $target, $seconds s"
    # The longest input consists of superblocks at several offsets.
    fuzz "$target" -max_total_time="$seconds" -max_len=16384 -print_final_stats=1 \
        -artifact_prefix="$place/crashes/$target/" "$found" "$corpus/$target"
    if [ -n "${KEEP:-}" ]; then
        rm -rf "$kept"
        mkdir -p "$kept"
        fuzz "$target" -set_cover_merge=1 -use_counters=0 "$kept" "$corpus/$target" "$found"
        rm "$corpus/$target"/*
        cp "$kept"/* "$corpus/$target"
    fi
done
