#!/usr/bin/env bash
# Provides the kernels of guests: User-mode Linux of the distribution, and a Linux 7.
#
# Linux 7 comes from Debian's unstable release, unlike the rest of this machine, so it is unpacked
# and not installed, with its own C library. If it is not available, a message says so, and guests
# run only the distribution's kernel.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

# Unstable contains only one version. If this version was replaced, the new one is used and
# reported.
version=7.2um1
directory=$BELAY_CACHE/guest
keys=/usr/share/keyrings/debian-archive-keyring.gpg

"$here/packages.sh" guest

# See xsave.c, for processors with AMX.
if grep -qw amx_tile /proc/cpuinfo && [ ! -e "$directory/xsave.so" ]; then
    announce "building xsave.so into $directory (User-mode Linux and this processor's AMX)"
    mkdir -p "$directory"
    cc -O2 -shared -fPIC -o "$directory/xsave.so.new" "$here/../beds/guest/xsave.c" -ldl
    mv "$directory/xsave.so.new" "$directory/xsave.so"
fi

# unstable_apt COMMAND...: runs apt with only unstable as its source, in the current directory. This
# machine's other settings of apt, such as a proxy, apply.
unstable_apt() {
    apt-get -qq -o Dir::Etc::SourceList="$PWD/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$PWD/lists" -o Dir::Cache="$PWD/cache" -o Acquire::Languages=none \
        -o APT::Sandbox::User=root -o APT::Default-Release= "$@" </dev/null
}

# Prints this machine's own Debian mirror.
mirror() {
    apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep '/debian/\?$' | head -n 1
}

download() {
    local mirror
    mirror=$(mirror) && [ -e "$keys" ] || return 1
    mkdir -p lists/partial cache/archives/partial
    printf 'deb [signed-by=%s] %s sid main\n' "$keys" "$mirror" >sources.list
    unstable_apt update || return 1
    if ! unstable_apt download "user-mode-linux=$version" libc6 2>/dev/null; then
        unstable_apt download user-mode-linux libc6 || return 1
        announce "user-mode-linux $version is gone from unstable; taking" user-mode-linux_*.deb
    fi
}

# The kernel starts itself again through /proc/self/exe, so the path of its loader must be in the
# program.
unpack() {
    local package libraries=$directory/linux-7/root/usr/lib/x86_64-linux-gnu
    mkdir -p linux-7/root
    for package in *.deb; do
        dpkg-deb --extract "$package" linux-7/root
    done
    mv linux-7/root/usr/bin/linux.uml linux-7/linux.uml
    mv linux-7/root/usr/lib/uml/modules linux-7/modules
    patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --set-rpath "$libraries" \
        linux-7/linux.uml
    rm -rf "$directory/linux-7"
    mv linux-7 "$directory/linux-7"
}

if [ "$(uname -m)" != x86_64 ] || [ -x "$directory/linux-7/linux.uml" ]; then exit 0; fi
announce "unpacking Debian's user-mode-linux $version into $directory (guests with Linux 7)"
mkdir -p "$directory"
work=$(mktemp -d "$directory/new.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
if ! { have apt-get && download && unpack && "$directory/linux-7/linux.uml" --version >/dev/null; }; then
    rm -rf "$directory/linux-7"
    announce "no Linux 7 for guests is available here: they run only the distribution's kernel"
fi
