#!/usr/bin/env bash
# Builds the programs and puts them into the directory given as the first argument; the other
# arguments are passed to cargo.
#
# ARCHITECTURE (this machine's) is amd64 or arm64, as Debian names them. For the other architecture,
# this uses the compiler and standard library from tests/setup/cross.sh.
#
# The programs are linked statically, so they run in an empty container image, and the node agent
# keeps 1.5 MiB less of the C library resident. The target must be named, since rustflags would
# otherwise apply to build scripts and macros, which cannot be static.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

# Prints the flag for short relocations. A static position-independent program has thousands of
# addresses to relocate at its start; in the short form (RELR) it is 200 KiB smaller, in memory as
# well. This requires a C library whose startup code supports RELR.
short_addresses() {
    local version
    version=$(getconf GNU_LIBC_VERSION 2>/dev/null) || return 1
    printf '%s\n' 2.36 "${version#glibc }" | sort --check=quiet --version-sort
}

# flag TEXT...: prints each text as an element of a list in TOML.
flag() {
    printf "'%s'," "$@"
}

# Prints flags that remove paths of the building machine from the programs, so that another machine
# builds the same.
without_paths() {
    local sources
    cargo fetch --quiet --locked --target "$target"
    for sources in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
        flag "--remap-path-prefix=$sources=crates"
    done
    flag "--remap-path-prefix=$(readlink -m "${CARGO_TARGET_DIR:-target}")=target"
}

directory=$1
shift
host=$(rustc --version --verbose | sed -n 's/^host: //p')
target=$host
[ -z "${ARCHITECTURE:-}" ] || target=$(rust_target "$ARCHITECTURE")
if [ "$target" != "$host" ]; then
    set -- --config "target.$target.linker='${target/-unknown/}-gcc'" "$@"
fi
flags=$(flag -Ctarget-feature=+crt-static)
if short_addresses; then
    flags+=$(flag -Clink-arg=-Wl,-z,pack-relative-relocs)
fi
flags+=$(without_paths)
programs=(-p belay-node-agent -p belay-controller -p belay-ctl -p belay-demo)
if ! [ -e "$directory/belay-node" ]; then
    crates=$(cargo tree --prefix none --edges normal,build "${programs[@]}" | sort -u | wc -l)
    announce "building 4 programs from $crates crates: about 5 minutes on 2 cores, once"
fi
cargo build "$@" --release --target "$target" --config "target.$target.rustflags=[$flags]" \
    "${programs[@]}"
mkdir -p "$directory"
for program in belay-node belay-controller belayctl belay-demo; do
    ln -f "${CARGO_TARGET_DIR:-target}/$target/release/$program" "$directory/$program"
done
