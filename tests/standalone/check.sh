#!/usr/bin/env bash
# Runs the shell blocks of docs/standalone.md as they are, and checks that a published volume is mounted
# and that nothing is left afterwards.
#
#   tests/standalone/check.sh BIN      the directory of the programs; `make build` is not repeated
#
# Runs in separate mount and process namespaces, with an empty tmpfs at /var/lib, /run and /mnt, so
# the paths of the page are free and the machine's are not touched.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"

page=$here/../../docs/standalone.md
seconds_max=120

# blocks: all shell of the page, except the section that builds.
blocks() {
    awk '/^## / { builds = $0 ~ /Build$/ }
        /^```/ { open = $0 == "```sh" && !builds; next }
        open' "$page"
}

# loops: loop devices with files on the tmpfs of this run, known by its device number, since another
# process may have files of the same path.
loops() {
    losetup --list --noheadings --output NAME,BACK-MAJ:MIN |
        awk -v of="$(mountpoint --fs-devno /var/lib)" '$2 == of { print $1 }'
}

# Processes end with the namespace; a mount that is left would keep its loop device bound, and that
# device its tmpfs.
clean() {
    local code=$? loop
    trap - EXIT
    umount --recursive --quiet /mnt || true
    for loop in $(loops); do
        losetup --detach "$loop" || true
    done
    exit "$code"
}

inside() {
    local before directory
    for directory in /var/lib /run /mnt; do
        mount -t tmpfs -o size=2g tmpfs "$directory"
    done
    trap clean EXIT
    before=$(cut -d ' ' -f 5 /proc/self/mountinfo)
    blocks >/run/page.sh
    timeout "$seconds_max" bash -euo pipefail /run/page.sh >/run/output 2>&1 || {
        cat /run/output /run/belay/*.log >&2 || true
        give_up "docs/standalone.md does not work as written"
    }
    grep -q '^/dev/loop.* /mnt/belay$' /run/output || {
        cat /run/output >&2
        give_up "df showed no volume at /mnt/belay"
    }
    [ "$(cut -d ' ' -f 5 /proc/self/mountinfo)" = "$before" ] || give_up "a mount is left"
    [ -z "$(loops)" ] || give_up "a loop device is left: $(loops)"
    [ -z "$(find /var/lib /mnt -mindepth 1)" ] || give_up "files are left: $(find /var/lib /mnt)"
    [ ! -e /run/belay ] || give_up "files are left: $(ls -AR /run/belay)"
    ! pgrep '^belay' >/dev/null || give_up "a program is left"
    printf 'docs/standalone.md works as written\n'
}

if [ "${1:-}" = --inside ]; then
    inside
    exit
fi
[ "$(id -u)" = 0 ] || give_up "this mounts volumes; please run it as root"
[ $# = 1 ] || give_up "usage: check.sh BIN (the programs are built by: make build)"
for program in belay-node belay-controller belayctl; do
    [ -x "$1/$program" ] || give_up "there is no $1/$program; please run: make build"
done
PATH=$(readlink -f "$1"):$PATH exec unshare --mount --propagation private --pid --fork --kill-child \
    --mount-proc "$0" --inside </dev/null
