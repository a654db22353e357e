#!/usr/bin/env bash
# Provides the user space of Linux's NFS server, for a server in a guest. It is unpacked and not
# installed, so no server starts on this machine.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

directory=$BELAY_CACHE/nfs-server
if [ -x "$directory/usr/sbin/rpc.mountd" ]; then exit 0; fi
have apt-get || give_up 'tests with an NFS server need the packages of Debian or Ubuntu'
announce "unpacking nfs-kernel-server into $directory (an NFS server in a guest)"
mkdir -p "$BELAY_CACHE"
work=$(mktemp -d "$BELAY_CACHE/nfs-server.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
# Prints the packages that an installation would add to this machine, and which the programs
# therefore lack here.
missing() {
    apt-get --simulate --no-install-recommends install nfs-kernel-server rpcbind </dev/null |
        sed -n 's/^Inst \([^ ]*\).*/\1/p'
}
packages=$(missing)
[ -n "$packages" ] || packages='nfs-kernel-server nfs-common rpcbind'
mkdir archives root
# shellcheck disable=SC2086
(cd archives && apt-get -qq -o APT::Sandbox::User=root download $packages </dev/null)
for package in archives/*.deb; do
    dpkg-deb --extract "$package" root
done
rm -rf "$directory"
mv root "$directory"
