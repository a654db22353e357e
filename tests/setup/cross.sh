#!/usr/bin/env bash
# cross.sh amd64|arm64: installs the tools that build programs for this architecture; nothing if it
# is this machine's.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

[ "$1" != "$(dpkg --print-architecture)" ] || exit 0
target=$(rust_target "$1")
"$here/packages.sh" "cross-$1"
[ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] || {
    announce "getting Rust's standard library for $1"
    rustup --quiet target add "$target" </dev/null ||
        give_up "no standard library of Rust for $1; please run: rustup target add $target"
}
