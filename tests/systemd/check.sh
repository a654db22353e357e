#!/usr/bin/env bash
# Tests the Debian packages under a real systemd, in separate namespaces on a throw-away overlay of
# this machine: installation, enabling, and volumes in use during restart, kill, upgrade and
# removal. Before that, static checks: the units' syntax, their settings, their exposure.
#
#   tests/systemd/check.sh PACKAGES     the directory with the .deb files (needs root)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"

[ "$(id -u)" = 0 ] || give_up "services are tried by a separate systemd; please run it as root"
[ "$#" = 1 ] || give_up "usage: check.sh PACKAGES (they are built by: make packages)"
"$here/../setup/packages.sh" filesystems systemd
packages=$(readlink -f "$1")
work=$(mktemp -d)
cgroup=belay-systemd-$$
first=

wrong() {
    printf 'systemd: %s\n' "$*" >&2
    exit 1
}

# Removes the control group; a killed process exits a moment later.
remove_cgroup() {
    local tries
    for ((tries = 0; tries < 300; tries++)); do
        [ -e "$work/cgroup/$cgroup" ] || return 0
        find "$work/cgroup/$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
    printf 'systemd: still there: the control group %s\n' "$cgroup" >&2
}

clean() {
    trap - EXIT INT TERM
    if [ -n "$first" ]; then
        kill -KILL "$first" 2>/dev/null || true
        wait "$first" 2>/dev/null || true
    fi
    # Its volumes were on a tmpfs, and were removed with it.
    mount -t cgroup2 cgroup2 "$work/cgroup" && {
        remove_cgroup
        umount "$work/cgroup"
    }
    rm -rf --one-file-system "$work"
}
trap clean EXIT
trap 'clean; exit 130' INT TERM

# Checks that the package of each tool that the agent runs is installed with it.
expect_tools() {
    local field=$1 name
    for name in "${@:2}"; do
        dpkg-deb --field "$packages"/belay-node_*.deb "$field" | grep -qwF -e "$name" ||
            wrong "belay-node: no $name in $field"
    done
}

# Checks that the program supports every variable of a unit and of its example.
expect_known_settings() {
    local package=$1 name help
    help=$("$work/root/usr/bin/$package" --help)
    for name in $(grep -ohE '^(Environment=|#?)(BELAY|CSI)_[A-Z_]*' \
        "$work/root/usr/lib/systemd/system/$package.service" \
        "$work/root/etc/default/$package" | sed 's/^Environment=//; s/^#//' | sort -u); do
        grep -q "\[env: $name=" <<<"$help" || wrong "$package does not know $name"
    done
}

unpack() {
    local package
    mkdir -p "$work/root/usr/lib/systemd/system" "$work/cgroup"
    cp /usr/lib/systemd/system/*.target "$work/root/usr/lib/systemd/system/"
    for package in belay-node belay-controller belayctl; do
        dpkg-deb --extract "$packages/${package}"_*.deb "$work/root"
    done
}

judge() {
    local said unit=$1.service
    expect_known_settings "$1"
    said=$(systemd-analyze verify --root="$work/root" --man=no "$unit" 2>&1) || wrong "$unit: $said"
    [ -z "$said" ] || wrong "$unit: $said"
    systemd-analyze security --offline=yes --root="$work/root" --threshold="$2" "$unit" |
        tail -n 1 | sed 's/^[^A-Z]*/systemd: /'
}

boot() {
    unshare --mount --propagation private "$here/boot.sh" "$work" "$packages" "$cgroup" \
        </dev/null >"$work/console.log" 2>&1 &
    first=$!
    local tries
    for ((tries = 0; tries < 300; tries++)); do
        [ ! -s "$work/pid" ] || inside systemctl is-active --quiet belay-test.target 2>/dev/null &&
            [ -s "$work/pid" ] && return 0
        kill -0 "$first" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 30 "$work/console.log" >&2
    wrong "systemd has not come up"
}

# Runs a command in the namespaces of that systemd.
inside() {
    nsenter --target "$(cat "$work/pid")" --mount --uts --ipc --net --pid --cgroup "$@"
}

unpack
expect_tools Depends e2fsprogs xfsprogs btrfs-progs
expect_tools Recommends cryptsetup-bin
# These are the current results of systemd-analyze; more exposure needs a reason.
judge belay-node 61
judge belay-controller 19
boot
cat "$here/../volume.sh" "$here/live.sh" | inside bash -s || {
    inside journalctl --no-pager --lines 40 >&2 || true
    wrong "failed, see above"
}
