#!/usr/bin/env bash
# Runs a command and fails if it leaves anything behind: a mount, a bound loop device, a control
# group, a process or a temporary file.
#
#   tests/leftovers.sh [--own] make test
#
# Mounts, loop devices and groups are compared before and after, so no other process may create any
# meanwhile; with --own, they are not compared. Processes are recognised by a mark in their
# environment, and files by the command's own TMPDIR.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/setup/env.sh"

own=
if [ "${1:-}" = --own ]; then
    own=1
    shift
fi

mark="BELAY_RUN=$$.$RANDOM$RANDOM"
notes=$(mktemp -d)
scratch=$(mktemp -d)
trap 'rm -rf "$notes"; rmdir "$scratch" 2>/dev/null || true' EXIT

mounts() {
    cut -d ' ' -f 3- /proc/self/mountinfo | sort
}

loops() {
    losetup --list --noheadings --output NAME,BACK-FILE | sort
}

# Use grep, and not a loop over files that may disappear; processes of other users cannot be read.
processes() {
    grep --null-data --fixed-strings --line-regexp --files-with-matches --no-messages \
        "$mark" /proc/[0-9]*/environ | cut -d / -f 3 | while read -r pid; do
        printf '%s %s\n' "$pid" "$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline")"
    done || true
}

groups() {
    find /sys/fs/cgroup -maxdepth 2 -type d -name 'belay-test-*' 2>/dev/null | sort
}

files() {
    find "$scratch" -mindepth 1
}

# Prints what exists now and did not exist before.
left() {
    if [ -z "$own" ]; then
        comm -13 "$notes/mounts" <(mounts) | sed 's/^/mount: /'
        comm -13 "$notes/loops" <(loops) | sed 's/^/loop device: /'
        comm -13 "$notes/groups" <(groups) | sed 's/^/control group: /'
    fi
    processes | sed 's/^/process: /'
    files | sed 's/^/file: /'
}

# Waits for the kernel, which releases a loop device a moment after its last user; a device that is
# still bound later is a leak.
settled() {
    local tries
    for ((tries = 0; tries < 10; tries++)); do
        left >"$notes/left"
        [ -s "$notes/left" ] || return 0
        sleep 1
    done
    return 1
}

mounts >"$notes/mounts"
loops >"$notes/loops"
groups >"$notes/groups"
code=0
env "$mark" TMPDIR="$scratch" "$@" || code=$?
if ! settled; then
    printf '== left behind by %s:\n' "$*" >&2
    cat "$notes/left" >&2
    [ "$code" != 0 ] || code=1
fi
exit "$code"
