#!/usr/bin/env bash
# Prints the results of run.sh as a table, a list of skipped cases and, on failure, the outputs.
# Exits 1 unless every combination ran to its end without a failure or an unexpected skip.
#
#   report.sh REPORTS COMBINATION...
#
# BELAY_SANITY_SKIPS is the list of allowed skips; by default skips.txt.
set -euo pipefail

allowed=${BELAY_SANITY_SKIPS:-$(dirname "$(readlink -f "$0")")/skips.txt}
reports=$1
shift

# Prints a number of the suite's last line: "... -- 80 Passed | 0 Failed | 1 Pending | 12 Skipped",
# or a dash if the suite did not get that far.
count() {
    sed -n "s/.* \([0-9][0-9]*\) $2.*/\1/p" "$reports/$1/csi-sanity.log" 2>/dev/null |
        tail -n 1 | grep . || echo -
}

row() {
    printf '%-16s %8s %8s %8s %8s\n' "$@"
}

# Prints one line per skipped case, "reason | case", from the suite's report, which has one element
# per line.
skipped() {
    [ -e "$reports/$1/junit.xml" ] || return 0
    awk '
        /<testcase / { name = $0; sub(/.* name="\[It\] /, "", name); sub(/" classname=.*/, "", name) }
        /<skipped / {
            why = $0; sub(/.*message="(skipped - )?/, "", why); sub(/".*/, "", why)
            print why " | " name
        }' "$reports/$1/junit.xml" | sed "s/&#34;/\"/g; s/&#39;/'/g; s/&amp;/\&/g" | sort
}

# Compares in both directions: skips that are not allowed, and allowed skips that did not occur.
compare_skips() {
    comm -3 <(cut -d '|' -f 1 "$reports/$1/skipped" | sort -u) \
        <(grep -v '^#' "$allowed" | cut -d '|' -f 1 | sort -u) |
        sed 's/^\t\(.*\)/in skips.txt, but not skipped: \1/; t; s/^/skipped, but not in skips.txt: /'
}

complain() {
    printf '%s\n' "$2" >>"$reports/$1/problems"
}

judge() {
    local difference
    [ "$(count "$1" Failed)" = 0 ] || complain "$1" "the suite found failures"
    difference=$(compare_skips "$1")
    [ -z "$difference" ] || complain "$1" "$difference"
    [ ! -e "$reports/$1/problems" ]
}

show_failure() {
    local log
    for log in problems csi-sanity.log controller.log node.log; do
        printf '\n---- %s: %s\n' "$1" "$log"
        tail -n 200 "$reports/$1/$log" 2>/dev/null || true
    done
}

code=0
for combination in "$@"; do
    skipped "$combination" >"$reports/$combination/skipped"
    if ! judge "$combination"; then
        show_failure "$combination"
        code=1
    fi
done

printf '\n'
row combination passed failed skipped pending
for combination in "$@"; do
    row "$combination" "$(count "$combination" Passed)" "$(count "$combination" Failed)" \
        "$(count "$combination" Skipped)" "$(count "$combination" Pending)"
done
printf 'logs and skipped cases: %s\n' "$reports"
exit "$code"
