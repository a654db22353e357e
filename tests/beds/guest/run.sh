#!/usr/bin/env bash
# Runs the tests in guests. Arguments are passed to cargo; those after `--` select tests. Guests
# need User-mode Linux, which exists only for x86_64 and comes from apt: on other machines, this
# reports so and passes.
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
# Each guest has one CPU and 768 MiB.
cargo test "${flags[@]}" --workspace --test guest -- --ignored --test-threads=2 "$@"
