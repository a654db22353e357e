#!/usr/bin/env bash
# Puts small faults into the code that stores data, one at a time, and checks whether a test
# notices.
#
#   run.sh             judges all faults where data is at stake, and a sample of the others
#   run.sh --unit      judges with unit tests only
#   run.sh --data      judges only faults where data is at stake
#   run.sh --others    judges only the sample
#   run.sh --missed    judges only the faults that no test noticed according to the last report; can
#                      be combined with --data or --others
#
# SAMPLE=n     number of the other faults (40)
# CONSTANTS=n  number of the other faults in constants, which take a build each (SAMPLE)
# MINUTES=n    time limit of all tests (60). Faults for which there was no time are reported as not
#              tried, and are tried first if the same sources are judged again
# SEED=n       seed of the sample. Each month has its own, so that a missed fault is tried again
#              once there is a test for it
# FILES=...    pattern (grep -E) of the files with faults, instead of all
#
# cargo-mutants lists the faults. belay-mutants adds faults in which a call (`sync()?;`) is deleted,
# compiles all faults into one build, each behind a switch, and runs for each fault only the tests
# that reach it: the fast unit tests, the tests of the controller's programs, the tests that need
# root, and the slow unit tests. A fault may release any loop device or unmount anything. So tests
# run without privileges and devices (unprivileged.sh), and the tests that need root run in a guest,
# which has its own devices. A switch cannot select a fault in a constant, so each of these has its
# own build.
#
# `cargo mutants` alone compiles once per fault, which took 80 s, so that the 3,157 faults where
# data is at stake would take 70 hours, instead of 82 minutes for a whole run. It also runs tests
# with the privileges of its caller, and deletes no calls.
#
# Results are in target/mutants/out. An interrupted run resumes, unless a source has changed.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
. tests/setup/env.sh

# Here an unnoticed fault may cost data.
data='^(node-agent/src/(operation|filesystem|device)|controller/src/backend/('
data+='local/(files|snapshot|record|recover)|'
data+='nfs/worker/(archive|claims|create|delete|deletion|fill|remove|trash|tree)\.rs))'
# Minimum percentage of the other faults that tests must notice, slightly less than in their last
# sample. It may only be raised.
noticed_min=75

: "${SAMPLE:=40}"
: "${CONSTANTS:=$SAMPLE}"
: "${MINUTES:=60}"
: "${SEED:=$(date +%Y%m)}"
place=${CARGO_TARGET_DIR:-$PWD/target}/mutants
out=$place/out
tool=$place/belay-mutants
packages=(controller node-agent)
programs=(process cloud openstack_twin digitalocean_twin civo_twin create_key nfs)
results=("$out"/{unit,slow,alone,mounts,mounts_of_programs} "${programs[@]/#/$out/}")

# Copies the sources, so that an interrupted run leaves no fault in the checkout. The copy `plain`
# is for single faults.
copy_trees() {
    local tree
    for tree in "$place/woven" "$place/plain"; do
        mkdir -p "$tree"
        find "$tree" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
        git ls-files -z --cached --others --exclude-standard |
            xargs -0 cp --parents --preserve=mode,timestamps --target-directory="$tree"
    done
}

# Prints the patterns of accepted.toml.
accepted() {
    sed -nE "s/^ +'(.*)',$/\1/p" "$here/accepted.toml"
}

# sample COUNT: prints the faults of the input that the seed selects.
sample() {
    "$tool" sample "$SEED" "$1"
}

# Adapts a pattern of names to lines that start with a number.
of() {
    printf '%s' "${1/#^/$'^[0-9]+\t'}"
}

# choose LIST COUNT: reduces the list to the faults to judge, with COUNT of the others. Each fault
# in a constant takes a build, so only a sample of these is judged.
choose() {
    local list=$out/$1
    accepted | grep -vEf - "$list" | grep -E -- "$(printf '^[0-9]+\t')${FILES:-}" |
        if [ -n "$missed" ]; then those_missed; else cat; fi >"$list.all" || true
    grep -E "$(of "$data")" "$list.all" >"$list.data" || true
    grep -vE "$(of "$data")" "$list.all" >"$list.others" || true
    case $only in
        data) : >"$list.others" ;;
        others) : >"$list.data" ;;
    esac
    sample "$2" <"$list.others" >"$list"
    if [ "$1" = left ]; then sample "$2" <"$list.data"; else cat "$list.data"; fi >>"$list"
}

# Prints the faults of the input that no test has noticed according to the last report.
those_missed() {
    awk -F '\t' '
        function place(name) { sub(/:[0-9]+:[0-9]+:/, ":", name); return name }
        NR == FNR { missed[place($0)]; next }
        place($2) in missed' "$place/missed" -
}

