#!/usr/bin/env bash
# Runs the tests in guests; its arguments go to cargo. Guests need User-mode Linux, which is made for
# x86_64 alone and comes from apt: elsewhere it says so and passes.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../../.."
. tests/setup/env.sh

if [ "$(uname -m)" != x86_64 ] || ! { have linux.uml || have apt-get; }; then
    announce "tests in guests are left out: there is no User-mode Linux for this machine"
    exit 0
fi
tests/setup/setup.sh guest
# The same packages as for the other tests, so nothing is built twice.
cargo test "$@" --workspace --test blackbox --no-run
# Each guest has its own processor, and 768 MiB.
cargo test "$@" --workspace --test guest -- --ignored --test-threads=2
