#!/usr/bin/env bash
# Runs the tests in guests; its arguments go to cargo, and those after `--` select tests. Guests need User-mode Linux, which is made for
# x86_64 alone and comes from apt: elsewhere it says so and passes.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../../.."
. tests/setup/env.sh

if [ "$(uname -m)" != x86_64 ] || ! { have linux.uml || have apt-get; }; then
    announce "tests in guests are left out: there is no User-mode Linux for this machine"
    exit 0
fi
tests/setup/setup.sh guest
flags=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    flags+=("$1")
    shift
done
[ $# -eq 0 ] || shift
# The same packages as for the other tests, so nothing is built twice.
cargo test "${flags[@]}" --workspace --test blackbox --no-run
# Each guest has its own processor, and 768 MiB.
cargo test "${flags[@]}" --workspace --test guest -- --ignored --test-threads=2 "$@"
