#!/usr/bin/env bash
# Unpacks the packages that the images take files from, for another architecture. Uses the release
# and the mirrors of this machine's apt. Nothing is installed, and nothing in it is run.
#
#   deploy/images/sysroot.sh amd64|arm64 DIRECTORY
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../../tests/setup/env.sh"

[ "$#" = 2 ] || give_up "usage: sysroot.sh amd64|arm64 DIRECTORY"
architecture=$1 root=$2
packages=(e2fsprogs xfsprogs btrfs-progs cryptsetup-bin libgcc-s1 ca-certificates)
[ ! -e "$root" ] || give_up "$root exists already; please name a directory that does not exist"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Runs apt with separate lists, and as if no package was installed.
foreign_apt() {
    apt-get -qq -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" \
        -o Dir::State="$work" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" \
        -o Acquire::Languages=none -o APT::Sandbox::User=root -o APT::Install-Recommends=false \
        -o Debug::NoLocking=true "$@" </dev/null
}

# Writes the database of dpkg, as far as dpkg-query reads it.
record() {
    local name
    name=$(dpkg-deb --field "$1" Package)
    dpkg-deb --field "$1" | sed 's/^Package: .*/&\nStatus: install ok unpacked/'
    printf '\n'
    dpkg-deb --fsys-tarfile "$1" | tar --list | sed "s|^[.]/|/|; s|/\$||; s|^\$|/.|" \
        >"$root/var/lib/dpkg/info/$name.list"
}

mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$root/var/lib/dpkg/info"
: >"$work/status"
foreign_apt update
foreign_apt install --yes --download-only "${packages[@]}" >/dev/null ||
    give_up "apt has no ${packages[*]} for $architecture; does the mirror hold that architecture?"
for package in "$work"/cache/archives/*.deb; do
    dpkg-deb --extract "$package" "$root"
    record "$package" >>"$root/var/lib/dpkg/status"
done
