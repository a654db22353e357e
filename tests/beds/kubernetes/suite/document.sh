#!/usr/bin/env bash
# Writes the tables of docs/conformance.md from the reports of a full run.
#
#   document.sh REPORTS            of `local`
#   document.sh REPORTS openstack  of CLOUD=openstack
#   document.sh REPORTS nfs        of CLOUD=nfs
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
reports=$1
driver=${2:-local}
kinds=(ext4 xfs btrfs)
[ "$driver" != nfs ] || kinds=(nfs)
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

# Omits suites of which no spec applies, and the columns of failed and excepted specs if there are
# none.
suites() {
    awk -F '\t' -v kinds="${kinds[*]}" '
        function row(name, of,    at, text) {
            text = "| " name " |"
            for (at = 1; at <= columns; at++) text = text sprintf(" %d |", n[of, column[at]])
            return text
        }
        function add(of, what) { n[of, what]++; n["", what]++ }
        {
            filesystem = $3
            sub(/,.*/, "", filesystem)
            if ($1 !~ /^un|^repeated$/) suites[$4] = 1
            add($4, $1 == "passed" ? filesystem : $1)
        }
        END {
            columns = split(kinds, column, " ")
            gsub(/ /, " | ", kinds)
            head = "| suite | passed: " kinds " |"
            split("failed excepted", more, " ")
            for (at = 1; at <= 2; at++) if (n["", more[at]]) {
                column[++columns] = more[at]
                head = head " " more[at] " |"
            }
            print head
            line = "|---|"
            for (at = 1; at <= columns; at++) line = line "--:|"
            print line
            for (suite in suites) print row(suite, suite) | "sort -f"
            close("sort -f")
            print row("**all**", "")
        }' "$reports/explained.tsv"
}

# Prints the table of the page with the column of this driver replaced.
reasons() {
    awk -F '\t' -v driver="$driver" '
        FILENAME ~ /conformance.md$/ {
            inside = inside ? $0 != "<!-- end of reasons -->" : $0 == "<!-- reasons -->"
            if (!inside || $0 !~ /^\| [a-z0-9]/) next
            split($0, cell, " *\\| *")
            if (cell[2] == "local") { for (at = 2; at < 5; at++) drivers[at] = cell[at]; next }
            for (at = 2; at < 5; at++) if (drivers[at] != driver) n[cell[5], drivers[at]] = cell[at]
            reasons[cell[5]]
            next
        }
        $1 ~ /^un|^repeated$/ { n[$6, driver]++; reasons[$6] }
        END {
            print "| local | openstack | nfs | why they were not run |\n|--:|--:|--:|---|"
            for (reason in reasons) {
                a = n[reason, "local"]; b = n[reason, "openstack"]; c = n[reason, "nfs"]
                row = sprintf("| %d | %d | %d | %s |", a, b, c, reason)
                if (a + b + c) print row | "sort -t \"|\" -k 2,2nr -k 3,3nr -k 4,4nr -k 5"
            }
        }' "$page" "$reports/explained.tsv"
}

# Specs that differ only in the description of the driver are one entry.
exceptions() {
    awk -F '\t' '
        $1 == "excepted" { of = $5 ": " $6; kinds[of] = kinds[of] (of in kinds ? "; " : "") $3 }
        END { for (of in kinds) { print "* (" kinds[of] ") " of; any = 1 } if (!any) print "None." }
        ' "$specs" | sort
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
of=
[ "$driver" = local ] || of=" of $driver"
run_facts | insert "run$of"
suites | insert "suites$of"
reasons | insert reasons
# In guests, root has all capabilities.
[ "$driver" != local ] || exceptions | insert exceptions
