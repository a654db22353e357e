#!/usr/bin/env bash
# Runs make targets one after the other and prints how long each took; stops at the first failure.
#
#   tests/steps.sh fmt clippy
set -euo pipefail

for step in "$@"; do
    start=$SECONDS
    printf '== %s\n' "$step"
    code=0
    "${MAKE:-make}" --no-print-directory "$step" || code=$?
    printf '== %s: %s, %d s\n' "$step" "$([ "$code" = 0 ] && echo ok || echo FAILED)" \
        $((SECONDS - start))
    [ "$code" = 0 ] || exit "$code"
done
