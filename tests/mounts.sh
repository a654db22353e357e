#!/usr/bin/env bash
# Runs the tests that need root: several processes side by side, each with its share of the tests
# and a separate mount namespace. One process would take longer: until its exec, a program that a
# test starts has open what all other tests of the process have open, and keeps their mounts and
# devices busy, so that those have to take turns.
#
#   tests/mounts.sh [FLAG of cargo...]
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. tests/setup/env.sh

# They mostly wait for the kernel.
processes=$((2 * $(nproc)))
tests=(cargo test "$@" --no-fail-fast --workspace --exclude belay-guest --exclude belay-openstack --tests)
"${tests[@]}" --no-run
names=$("${tests[@]}" -- --ignored --list 2>/dev/null | sed -n 's/: test$//p' | sort -u)
logs=$(mktemp --directory)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$logs"' EXIT

# share NUMBER: one name of so many, so that the slow tests of a module are spread.
share() {
    awk -v number="$1" -v of="$processes" 'NR % of == number - 1' <<<"$names"
}

run() {
    local mine
    mapfile -t mine < <(share "$1")
    exec unshare --mount --propagation private \
        "${tests[@]}" -- --ignored --exact "${mine[@]}" >"$logs/$1" 2>&1
}

running=()
for number in $(seq "$processes"); do
    : >"$logs/$number"
    run "$number" &
    running+=($!)
done
tail --quiet --follow --lines=+1 "$logs"/* | grep --line-buffered '^test .* \.\.\. ' &
code=0
for number in $(seq "$processes"); do
    wait "${running[number - 1]}" || {
        code=1
        sed -n '/^failures:$/,$p' "$logs/$number"
    }
done
exit "$code"
