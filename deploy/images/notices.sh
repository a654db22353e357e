#!/usr/bin/env bash
# Prints the licences of the crates that are linked into the programs, each text once, under the
# names of its crates: distributing the programs requires distributing these as well.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../../tests/setup/env.sh"
cd "$here/../.."

crates() {
    cargo tree --locked --edges normal --prefix none --format '{p}|{l}' \
        -p belay-node-agent -p belay-controller -p belay-ctl |
        sed -n 's/^\([^ ]*\) v\([^ |]*\)[^|]*|\([^(]*\).*/\1-\2 \3/p' | sed 's/ *$//' |
        grep -v '^belay-' | sort -u
}

# The directories into which cargo has unpacked the sources.
sources=("${CARGO_HOME:-$HOME/.cargo}"/registry/src/*)
declare -A owners text_of

while read -r crate licence; do
    printf '%s (%s)\n' "$crate" "$licence"
    for directory in "${sources[@]/%//$crate}"; do
        for file in "$directory"/{LICEN[CS]E,COPYING,NOTICE,COPYRIGHT}*; do
            [ -f "$file" ] || continue
            sum=$(sha256sum <"$file")
            text_of[$sum]=$file
            owners[$sum]+=" $crate"
        done
    done
done < <(crates)

[ "${#text_of[@]}" != 0 ] ||
    give_up "cargo has no sources of the crates; please run: cargo fetch --locked"
for sum in $(printf '%s\n' "${!text_of[@]}" | cut -d ' ' -f 1 | sort); do
    sum="$sum  -"
    printf '\n== %s\n\n' "$(tr ' ' '\n' <<<"${owners[$sum]# }" | sort -u | paste -s -d ' ')"
    cat "${text_of[$sum]}"
done
