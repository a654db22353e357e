#!/usr/bin/env bash
# Puts small faults into the code that holds data, one at a time, and checks whether a test notices:
# first against the unit tests, and what these miss against the mount tests.
#
#   run.sh             a sample against both
#   run.sh --unit      against unit tests alone
#
# SAMPLE=n  how many faults (40)
# SEED=n    which of them; each month has its own seed, so that a fault that was missed is tried again
#           once a test for it is there
# FILES=…   globs of the files to put them in, instead of all of those below
#
# A fault may make the code free any loop device or unmount anything. So unit tests run without
# privileges and devices (unprivileged.sh), and mount tests in a guest, which has its own devices.
# Results: target/mutants/{unit,mounts}/mutants.out.
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

# A separate copy: an interrupted run leaves no fault in the checkout, and the next one
# finds everything built.
copy_tree() {
    rm -rf "$place/tmp" "$place/unit" "$place/mounts"
    mkdir -p "$tree" "$place/tmp" "$place/unit" "$place/mounts"
    # Also for the user without privileges.
    chmod 1777 "$place/tmp"
    find "$tree" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
    git ls-files -z | xargs -0 cp --parents --preserve=mode,timestamps --target-directory="$tree"
}

files() {
    local globs
    read -ra globs <<<"${FILES:-${directories[*]/%//**}}"
    printf -- '--file\n%s\n' "${globs[@]}"
}

# mutate NAME RUNNER OPTION...: results in $place/NAME.
mutate() {
    local name=$1 code=0
    export "CARGO_TARGET_${triple}_RUNNER=$2"
    shift 2
    cargo mutants "${options[@]}" --in-place --iterate --output "$place/$name" --timeout-multiplier 3 \
        --colors never --no-times "$@" || code=$?
    # 2: some were missed, 3: some ran into the time limit; the report evaluates them.
    case $code in 0 | 2 | 3) ;; *) give_up "cargo mutants ended with $code" ;; esac
}

# sample: of the faults in the input, those that the seed selects. Each is selected by its text
# without its line, so that the next commit's sample is the same but for what the commit changed.
sample() {
    awk -v seed="$SEED" '
        BEGIN { for (i = 1; i < 256; i++) code[sprintf("%c", i)] = i }
        {
            text = seed $0 "  "
            sub(/:[0-9]+:[0-9]+:/, ":", text)
            # Park and Miller: multiplications modulo a prime.
            hash = 1
            for (i = 1; i <= length(text); i++)
                hash = (hash * 69621 + code[substr(text, i, 1)]) % 2147483647
            printf "%d\t%s\n", hash, $0
        }' | sort -n | sed -n "1,${SAMPLE}p" | cut -f 2-
}

listed_all() {
    cargo mutants "${options[@]}" --list
}

# listed: all faults but the accepted ones. cargo-mutants 27 applies no pattern to the deletion of a
# field, so this one of accepted.toml is here too.
listed() {
    listed_all | grep -v 'delete field message from struct Failure expression'
}

# only NAME FILE: leaves of all faults those in the file to the run of that name; the others count as
# noticed before.
only() {
    mkdir -p "$place/$1/mutants.out"
    listed_all | grep -vxFf "$2" >"$place/$1/mutants.out/caught.txt"
}

# in_mounts: the faults that unit tests have missed, against the tests that need root.
in_mounts() {
    [ -s "$place/unit/mutants.out/missed.txt" ] || return 0
    if [ "$(uname -m)" != x86_64 ]; then
        announce "mount tests are left out: there is no User-mode Linux for this machine"
        return 0
    fi
    cargo build --package belay-guest --bin belay-guest-run
    only mounts "$place/unit/mutants.out/missed.txt"
    mutate mounts "$CARGO_TARGET_DIR/debug/belay-guest-run" -- --tests -- --ignored
}

# count NAME RESULT PATTERN
count() {
    cat "$place/$1/mutants.out/$2.txt" 2>/dev/null | grep -cE "$3" || true
}

# row NAME PATTERN: a line of the table.
row() {
    local by_unit by_mounts
    by_unit=$(($(count unit caught "$2") + $(count unit timeout "$2")))
    by_mounts=$(($(count mounts caught "$2") + $(count mounts timeout "$2")))
    noticed=$((by_unit + by_mounts))
    all=$((by_unit + $(count unit missed "$2")))
    printf '%-32s %6d %6d %7d %7d %7s\n' "$1" "$all" "$by_unit" "$by_mounts" $((all - noticed)) \
        "$([ "$all" = 0 ] && printf -- - || printf '%d %%' $((100 * noticed / all)))"
}

# missed: the faults that no test has noticed.
missed() {
    cat "$place"/mounts/mutants.out/{caught,timeout}.txt 2>/dev/null |
        grep -vxFf - "$place/unit/mutants.out/missed.txt" || true
}

report() {
    local directory
    printf '\n%-32s %6s %6s %7s %7s %7s\n' directory faults units mounts missed share
    for directory in "${directories[@]}"; do row "$directory" "^$directory/"; done
    row 'of them, where data is at stake' "$data"
    row all ''
    [ -z "$(missed)" ] || { printf '\nnoticed by no test:\n' && missed; }
    printf '\nagain: make mutants SEED=%s SAMPLE=%s\n' "$SEED" "$SAMPLE"
    ! missed | grep -qE "$data" ||
        give_up 'mutants: a fault where data is at stake was noticed by no test'
    [ $((100 * noticed)) -ge $((noticed_min * all)) ] || give_up "mutants: under $noticed_min % noticed"
}

copy_tree
trap 'rm -rf "$place/tmp"' EXIT
# Not the flags of the calling make, and for each fault the short form of the tests.
unset MAKEFLAGS MFLAGS BELAY_NIGHTLY
export TMPDIR=$place/tmp CARGO_TARGET_DIR=$place/build CARGO_PROFILE_DEV_DEBUG=0
triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
mapfile -t options < <(files)
options+=(--dir "$tree" --config "$here/accepted.toml")
listed | sample >"$place/sample"
printf 'mutants: %d faults of %d, seed %d\n' "$(wc -l <"$place/sample")" "$(listed | wc -l)" "$SEED"
only unit "$place/sample"
mutate unit "$here/unprivileged.sh" -- --lib
[ "${1:-}" = --unit ] || in_mounts
report
