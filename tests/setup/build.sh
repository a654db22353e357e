#!/usr/bin/env bash
# Builds the programs and puts them into one directory, which is its first argument; the others
# go to cargo.
#
# They are linked statically: so they run in an empty container image, and the node agent keeps
# 1.5 MiB less of the C library resident. The target must be named for that, since rustflags would
# otherwise reach build scripts and macros, which cannot be static.
set -euo pipefail

# A static program that may be loaded anywhere has thousands of addresses to relocate at its start; in
# the short form of them (RELR) it is 200 KiB smaller, in memory too. It takes a C library whose
# start knows that form.
short_addresses() {
    local version
    version=$(getconf GNU_LIBC_VERSION 2>/dev/null) || return 1
    printf '%s\n' 2.36 "${version#glibc }" | sort --check=quiet --version-sort
}

directory=$1
shift
host=$(rustc --version --verbose | sed -n 's/^host: //p')
flags="'-Ctarget-feature=+crt-static'"
if short_addresses; then
    flags+=",'-Clink-arg=-Wl,-z,pack-relative-relocs'"
fi
cargo build "$@" --release --target "$host" --config "target.$host.rustflags=[$flags]" \
    -p belay-node-agent -p belay-controller -p belay-ctl -p belay-demo
mkdir -p "$directory"
for program in belay-node belay-controller belayctl belay-demo; do
    ln -f "${CARGO_TARGET_DIR:-target}/$host/release/$program" "$directory/$program"
done
