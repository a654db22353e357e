#!/usr/bin/env bash
# Runs the long forms of the tests, part by part, and reports how far it came. A part that passed is
# not repeated for the same commit, so an interrupted run resumes where it ended.
#
#   nightly.sh             the parts that have not passed yet on this commit
#   nightly.sh PART...     these parts alone, whether they passed before or not
#   nightly.sh --list      the parts with their state, and runs nothing
#
# State and logs: target/nightly/<commit>. A checkout with uncommitted changes starts anew.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/.."
. tests/setup/env.sh

export BELAY_NIGHTLY=1

# name | minutes on two free cores | make's arguments
parts=$(
    cat <<'PARTS'
build       |  3 | build
unit        | 12 | unit CARGO_PROFILE_DEV_OPT_LEVEL=1
mounts      | 30 | mounts CARGO_PROFILE_DEV_OPT_LEVEL=1
wire        |  1 | wire
chart       |  1 | chart
sanity      |  2 | sanity
images      |  1 | images
packages    |  1 | packages
monitoring  |  1 | monitoring
basics      |  4 | e2e PARTS=basics
parallel    | 30 | e2e PARTS=parallel
disruptive  | 14 | e2e PARTS=disruptive
stress      | 12 | e2e PARTS=stress CHAOS=8
operations  |  4 | e2e PARTS=operations
rights      | 15 | e2e PARTS=rights
mutants     | 20 | mutants SAMPLE=8
PARTS
)

# Uncommitted changes have no name, so nothing that passed with them counts later.
revision() {
    git describe --always --abbrev=12 --exclude '*' --dirty=-changed
}

names() {
    awk '{ print $1 }' <<<"$parts"
}

# field NAME NUMBER: of the part's line.
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

# run NAME: its output goes to the terminal and to its log.
run() {
    local name=$1 start=$SECONDS arguments code=0
    read -ra arguments <<<"$(field "$name" 3)"
    rm -f "$state/$name.passed"
    printf '== nightly: %s (about %s minutes)\n' "$name" "$(field "$name" 2)"
    "${MAKE:-make}" --no-print-directory "${arguments[@]}" 2>&1 | tee "$state/$name.log" || code=$?
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
# The halves of the storage suite are judged together, so their reports must outlive each of them.
export SUITE_DIR=$state/suite

if [ "${1:-}" = --list ]; then
    list
    exit 0
fi
for name in "$@"; do
    [ -n "$(field "$name" 1)" ] || give_up "there is no part $name; the parts are:" $(names)
done

failed=()
for name in ${*:-$(names)}; do
    if [ $# = 0 ] && is_done "$name"; then
        printf '== nightly: %s: passed before, %s s\n' "$name" "$(cat "$state/$name.passed")"
        continue
    fi
    # The other parts say something all the same; without programs none of them does.
    run "$name" || { failed+=("$name") && [ "$name" != build ] || break; }
done
printf '\n'
list
[ ${#failed[@]} = 0 ] || give_up "nightly: failed: ${failed[*]}; again: make nightly"
[ "$(names | while read -r name; do is_done "$name" || echo "$name"; done | wc -l)" = 0 ] ||
    give_up "nightly: not all parts have passed yet; to resume: make nightly"
printf '\nnightly: all parts passed on %s\n' "$(basename "$state")"
