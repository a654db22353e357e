#!/usr/bin/env bash
# Runs make targets one after the other and prints the duration of each; stops at the first failure.
# A terminal shows one line that is overwritten, with the current step, the number of finished
# tests, the time, and the time of the last run; the output of a target follows only if it fails.
# VERBOSE=1 shows all output, as without a terminal.
#
#   tests/steps.sh fmt clippy
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/setup/env.sh"

# The seconds that each target took when it last passed.
times=${CARGO_TARGET_DIR:-target}/steps
mkdir -p "$times"
number=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

clock() {
    printf '%d:%02d' $(($1 / 60)) $(($1 % 60))
}

run() {
    "${MAKE:-make}" --no-print-directory "$1"
}

# show STEP: reads the output of the target, and shows the progress.
show() {
    local step=$1 begun=$SECONDS shown=-1 tests=0 what= line of=
    [ ! -s "$times/$step" ] || of=" of about $(clock "$(cat "$times/$step")")"
    # Without input, only the time is updated.
    while read -r -t 1 line || [ $? -gt 128 ]; do
        case $line in
            'test '*' ... '*) tests=$((tests + 1)) what=${line#test } what=${what%% *} ;;
            '--- PASS'* | '--- FAIL'*) tests=$((tests + 1)) what=${line#--- } ;;
            *Compiling* | *Checking* | *Building* | *Running*) what=$line ;;
        esac
        # Update at most once a second, since the output may have many lines.
        [ "$shown" != "$SECONDS" ] || continue
        shown=$SECONDS
        line="[$number/$steps] $step $(clock $((SECONDS - begun)))$of"
        [ "$tests" = 0 ] || line+=", $tests tests"
        line+="  $what"
        printf '\r\033[K%s' "${line:0:$((columns - 1))}"
    done
    printf '\r\033[K'
}

# run_shown STEP: runs the target without a terminal, but with cargo's progress, which counts what
# it compiles.
run_shown() {
    local code=0
    CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=60 run "$1" </dev/null 2>&1 |
        tee "$log" | stdbuf --output=0 tr '\r' '\n' | show "$1" || code=$?
    [ "$code" = 0 ] || cat "$log"
    return "$code"
}

steps=$#
columns=$(tput cols 2>/dev/null || echo 80)
for step in "$@"; do
    start=$SECONDS code=0 number=$((number + 1))
    if [ -t 1 ] && [ -z "${VERBOSE:-}" ]; then
        run_shown "$step" || code=$?
    else
        printf '== %s\n' "$step"
        run "$step" || code=$?
    fi
    printf '== %s: %s, %d s\n' "$step" "$([ "$code" = 0 ] && echo ok || echo FAILED)" \
        $((SECONDS - start))
    [ "$code" = 0 ] || exit "$code"
    printf '%d\n' $((SECONDS - start)) >"$times/$step"
done
