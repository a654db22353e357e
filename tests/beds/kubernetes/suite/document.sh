#!/usr/bin/env bash
# Writes the tables of docs/conformance.md from what a full run left.
#
#   document.sh REPORTS
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
reports=$1
specs=$reports/specs.tsv
page=$here/../../../../docs/conformance.md
[ "$(cat "$reports/kind" 2>/dev/null)" = full ] || {
    printf 'document.sh: %s holds no full run; please run: make e2e FULL=1\n' "$reports" >&2
    exit 1
}

run_facts() {
    cat "$reports/facts"
    awk -F '\t' '{ n[$1]++ } END {
        printf "* %d specs: %d passed, %d failed, %d excepted, %d not applicable\n", NR, n["passed"],
            n["failed"], n["excepted"], n["skipped"] + n["left-out"] + n["once"]
    }' "$specs"
}

suites() {
    printf '| suite | ext4 | xfs | btrfs | failed | excepted | not applicable |\n'
    printf '|---|--:|--:|--:|--:|--:|--:|\n'
    awk -F '\t' '
        function row(name, of) {
            return sprintf("| %s | %d | %d | %d | %d | %d | %d |", name, n[of, "ext4"], n[of, "xfs"],
                n[of, "btrfs"], n[of, "failed"], n[of, "excepted"], n[of, "not"])
        }
        function add(of, what) { n[of, what]++; n["", what]++ }
        {
            filesystem = $3
            sub(/,.*/, "", filesystem)
            suites[$4] = 1
            if ($1 == "passed") add($4, filesystem)
            else if ($1 == "failed" || $1 == "excepted") add($4, $1)
            else add($4, "not")
        }
        END {
            for (suite in suites) print row(suite, suite) | "sort -f"
            close("sort -f")
            print row("**all**", "")
        }' "$specs"
}

# Why a spec does not apply: ours for the reason of the suite, or for not having asked for it.
reasons() {
    printf '| specs | why they do not apply |\n|--:|---|\n'
    awk -F '\t' '
        FILENAME ~ /reasons$/ { known[$1] = $2; next }
        FILENAME ~ /exclusions$/ { excluded[++exclusions] = $1; why[exclusions] = $2; next }
        $1 == "skipped" {
            for (reason in known) if ($6 ~ reason) { n[known[reason]]++; next }
        }
        $1 == "left-out" {
            for (i = 1; i <= exclusions; i++) if ("(" $3 ") " $5 ~ excluded[i]) { n[why[i]]++; next }
            n["not asked for: " $5]++
        }
        END { for (reason in n) printf "| %d | %s |\n", n[reason], reason }
        ' "$reports/reasons" "$reports/exclusions" "$specs" | sort -t '|' -k 2,2nr
}

exceptions() {
    awk -F '\t' '$1 == "excepted" { printf "* (%s) %s: \"%s\"\n", $3, $5, $6 }' "$specs"
    grep -q '^excepted' "$specs" || printf 'None.\n'
}

# insert NAME: what stands between two comments of that name is replaced by the input.
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

run_facts | insert run
suites | insert suites
reasons | insert reasons
exceptions | insert exceptions
