#!/usr/bin/env bash
# Runs the shell blocks of docs/standalone.md and docs/tools.md exactly as printed, checks their
# output, and checks that nothing is left afterwards.
#
#   tests/standalone/check.sh BIN      the directory of the programs; `make build` is not repeated
#
# Each page runs in separate mount, process and UTS namespaces, with an empty tmpfs at /var/lib,
# /run and /mnt, so the paths on the page are unused and the machine's are not affected. The
# hostname is node1, as in the pages' output.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"

docs=$(readlink -f "$here/../../docs")
seconds_max=120

# blocks KIND PAGE TITLES: prints the blocks (sh: commands, text: their output) of the sections of a
# page whose heading matches.
blocks() {
    awk -v fence="\`\`\`$1" -v titles="$3" '
        /^## / { wanted = $0 ~ titles }
        /^```/ { open = $0 == fence && wanted; next }
        open' "$docs/$2"
}

# Prints the commands of a page, without its first section, which builds or installs. tools.md
# refers to standalone.md for the start and the stop.
commands() {
    case $1 in
        standalone.md) blocks sh "$1" '^## [^1]' ;;
        tools.md)
            blocks sh "$1" '^## 2'
            blocks sh standalone.md '^## 2'
            blocks sh "$1" '^## [^12]'
            blocks sh standalone.md '^## 5'
            ;;
    esac
}

# Replaces IDs and durations, which differ from run to run, removes lines with `...`, and normalises
# white space.
stable() {
    sed -E 's/(vol|snap)-[0-9a-f]{32}/\1-ID/g; s/[0-9.]+ seconds/N seconds/; s/[[:space:]]+/ /g; s/^ //; /^(\.\.\.)?$/d'
}

# Prints the first line of the page's output that the run did not print, in the page's order.
not_printed() {
    awk 'is_page { lines[++count] = $0; next }
        at < count && $0 == lines[at + 1] { at++ }
        END { if (at < count) print lines[at + 1] }' \
        is_page=1 <(blocks text "$1" . | stable) is_page=0 <(stable </run/output)
}

# versions_differ PAGE: prints the programs that the page installs in another version than the tests
# do.
versions_differ() {
    local program package version
    blocks sh "$1" '^## 1' | sed -n 's/^go install //p' | tr @ ' ' | while read -r package version; do
        program=${package##*/}
        go version -m "$BELAY_CACHE/bin/$program" 2>/dev/null |
            awk -v package="$package" -v version="$version" '
                $1 == "path" && $2 == package { found++ }
                $1 == "mod" && $3 == version { found++ }
                END { exit found != 2 }' || printf '%s@%s ' "$package" "$version"
    done
}

# loops: prints the loop devices with files on the tmpfs of this run, which is recognised by its
# device number, since files of other processes may have the same path.
loops() {
    losetup --list --noheadings --output NAME,BACK-MAJ:MIN |
        awk -v of="$(mountpoint --fs-devno /var/lib)" '$2 == of { print $1 }'
}

# Unmounts everything. Processes end with the namespace, but a mount that is left would keep its
# loop device bound, and that device its tmpfs.
clean() {
    local code=$? loop
    trap - EXIT
    umount --recursive --quiet /mnt || true
    for loop in $(loops); do
        losetup --detach "$loop" || true
    done
    exit "$code"
}

fail() {
    cat /run/output /run/belay/*.log 2>/dev/null >&2 || true
    give_up "docs/$page $*"
}

inside() {
    local page=$1 before directory missing
    hostname node1
    for directory in /var/lib /run /mnt; do
        mount -t tmpfs -o size=2g tmpfs "$directory"
    done
    trap clean EXIT
    before=$(cut -d ' ' -f 5 /proc/self/mountinfo)
    commands "$page" >/run/page.sh
    timeout "$seconds_max" bash -euo pipefail /run/page.sh >/run/output 2>&1 ||
        fail "does not work as written"
    [ "$page" != standalone.md ] || grep -q '^/dev/loop.* /mnt/belay$' /run/output ||
        fail "shows no volume at /mnt/belay by df"
    missing=$(not_printed "$page")
    [ -z "$missing" ] || fail "shows a line that was not printed, or not there: $missing"
    [ "$(cut -d ' ' -f 5 /proc/self/mountinfo)" = "$before" ] || give_up "a mount is left"
    [ -z "$(loops)" ] || give_up "a loop device is left: $(loops)"
    [ -z "$(find /var/lib /mnt -mindepth 1)" ] || give_up "files are left: $(find /var/lib /mnt)"
    [ ! -e /run/belay ] || give_up "files are left: $(ls -AR /run/belay)"
    ! pgrep '^belay' >/dev/null || give_up "a program is left"
    printf 'docs/%s works as written\n' "$page"
}

if [ "${1:-}" = --inside ]; then
    inside "$2"
    exit
fi
[ "$(id -u)" = 0 ] || give_up "this mounts volumes; please run it as root"
[ $# = 1 ] || give_up "usage: check.sh BIN (the programs are built by: make build)"
for program in belay-node belay-controller belayctl; do
    [ -x "$1/$program" ] || give_up "there is no $1/$program; please run: make build"
done
differ=$(versions_differ tools.md)
[ -z "$differ" ] || give_up "tests/setup has no such programs as docs/tools.md installs: $differ" \
    "(if the versions are right, please run: make setup)"
for page in standalone.md tools.md; do
    PATH=$(readlink -f "$1"):$PATH unshare --mount --propagation private --uts --pid --fork \
        --kill-child --mount-proc "$0" --inside "$page" </dev/null
done