# Builds, and keeps everything from the last run except the results.
build() {
    local key
    key=$(git ls-files -s controller node-agent server contract proto tests/mutants Cargo.lock |
        cat - <(git diff HEAD) | sha256sum)
    key="$key $SAMPLE $CONSTANTS $SEED $only $missed ${FILES:-}"
    mkdir -p "$out"
    chmod 1777 "$out"
    [ "$(cat "$out/key" 2>/dev/null)" != "$key" ] || return 0
    rm -rf "${out:?}"/*
    copy_trees
    cargo mutants --list --json --file 'node-agent/src/**' --file 'controller/src/**' --no-config \
        ${FILES:+--re "^(?:$FILES)"} --dir "$place/plain" >"$place/list"
    "$tool" build "$place/list" "$place/woven" "$out" "${cargo[@]}" \
        --lib "${programs[@]/#/--test=}"
    choose woven "$SAMPLE"
    choose left "$CONSTANTS"
    touch "${results[@]}"
    # The user without privileges writes these files.
    chmod 666 "${results[@]}"
    printf '%s\n' "$key" >"$out/key"
}

# judge PACKAGE TARGET STAGE
judge() {
    announce "mutants, $SECONDS s: $3 tests of $1"
    "$here/unprivileged.sh" "$tool" judge "$out" "$@" >"$place/log" ||
        give_up "mutants: the tests could not be run"
}

# alone PACKAGE: judges the faults that need their own build.
alone() {
    BELAY_MUTANTS_RUNNER=$here/unprivileged.sh CARGO_PROFILE_DEV_OPT_LEVEL=0 \
        "$tool" alone "$place/list" "$place/plain" "$out" "$1" --package "belay-$1" --lib >"$place/log" ||
        give_up "mutants: a fault could not be built"
}

# unnoticed PACKAGE STAGE: prints the numbers of faults that no test has noticed and that this stage
# has not tried.
unnoticed() {
    awk -F '\t' -v package="^$1/" -v stage="/$2\$" '
        FILENAME ~ /woven$/ { if ($2 ~ package) waiting[$1] = 1; next }
        $2 ~ /noticed|endless/ || FILENAME ~ stage && $2 != "late" { delete waiting[$1] }
        END { for (id in waiting) print id }' "$out/woven" "${results[@]}"
}

# in_guest PACKAGE TARGET STAGE: runs these tests as root, for many faults in one guest. If a fault
# crashes the guest, each of these faults gets its own guest.
in_guest() {
    local ids id
    announce "mutants, $SECONDS s: tests of $1 in guests"
    while mapfile -t ids < <(unnoticed "$1" "$3" | sort -n | head -n 20) && [ "${#ids[@]}" -gt 0 ]; do
        if [ "$(date +%s)" -gt "$BELAY_MUTANTS_UNTIL" ]; then
            for id in $(unnoticed "$1" "$3"); do named late; done
            return
        fi
        record_in_guest "$@"
        judge_in_guest "$@" "${ids[@]}" && continue
        for id in "${ids[@]}"; do
            judge_in_guest "$@" "$id" || named endless
        done
    done >>"$out/$3"
}

# record_in_guest PACKAGE TARGET STAGE: records which tests reach which faults, unless that is
# known.
record_in_guest() {
    local kept=$out/reached-$1-$2-ignored
    [ -s "$kept" ] || { "$guest" "$tool" record "$out" "$@" >"$place/log" &&
        grep -P '\t[0-9]+\t' "$place/log" >"$kept"; } ||
        give_up "mutants: the tests that need root could not be run"
}

# named VERDICT: prints the verdict of the fault in `id`, which the tool could not write.
named() {
    printf '%s\t%s\tthe guest\t0\t%s\n' "$id" "$1" "$(grep -P "^$id\t" "$out/woven" | cut -f 2)"
}

# judge_in_guest PACKAGE TARGET STAGE NUMBER...
judge_in_guest() {
    "$guest" "$tool" judge "$out" "$@" >"$place/log" || return 1
    grep -P '^[0-9]+\t[a-z]+\t' "$place/log"
}

# share PART ALL
share() {
    [ "$2" = 0 ] && printf -- - || printf '%d.%d %%' $((100 * $1 / $2)) $((1000 * $1 / $2 % 10))
}

# row TITLE PATTERN: prints a line of the table. Faults for which there was no time count as not
# noticed.
row() {
    local by late
    all=$(grep -cP "^(noticed|missed|late)\t.*\t${2#^}" "$place/verdicts" || true)
    noticed=$(grep -cP "^noticed\t.*\t${2#^}" "$place/verdicts" || true)
    late=$(grep -cP "^late\t.*\t${2#^}" "$place/verdicts" || true)
    tried=$((all - late))
    printf '%-32s %6d' "$1" "$all"
    for by in '(unit|slow|alone)' "($(IFS='|' && echo "${programs[*]}"))" 'mounts.*'; do
        printf ' %8d' "$(grep -cP "^noticed\t$by\t${2#^}" "$place/verdicts" || true)"
    done
    printf ' %7d %9d %7s\n' $((tried - noticed)) "$late" "$(share "$noticed" "$all")"
}

# without_lines: removes the line numbers from names of faults, so that the names stay the same if
# lines are added above.
without_lines() {
    sed -E 's/:[0-9]+:[0-9]+:/:/'
}

report() {
    local directory of_data by_data new stale
    "$tool" verdicts "$out" >"$place/verdicts"
    printf '\n%-32s %6s %8s %8s %8s %7s %9s %7s\n' \
        directory faults units programs mounts missed 'no time' share
    for directory in node-agent/src/{operation,filesystem,device} \
        controller/src/backend/{local,nfs/worker}; do
        row "$directory" "$directory/"
    done
    row 'where data is at stake' "$data"
    of_data=$all by_data=$noticed
    row 'all others (a sample)' "(?!${data#^})"
    printf '\nnot tried: %d in constants, of %d; %d that do not compile\n' \
        "$(grep -vcxFf "$out/left" "$out/left.all" || true)" "$(wc -l <"$out/left.all")" \
        "$(wc -l <"$out/rejected")"
    printf 'time: %d minutes\n' $((SECONDS / 60))
    printf 'noticed: where data is at stake %s of 100 %%, others %s of at least %d %%\n' \
        "$(share "$by_data" "$of_data")" "$(share "$noticed" "$all")" "$noticed_min"
    grep ^missed "$place/verdicts" | cut -f 3 >"$place/missed" || true
    [ ! -s "$place/missed" ] || { printf '\nnoticed by no test:\n' && cat "$place/missed"; }
    new=$(grep -P "$data" "$place/missed" | without_lines |
        grep -vxFf <(grep -v '^#' "$here/known.txt") || true)
    [ -z "$new" ] || {
        printf '\nwhere data is at stake, and not in known.txt:\n%s\n' "$new"
        give_up 'mutants: a fault where data is at stake was noticed by no test'
    }
    stale=$(grep -v '^#' "$here/known.txt" | grep -vxFf <(without_lines <"$place/missed") || true)
    [ -z "$stale" ] || [ -n "${FILES:-}$only" ] ||
        printf '\nnoticed now, or not tried; remove from known.txt what is noticed:\n%s\n' "$stale"
    [ -n "$missed" ] || [ $((100 * noticed)) -ge $((noticed_min * tried)) ] ||
        give_up "mutants: under $noticed_min % noticed"
}

unit='' only='' missed=''
for flag; do
    case $flag in
        --unit) unit=1 ;;
        --data | --others) only=${flag#--} ;;
        --missed) missed=1 ;;
        *) give_up "run.sh: unknown flag $flag" ;;
    esac
done

# Drop the flags of the calling make, and use the short form of the tests for each fault.
unset MAKEFLAGS MFLAGS BELAY_NIGHTLY
cargo build --package belay-mutants --package belay-guest --bin belay-mutants --bin belay-guest-run
target=${CARGO_TARGET_DIR:-$PWD/target}
guest=$target/debug/belay-guest-run
mkdir -p "$place"
cp "$target/debug/belay-mutants" "$tool"
# The dependencies are the same as in other builds, with the same features; only the crates with
# faults are compiled again.
export CARGO_TARGET_DIR=$target CARGO_PROFILE_DEV_OPT_LEVEL=1
export RUSTC_WORKSPACE_WRAPPER=$here/without_lints.sh
cargo=(--workspace)

# Only the files of missed faults are compiled with faults, and all of these are tried.
if [ -n "$missed" ]; then
    [ -s "$place/missed" ] || give_up 'mutants: the last report lists none that were missed'
    FILES="($(cut -d : -f 1 "$place/missed" | sort -u | paste -s -d '|'))"
    SAMPLE=$(wc -l <"$place/missed")
    CONSTANTS=$SAMPLE
fi
build
export BELAY_MUTANTS_UNTIL=$(($(date +%s) + 60 * MINUTES))
for package in "${packages[@]}"; do
    judge "$package" lib unit
    alone "$package"
done
if [ -z "$unit" ]; then
    for program in "${programs[@]}"; do judge controller "$program" "$program"; done
    if [ "$(uname -m)" = x86_64 ]; then
        export BELAY_GUEST_SECONDS=900
        in_guest controller lib mounts
        in_guest controller process mounts_of_programs
        in_guest node-agent lib mounts
    else
        announce "mount tests are left out: there is no User-mode Linux for this machine"
    fi
fi
# The matrices run last: they take minutes, and few mutants are noticed only by them.
for package in "${packages[@]}"; do judge "$package" lib slow; done
report
