#!/usr/bin/env bash
# Provides Prometheus, which scrapes both programs in a test, and promtool, which checks their
# metrics.
#
# Debian's package is unpacked and not installed: installed, it would be a service of this machine,
# which starts at once and after every boot, and its console would bring a dozen more packages.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

have prometheus && have promtool && exit 0
have apt-get && have dpkg-deb ||
    give_up "please install prometheus and promtool, with this system's own package manager"
announce "unpacking Debian's prometheus into $BELAY_CACHE (a test is scraped by it)"

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
# As root, apt would download as its own user, who may not write here.
download() {
    apt-get download -qq -o APT::Sandbox::User=root prometheus >/dev/null
}
download || { apt-get update -qq </dev/null && download; } ||
    give_up "apt could not fetch it; please put prometheus and promtool into the PATH"
dpkg-deb --extract prometheus_*.deb .
mkdir -p "$BELAY_CACHE/bin"
install usr/bin/prometheus usr/bin/promtool "$BELAY_CACHE/bin"
