#!/usr/bin/env bash
# Builds the programs and puts them into one directory, which is its first argument; the others
# go to cargo.
#
# ARCHITECTURE (this machine's): amd64 or arm64, in Debian's words. For the other one it takes that
# compiler and that standard library, see tests/setup/cross.sh.
#
# They are linked statically: so they run in an empty container image, and the node agent keeps
# 1.5 MiB less of the C library resident. The target must be named for that, since rustflags would
# otherwise reach build scripts and macros, which cannot be static.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

# A static program that may be loaded anywhere has thousands of addresses to relocate at its start; in
# the short form of them (RELR) it is 200 KiB smaller, in memory too. It takes a C library whose
# start knows that form.
short_addresses() {
    local version
    version=$(getconf GNU_LIBC_VERSION 2>/dev/null) || return 1
    printf '%s\n' 2.36 "${version#glibc }" | sort --check=quiet --version-sort
}

# flag TEXT...: each as an element of a list in TOML.
flag() {
    printf "'%s'," "$@"
}

# The programs name no path of the machine that built them, so that another one builds the same.
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
