#!/usr/bin/env bash
# Writes the tables of docs/conformance.md from the reports of a full run.
#
#   document.sh REPORTS            of `local`
#   document.sh REPORTS guests     of the driver of the guests (SUITE=disk), with the mock cloud
#   document.sh REPORTS openstack  the same with CLOUD=openstack
#   document.sh REPORTS nfs        of SUITE=nfs
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
reports=$1
of=${2:+ of $2}
kinds=(ext4 xfs btrfs)
[ "${2:-}" != nfs ] || kinds=(nfs)
specs=$reports/specs.tsv
page=$here/../../../../docs/conformance.md

[ "$(cat "$reports/kind" 2>/dev/null)" = full ] || {
    printf 'document.sh: %s has no full run; please run: make e2e FULL=1\n' "$reports" >&2
    exit 1
}

# Replaces the suite's reason for each spec that was not run with Belay's, and adds the verdict
# `repeated`, `unfit` or `unreached`.
explain() {
    awk -F '\t' -v OFS='\t' '
        FILENAME ~ /reasons$/ { known[$1] = $2; next }
        FILENAME ~ /exclusions$/ { excluded[++exclusions] = $1; why[exclusions] = $2; next }
        $1 == "skipped" {
            for (reason in known) if ($6 ~ reason) $6 = known[reason]
            $1 = "unfit"
        }
        $1 == "left-out" {
            $6 = "**not reached: the run was ended before**"
            for (i = exclusions; i > 0; i--) if ("(" $3 ") " $5 ~ excluded[i]) $6 = why[i]
            $1 = $6 ~ /^once/ ? "repeated" : $6 ~ /^\*/ ? "unreached" : "unfit"
        }
        { print }' "$reports/reasons" "$reports/exclusions" "$specs"
}

run_facts() {
    cat "$reports/facts"
    awk -F '\t' '
        { n[$1]++ }
        END {
            printf "* %d specs: %d passed, %d failed, %d excepted, ", NR, n["passed"], n["failed"],
                n["excepted"]
            printf "%d not applicable, %d repetitions left out", n["unfit"], n["repeated"]
            printf n["unreached"] ? ", **%d not reached**\n" : "\n", n["unreached"]
        }' "$reports/explained.tsv"
}

suites() {
    printf '| suite | passed: %s |' "${kinds[0]}"
    printf ' %s |' "${kinds[@]:1}" failed excepted 'not applicable'
    printf '\n|---|'
    printf -- '--:|%.0s' "${kinds[@]}" 1 2 3
    printf '\n'
    awk -F '\t' -v kinds="${kinds[*]} failed excepted unfit" '
        function row(name, of,    at, text) {
            text = "| " name " |"
            for (at = 1; at <= columns; at++) text = text sprintf(" %d |", n[of, column[at]])
            return text
        }
        BEGIN { columns = split(kinds, column, " ") }
        function add(of, what) { n[of, what]++; n["", what]++ }
        {
            filesystem = $3
            sub(/,.*/, "", filesystem)
            suites[$4] = 1
            add($4, $1 == "passed" ? filesystem : $1)
        }
        END {
            for (suite in suites) print row(suite, suite) | "sort -f"
            close("sort -f")
            print row("**all**", "")
        }' "$reports/explained.tsv"
}

reasons() {
    printf '| specs | why they were not run |\n|--:|---|\n'
    awk -F '\t' '
        $1 ~ /^un|^repeated$/ { n[$6]++ }
        END { for (reason in n) printf "| %d | %s |\n", n[reason], reason }
        ' "$reports/explained.tsv" | sort -t '|' -k 2,2nr
}

exceptions() {
    awk -F '\t' '$1 == "excepted" { printf "* (%s) %s: %s\n", $3, $5, $6 }' "$specs"
    grep -q '^excepted' "$specs" || printf 'None.\n'
}

# insert NAME: replaces the text between two comments with this name by the input.
insert() {
    cat >"$reports/part.md"
    awk -v name="$1" -v part="$reports/part.md" '
        $0 == "<!-- end of " name " -->" { inside = 0 }
        !inside { print }
        $0 == "<!-- " name " -->" {
            inside = found = 1
            while ((getline line < part) > 0) print line
        }
        END { exit !found }' "$page" >"$reports/page.md"
    cp "$reports/page.md" "$page"
}

explain >"$reports/explained.tsv"
run_facts | insert "run$of"
suites | insert "suites$of"
reasons | insert "reasons$of"
# In guests, root has all capabilities.
[ -n "$of" ] || exceptions | insert exceptions
