#!/usr/bin/env bash
# Puts small faults into the code that holds data, one at a time, and checks whether a test notices.
#
#   run.sh             a sample, against unit and mount tests (root)
#   run.sh --unit      against unit tests alone (no root)
#
# SAMPLE=n  how many faults (40)
# SEED=n    which of them; each month has its own seed, so that a fault that was missed is tried again
#           once a test for it is there
# FILES=…   globs of the files to put them in, instead of all of those below
#
# A fault may make the code free a loop device that is not the tests' own: run it on a machine that
# has no others. What was found: target/mutants/mutants.out.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
. tests/setup/env.sh

directories=(
    node-agent/src/operation
    node-agent/src/filesystem
    node-agent/src/device
    controller/src/backend/local
)
# Here an unnoticed fault may cost data.
data='^(node-agent/src/(filesystem|device)|controller/src/backend/local/(files|snapshot|record|recover))'
noticed_min=90

: "${SAMPLE:=40}"
: "${SEED:=$(date +%Y%m)}"
place=${CARGO_TARGET_DIR:-$PWD/target}/mutants
tree=$place/tree
found=$place/mutants.out

tests=(-- --include-ignored)
isolated=(unshare --mount --propagation private)
if [ "${1:-}" = --unit ]; then
    tests=()
    isolated=()
fi

# A separate copy: an interrupted run leaves no fault in the checkout, and the next one
# finds everything built.
copy_tree() {
    mkdir -p "$tree" "$place/tmp"
    find "$tree" -mindepth 1 -maxdepth 1 ! -name mutants.out -exec rm -rf {} +
    git ls-files -z | xargs -0 cp --parents --preserve=mode,timestamps --target-directory="$tree"
}

files() {
    local globs
    read -ra globs <<<"${FILES:-${directories[*]/%//**}}"
    printf -- '--file\n%s\n' "${globs[@]}"
}

# free_devices: those that a fault kept from being freed.
free_devices() {
    losetup --noheadings --list --output NAME,BACK-FILE 2>/dev/null |
        awk -v place="$place/tmp/" 'index($2, place) == 1 { print $1 }' |
        xargs --no-run-if-empty losetup --detach || true
    rm -rf "$place/tmp"
}

count() {
    grep -cE "$2" "$found/$1.txt" || true
}

# row NAME PATTERN: a line of the table.
row() {
    local caught missed timeout
    caught=$(count caught "$2") missed=$(count missed "$2") timeout=$(count timeout "$2")
    noticed=$((caught + timeout))
    all=$((noticed + missed))
    printf '%-32s %6d %8d %7d %8s\n' "$1" "$all" "$noticed" "$missed" \
        "$([ "$all" = 0 ] && printf -- - || printf '%d %%' $((100 * noticed / all)))"
}

report() {
    local directory
    printf '\n%-32s %6s %8s %7s %8s\n' directory faults noticed missed share
    for directory in "${directories[@]}"; do row "$directory" "^$directory/"; done
    row 'of them, where data is at stake' "$data"
    row all ''
    [ ! -s "$found/missed.txt" ] || { printf '\nnoticed by no test:\n' && cat "$found/missed.txt"; }
    printf '\nagain: make mutants SEED=%s SAMPLE=%s\n' "$SEED" "$SAMPLE"
    [ "$(count missed "$data")" = 0 ] || give_up 'mutants: a fault where data is at stake was noticed by no test'
    [ $((100 * noticed)) -ge $((noticed_min * all)) ] || give_up "mutants: under $noticed_min % noticed"
}

copy_tree
trap free_devices EXIT
# Not the flags of the calling make, and for each fault the short form of the tests.
unset MAKEFLAGS MFLAGS BELAY_NIGHTLY
export TMPDIR=$place/tmp CARGO_TARGET_DIR=$place/build
mapfile -t options < <(files)
options+=(--dir "$tree" --config "$here/accepted.toml")
all=$(cargo mutants "${options[@]}" --list | wc -l)
shards=$(((all + SAMPLE - 1) / SAMPLE))
printf 'mutants: one of %d faults of %d, seed %d\n' "$shards" "$all" "$SEED"
code=0
"${isolated[@]}" cargo mutants "${options[@]}" --in-place --output "$place" \
    --shard $((SEED % shards))/"$shards" --sharding round-robin --timeout-multiplier 3 \
    --colors never --no-times -- "${tests[@]}" || code=$?
# 2: some were missed, 3: some ran into the time limit; the report evaluates them.
case $code in 0 | 2 | 3) report ;; *) give_up "cargo mutants ended with $code" ;; esac
