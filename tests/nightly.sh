#!/usr/bin/env bash
# Runs the long forms of the tests, part by part, and reports the progress. A part that has passed
# is not repeated for the same commit, so an interrupted run resumes where it stopped.
#
#   nightly.sh             the parts that have not passed yet on this commit
#   nightly.sh PART...     these parts alone, whether they passed before or not; one after the other
#   nightly.sh --list      the parts with their state, and runs nothing
#
# State and logs: target/nightly/<commit>. A checkout with uncommitted changes starts from scratch.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/.."
. tests/setup/env.sh

export BELAY_NIGHTLY=1

# name | minutes | when | make's arguments
# Parts of `cluster` mostly wait and parts of `machine` mostly compute, so the two groups run
# concurrently, each one part at a time. Before them run the build, and the benchmarks, which need a
# quiet machine.
parts=$(
    cat <<'PARTS'
build       |  3 | before  | build
bench       | 12 | before  | bench
unit        |  8 | machine | unit CARGO_PROFILE_DEV_OPT_LEVEL=1
mounts      | 30 | machine | mounts CARGO_PROFILE_DEV_OPT_LEVEL=1
guest       | 60 | machine | guest CARGO_PROFILE_DEV_OPT_LEVEL=1
arrivals    |  6 | machine | arrivals
mutants     | 60 | machine | mutants
wire        |  1 | machine | wire
chart       |  1 | machine | chart
sanity      |  2 | machine | sanity
standalone  |  1 | machine | standalone
openstack   | 30 | machine | openstack
images      |  1 | machine | images
packages    |  1 | machine | packages
monitoring  |  1 | machine | monitoring
fuzz        | 61 | machine | fuzz MINUTES=60
release     | 15 | machine | release-check
basics      |  4 | cluster | e2e PARTS=basics
parallel    | 42 | cluster | e2e PARTS=parallel
disruptive  | 14 | cluster | e2e PARTS=disruptive
stress      | 26 | cluster | e2e PARTS=stress CHAOS=15
operations  |  5 | cluster | e2e PARTS=operations
rights      | 15 | cluster | e2e PARTS=rights
cinder      |  8 | cluster | e2e PARTS=openstack
nodes       | 10 | cluster | e2e PARTS=guests GUESTS=2
servers     | 105 | cluster | e2e PARTS=guests GUESTS=2 CLOUD=openstack FULL=1
files       | 35 | cluster | e2e PARTS=guests GUESTS=2 CLOUD=nfs FULL=1
scale       |  8 | cluster | scale
disks       | 35 | cluster | e2e PARTS=guests GUESTS=2 CLOUD=local
PARTS
)

# Prints the commit. Uncommitted changes have no name, so results with them do not count later.
revision() {
    git describe --always --abbrev=12 --exclude '*' --dirty=-changed
}

# names [WHEN]
names() {
    awk -F ' *[|] *' -v when="${1:-}" 'when == "" || $3 == when { print $1 }' <<<"$parts"
}

# field NAME NUMBER: prints a field of the part's line.
field() {
    awk -F ' *[|] *' -v name="$1" -v number="$2" '$1 == name { print $number }' <<<"$parts"
}

is_done() {
    [ -s "$state/$1.passed" ]
}

list() {
    local name
    printf '%-12s %8s  %s\n' part minutes state
    for name in $(names); do
        if is_done "$name"; then
            printf '%-12s %8s  passed, %s s\n' "$name" "$(field "$name" 2)" \
                "$(cat "$state/$name.passed")"
        elif [ -e "$state/$name.log" ]; then
            printf '%-12s %8s  failed or interrupted: %s\n' "$name" "$(field "$name" 2)" \
                "$state/$name.log"
        else
            printf '%-12s %8s  to do\n' "$name" "$(field "$name" 2)"
        fi
    done
}

# run NAME: runs a part, with its output in its log.
run() {
    local name=$1 start=$SECONDS arguments code=0
    read -ra arguments <<<"$(field "$name" 4)"
    rm -f "$state/$name.passed"
    printf '== nightly: %s (about %s minutes)\n' "$name" "$(field "$name" 2)"
    "${MAKE:-make}" --no-print-directory "${arguments[@]}" >"$state/$name.log" 2>&1 || code=$?
    if [ "$code" != 0 ]; then
        printf '== nightly: %s: FAILED, %d s; its log: %s\n' "$name" $((SECONDS - start)) \
            "$state/$name.log"
        return 1
    fi
    printf '%d\n' $((SECONDS - start)) >"$state/$name.passed"
    printf '== nightly: %s: ok, %d s\n' "$name" $((SECONDS - start))
}

state=${CARGO_TARGET_DIR:-$PWD/target}/nightly/$(revision)
case $state in *-changed) [ "${1:-}" = --list ] || rm -rf "$state" ;; esac
mkdir -p "$state"
# The halves of the storage suite are evaluated together, so their reports must be kept until both
# have run.
export SUITE_DIR=$state/suite

if [ "${1:-}" = --list ]; then
    list
    exit 0
fi
for name in "$@"; do
    [ -n "$(field "$name" 1)" ] || give_up "there is no part $name; the parts are:" $(names)
done

# run_lane WHEN: runs the parts of this group that have not passed yet. The exit code is 0 if all
# have passed.
run_lane() {
    local name code=0
    for name in $(names "$1"); do
        if is_done "$name"; then
            printf '== nightly: %s: passed before, %s s\n' "$name" "$(cat "$state/$name.passed")"
        else
            # The other parts are still useful.
            run "$name" || code=1
        fi
    done
    return "$code"
}

run_all() {
    local background code=0
    # Without programs no part can run.
    run_lane before || code=1
    is_done build || return 1
    # Use a separate process group, so that all of it can be ended.
    set -m
    run_lane machine &
    background=$!
    set +m
    trap 'kill -TERM -- -$background 2>/dev/null; exit 130' INT TERM HUP
    run_lane cluster || code=1
    wait "$background" || code=1
    trap - INT TERM HUP
    return "$code"
}

printf 'nightly: output of each part: %s/PART.log\n' "$state"
started=$SECONDS code=0
if [ $# = 0 ]; then
    run_all || code=1
else
    for name; do run "$name" || code=1; done
fi
printf '\n'
list
[ "$code" = 0 ] || give_up 'nightly: a part failed, see above; those that have not passed again: make nightly'
[ "$(names | while read -r name; do is_done "$name" || echo "$name"; done | wc -l)" = 0 ] ||
    give_up "nightly: not all parts have passed yet; to resume: make nightly"
printf '\nnightly: all parts passed on %s, this run took %d minutes\n' "$(basename "$state")" \
    $(((SECONDS - started) / 60))
