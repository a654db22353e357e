#!/usr/bin/env bash
# Turns what run.sh left into a table, a list of skipped cases and, on failure, the outputs.
# Exits 1 unless every combination ran to its end without a failure.
#
#   report.sh REPORTS COMBINATION...
set -euo pipefail

reports=$1
shift

# The suite's own last line: "... -- 80 Passed | 0 Failed | 0 Pending | 12 Skipped".
# A dash where the suite did not get that far.
count() {
    sed -n "s/.* \([0-9][0-9]*\) $2.*/\1/p" "$reports/$1/csi-sanity.log" 2>/dev/null |
        tail -n 1 | grep . || echo -
}

row() {
    printf '%-16s %8s %8s %8s\n' "$@"
}

passed() {
    [ "$(count "$1" Failed)" = 0 ] && [ "$(count "$1" Passed)" != 0 ] &&
        [ ! -e "$reports/$1/complaints" ]
}

# One line a case, for the documentation: combination, case, the suite's reason.
skipped() {
    awk -v combination="$1" '
        /<testcase / { name = $0; sub(/.* name="\[It\] /, "", name); sub(/" classname=.*/, "", name) }
        /<skipped / {
            why = $0; sub(/.*message="(skipped - )?/, "", why); sub(/".*/, "", why)
            print combination ": " name ": " why
        }' "$reports/$1/junit.xml" 2>/dev/null | sed 's/&#34;/"/g; s/&#39;/'"'"'/g; s/&amp;/\&/g' || true
}

show_failure() {
    local log
    for log in complaints csi-sanity.log controller.log node.log; do
        printf '\n---- %s: %s\n' "$1" "$log"
        tail -n 200 "$reports/$1/$log" 2>/dev/null || true
    done
}

for combination in "$@"; do
    skipped "$combination"
done >"$reports/skipped.txt"

code=0
for combination in "$@"; do
    passed "$combination" && continue
    show_failure "$combination"
    code=1
done

printf '\n'
row combination passed failed skipped
for combination in "$@"; do
    row "$combination" "$(count "$combination" Passed)" "$(count "$combination" Failed)" \
        "$(count "$combination" Skipped)"
done
printf 'skipped cases: %s\n' "$reports/skipped.txt"
exit "$code"
