#!/usr/bin/env bash
# Evaluates the reports of run.sh and prints a table. Exits 1 unless every spec passed or is
# explained.
#
#   report.sh REPORTS full|focus|some PART...
#
# A skip is explained if skips.txt lists its reason, and a spec if exceptions.txt leaves it out for
# lack of a capability. In a full run, each line of both files must be needed; in the focused run,
# each line of focus.txt.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../env.sh"
. "$here/driver.sh"
. "$here/capabilities.sh"
reports=$1 kind=$2
shift 2
specs=$reports/specs.tsv
problems=$reports/problems

complain() {
    printf '%s\n' "$*" >>"$problems"
}

entries() {
    grep -v '^#' "$files/$1" | sed 's/ | /\t/g'
}

# count AWK-CONDITION: prints the number of matching specs. The fields are status, seconds,
# description, suite, spec, reason.
count() {
    awk -F '\t' "$1 { n++ } END { print n + 0 }" "$specs"
}

# Marks specs that exceptions.txt left out as `excepted`, with the missing capability as the reason.
except() {
    local regex capability what
    while IFS=$'\t' read -r regex capability what; do
        regex=$regex reason="$what needs $capability" awk -F '\t' -v OFS='\t' '
            $1 == "left-out" && "(" $3 ") " $5 ~ ENVIRON["regex"] {
                $1 = "excepted"
                $6 = ENVIRON["reason"]
            }
            { print }' "$specs" >"$specs.new"
        mv "$specs.new" "$specs"
        [ "$kind" != full ] ||
            [ "$(regex=$regex count '"(" $3 ") " $5 ~ ENVIRON["regex"]')" != 0 ] ||
            complain "exceptions.txt names no spec: $regex"
    done < <(exceptions_here)
}

judge_skips() {
    entries skips.txt >"$reports/reasons"
    entries excluded.txt >"$reports/exclusions"
    awk -F '\t' '
        FILENAME ~ /reasons$/ { known[$1] = 1; next }
        $1 == "skipped" {
            for (reason in known) if ($6 ~ reason) next
            print "skipped for a reason that skips.txt does not know: " $6 ": (" $3 ") " $5
        }' "$reports/reasons" "$specs" | sort -u >>"$problems"
    [ "$kind" = full ] || return 0
    awk -F '\t' '
        FILENAME ~ /exclusions$/ { known[$1] = 1; next }
        $1 == "left-out" {
            for (regex in known) if ("(" $3 ") " $5 ~ regex) next
            print "not run, and excluded.txt has no reason: (" $3 ") " $5
        }' "$reports/exclusions" "$specs" >>"$problems"
    awk -F '\t' '
        FILENAME ~ /reasons$/ { known[$1] = 1; next }
        $1 == "skipped" { for (reason in known) if ($6 ~ reason) delete known[reason] }
        END { for (reason in known) print "skips.txt, but no such skip: " reason }
        ' "$reports/reasons" "$specs" >>"$problems"
}

# Reports lines of focus.txt that no longer match a spec, since they would never test anything.
judge_focus() {
    local line
    grep -v '^#' "$files/focus.txt" | while IFS= read -r line; do
        [ "$(line=$line count '$1 == "passed" && "(" $3 ") " $5 ~ ENVIRON["line"]')" != 0 ] ||
            complain "focus.txt: nothing that passed matches $line"
    done
}

judge() {
    except
    judge_skips
    [ "$kind" != focus ] || judge_focus
    [ "$(count '$1 == "passed"')" != 0 ] || complain "not one spec passed"
    awk -F '\t' '$1 == "failed" { print "failed: (" $3 ") " $5 }' "$specs" >>"$problems"
}

table() {
    printf '%-30s %7s %7s %9s %8s %8s\n' suite passed failed excepted skipped seconds
    awk -F '\t' '
        $1 != "left-out" {
            n[$4, $1]++
            seconds[$4] += $2
            suites[$4] = 1
        }
        END {
            for (suite in suites) {
                printf "%-30s %7d %7d %9d %8d %8d\n", suite, n[suite, "passed"],
                    n[suite, "failed"], n[suite, "excepted"], n[suite, "skipped"], seconds[suite]
            }
        }' "$specs" | sort -f
}

: >"$problems"
junits=("${@/#/$reports/}")
awk -f "$here/specs.awk" "${junits[@]/%//junit_01.xml}" | sort -t $'\t' -k 3 >"$specs"
printf '%s\n' "$kind" >"$reports/kind"
judge
printf '\n'
table
printf '%d passed, %d failed, %d excepted, %d skipped; reports: %s\n' \
    "$(count '$1 == "passed"')" "$(count '$1 == "failed"')" "$(count '$1 == "excepted"')" \
    "$(count '$1 == "skipped"')" "$reports"
for part; do
    [ ! -e "$reports/$part/second" ] ||
        sed 's/^/passed at the second attempt: /' "$reports/$part/second"
done
if [ -s "$problems" ]; then
    printf '\n'
    cat "$problems"
    exit 1
fi
