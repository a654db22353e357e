#!/usr/bin/env bash
# Provides the program that loads AppArmor profiles, for containers in guests. It is unpacked and
# not installed, so this machine gets no profiles.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

directory=$BELAY_CACHE/apparmor
if [ -x "$directory/sbin/apparmor_parser" ]; then exit 0; fi
have apt-get || give_up 'guests with AppArmor need the package apparmor of Debian or Ubuntu'
announce "unpacking apparmor into $directory (containers of guests have a profile of it)"
mkdir -p "$BELAY_CACHE"
work=$(mktemp -d "$BELAY_CACHE/apparmor.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get -qq -o APT::Sandbox::User=root download apparmor </dev/null
dpkg-deb --extract apparmor_*.deb root
mkdir -p root/sbin
[ -x root/sbin/apparmor_parser ] || mv root/usr/sbin/apparmor_parser root/sbin/
rm -rf "$directory"
mv root "$directory"
