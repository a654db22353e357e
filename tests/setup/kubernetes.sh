#!/usr/bin/env bash
# Provides what a Kubernetes node runs in addition to the kubelet: containerd, runc, the network
# plugins, and busybox for the images of the bed.
#
# Debian's packages are unpacked and not installed: an installed containerd would be a service of
# this machine, and would replace the one that Docker may have brought.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

packages=(containerd runc containernetworking-plugins busybox-static)
directory=$BELAY_CACHE/kubernetes/node

complete() {
    local program
    for program in containerd containerd-shim-runc-v2 ctr runc busybox; do
        [ -x "$directory/bin/$program" ] || return 1
    done
    [ -x "$directory/cni/bridge" ] && [ -x "$directory/cni/host-local" ] && [ -x "$directory/cni/loopback" ]
}

# As root, apt would download as its own user, who may not write here.
download() {
    apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}" >/dev/null
}

unpack() {
    local package
    for package in *.deb; do
        dpkg-deb --extract "$package" .
    done
    mkdir -p done/bin
    find . -path ./done -prune -o -path '*bin/*' -type f -exec mv -t done/bin {} +
    mv usr/lib/cni done/cni
}

complete && exit 0
have apt-get && have dpkg-deb ||
    give_up "please put containerd, containerd-shim-runc-v2, ctr, runc and a static busybox into" \
        "$directory/bin and the CNI plugins bridge, host-local and loopback into $directory/cni"
announce "unpacking Debian's ${packages[*]} into $BELAY_CACHE (the Kubernetes bed's node runs them)"
mkdir -p "$BELAY_CACHE/kubernetes"
work=$(mktemp -d "$BELAY_CACHE/kubernetes/node.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
download || { apt-get update -qq </dev/null && download; } ||
    give_up "apt could not fetch ${packages[*]}; please check its sources and try again"
unpack
rm -rf "$directory"
mv done "$directory"
complete || give_up "these packages lack a program that the bed needs: ${packages[*]}"
