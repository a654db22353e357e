#!/usr/bin/env bash
# Runs the tests that need root in several concurrent processes, each with a share of the tests and
# a separate mount namespace. A single process would take longer: until its exec, a program that a
# test starts has all files of the process's other tests open, and keeps their mounts and devices
# busy, so those tests would have to run one at a time.
#
#   tests/mounts.sh short|long [FLAG of cargo...]
#
# `long` runs the matrices of accidents, crashes and power losses, and the tests that wait for a
# minute; `short` runs all others.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. tests/setup/env.sh

part=${1:?short or long}
shift
long='^(operation::tests::matrix|accidents|crash|power|economy|backups|crashes|memory)::'

# The processes mostly wait for the kernel.
processes=$((2 * $(nproc)))
tests=(cargo test "$@" --no-fail-fast --workspace --exclude belay-guest --exclude belay-openstack --tests)
"${tests[@]}" --no-run
logs=$(mktemp --directory)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$logs"' EXIT
"${tests[@]}" -- --ignored --list >"$logs/list" 2>"$logs/errors" || {
    cat "$logs/errors" >&2
    give_up 'the tests cannot be listed, see above'
}
names=$(sed -n 's/: test$//p' "$logs/list" | sort -u)
case $part in
    short) names=$(grep -vE "$long" <<<"$names") ;;
    long) names=$(grep -E "$long" <<<"$names") ;;
    *) give_up 'tests/mounts.sh short|long' ;;
esac

# share NUMBER: prints every n-th name, so that the slow tests of a module are spread over the
# processes.
share() {
    awk -v number="$1" -v of="$processes" 'NR % of == number - 1' <<<"$names"
}

run() {
    local mine
    mapfile -t mine < <(share "$1")
    # Without a name, all of them would run.
    [ "${#mine[@]}" != 0 ] || exit 0
    exec unshare --mount --propagation private \
        "${tests[@]}" -- --ignored --exact "${mine[@]}" >"$logs/$1" 2>&1
}

running=()
for number in $(seq "$processes"); do
    : >"$logs/$number"
    run "$number" &
    running+=($!)
done
tail --quiet --follow --lines=+1 "$logs"/[0-9]* | grep --line-buffered '^test .* \.\.\. ' &
code=0
failed=()
for number in $(seq "$processes"); do
    wait "${running[number - 1]}" || {
        code=1
        # The log of a process that was killed has no such section.
        sed -n '/^failures:$/,$p' "$logs/$number" | grep . || tail --lines=60 "$logs/$number"
        mapfile -t -O "${#failed[@]}" failed < <(
            sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$logs/$number" | grep . || echo killed
        )
    }
done

# The processes share the machine's loop devices, also with a cluster that another lane tests. A
# test that fails runs again alone, and is named. The nightly run just fails.
if [ "$code" != 0 ] && [ -z "${BELAY_NIGHTLY:-}" ] && [ "${#failed[@]}" -le 2 ]; then
    unshare --mount --propagation private \
        "${tests[@]}" -- --ignored --exact "${failed[@]}" >"$logs/alone" 2>&1 &&
        grep -q '^test .* \.\.\. ok$' "$logs/alone" && {
        printf '== flaky: failed among other tests, and passed alone: %s\n' "${failed[*]}"
        code=0
    }
fi
exit "$code"
