#!/usr/bin/env bash
# Prints the size of the code: production Rust by crate, files and functions by length, and the top
# directories of a crate that import each other in a cycle. For the review of a large change, before
# and after it; checks nothing (tidy and clippy do that).
#
#   shape.sh [REVISION]     of the files as they are, or as they were then
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

if [ $# -gt 0 ]; then
    tree=$(mktemp --directory)
    trap 'rm -rf "$tree"' EXIT
    git archive "$1" | tar --extract --directory "$tree"
    cd "$tree"
fi

# Prints the possible paths of modules that are declared only for tests.
test_modules() {
    find -- */src -name '*.rs' -exec awk '
        /^ *#\[cfg\(test\)\]/ { held = 1; next }
        held && /^ *#/ { next }
        held && /mod [a-z_0-9]+;$/ { print FILENAME ": " $NF }
        { held = 0 }' {} + |
        sed -nE 's|^(.*)/([^/]*)\.rs: ([a-z_0-9]+);$|\1 \2 \3|p' |
        while read -r directory file name; do
            case $file in
                mod | lib | main) printf '%s/%s\n' "$directory" "$name" ;;
                *) printf '%s/%s/%s\n' "$directory" "$file" "$name" ;;
            esac
        done
}

# Prints the Rust files of the product.
files() {
    local tests
    tests=$(test_modules)
    find -- */src proto/build proto/build.rs -name '*.rs' | sort | awk -v tests="$tests" '
        BEGIN { n = split(tests, prefix, "\n") }
        {
            for (i = 1; i <= n; i++)
                if (index($0, prefix[i] ".rs") == 1 || index($0, prefix[i] "/") == 1) next
            print
        }'
}

# Prints each file with its length up to its unit tests: lines of code, and all lines.
lengths() {
    files | while read -r file; do
        awk -v file="$file" '
            /^#\[cfg\(test\)\]$/ { held = 1; next }
            held && /^mod [a-z_]+ \{$/ { exit }
            held { held = 0; all++ }
            { all++ }
            !/^[ ]*(\/\/|$)/ { code++ }
            END { print file, code + 0, all + 0 }' "$file"
    done
}

# Prints each function of more than one line. As rustfmt lays it out, it ends at its own
# indentation.
functions() {
    files | while read -r file; do
        awk -v file="$file" '
            /^#\[cfg\(test\)\]$/ { held = 1; next }
            held && /^mod [a-z_]+ \{$/ { exit }
            { held = 0 }
            !inside && match($0, /^ *(pub(\([a-z]+\))? )?(const )?(async )?(unsafe )?fn [a-z_0-9]+/) {
                name = substr($0, RSTART, RLENGTH); sub(/.*fn /, "", name)
                match($0, /^ */); indent = substr($0, 1, RLENGTH); start = NR; inside = 1
                if ($0 ~ /[;}]$/) inside = 0
                next
            }
            inside && ($0 == indent "}" || (NR > start && $0 ~ "^" indent ".*;$" && !body)) {
                if ($0 == indent "}") print file, name, NR - start + 1
                inside = 0; body = 0; next
            }
            inside && /\{$/ { body = 1 }' "$file"
    done
}

# Prints a file without its unit tests.
product() {
    awk '
        /^#\[cfg\(test\)\]$/ { held = 1; next }
        held && /^mod [a-z_]+ \{$/ { exit }
        { held = 0; print }' "$1"
}

# Prints pairs of top modules of a crate that name each other.
circles() {
    files | grep '/src/' | while read -r file; do
        crate=${file%%/src/*}
        module=${file#*/src/}
        module=${module%%/*}
        module=${module%.rs}
        case $module in lib | main) continue ;; esac
        product "$file" | grep -oE 'crate::[a-z_0-9]+' | sort -u |
            sed -E "s|crate::(.*)|$crate $module \1|" || true
    done | awk '
        $2 != $3 && !seen[$1, $2, $3]++ { if (seen[$1, $3, $2]) print $1 ": " $3 " <-> " $2 }'
}

# Prints the median and the maximum of a column of numbers.
figures() {
    sort -n | awk '{ v[NR] = $1 } END { printf "%6d %6d\n", v[int((NR + 1) / 2)], v[NR] }'
}

all=$(lengths)
printf '%-14s %6s %8s %8s %7s %8s\n' crate files lines code median longest
for crate in $(awk '{ sub("/.*", "", $1); print $1 }' <<<"$all" | sort -u) .; do
    of=$([ "$crate" = . ] && cat <<<"$all" || grep "^$crate/" <<<"$all")
    read -r median longest < <(awk '{ print $3 }' <<<"$of" | figures)
    [ "$crate" != . ] || crate=all
    awk -v crate="$crate" -v median="$median" -v longest="$longest" '
        { lines += $3; code += $2 }
        END { printf "%-14s %6d %8d %8d %7d %8d\n", crate, NR, lines, code, median, longest }' <<<"$of"
done

all=$(functions)
read -r median longest < <(awk '{ print $3 }' <<<"$all" | figures)
printf '\nfunctions of more than a line: %d, median %d lines, longest %d\n' \
    "$(wc -l <<<"$all")" "$median" "$longest"
sort -k 3,3nr <<<"$all" | awk 'NR <= 5 { printf "%6d  %s in %s\n", $3, $2, $1 }'

printf '\ncircles between the modules of a crate:\n'
circles | sed 's/^/  /'
