#!/usr/bin/env bash
# Creates the root directory of one image: Belay's static programs, the tools of this machine that
# the agent runs, with only the libraries they load, and the licences of all of them.
#
#   deploy/images/rootfs.sh node|controller DIRECTORY BINDIR
#
# The tools come from the Debian or Ubuntu on which this runs, so the tests have run the same tools.
# For another architecture (ARCHITECTURE=amd64|arm64), they come from SYSROOT, which sysroot.sh
# creates.
set -euo pipefail
# A missing library must end the whole script, in whichever $(...) it is noticed.
shopt -s inherit_errexit
here=$(dirname "$(readlink -f "$0")")
. "$here/../../tests/setup/env.sh"

[ "$#" = 3 ] || give_up "usage: rootfs.sh node|controller DIRECTORY BINDIR"
image=$1 root=$2 bindir=$3

# The agent runs the first five. docs/health.md recommends the others, on nodes
# that may have no shell: kubectl exec finds them here.
tools=(mkfs.ext4 mkfs.xfs mkfs.btrfs e2fsck cryptsetup xfs_repair btrfs)
# Libraries that no other file names: pthread_exit(3) opens this one, and aborts without it.
# libargon2 ends its threads so, for a header with a parallel key derivation.
opened=(libgcc_s.so.1)
# The agent detects the age of xfsprogs by the presence of these files.
data=(/etc/mke2fs.conf /usr/share/xfsprogs/mkfs)

put() {
    install -D --mode "$1" "$2" "$root$3"
}

skeleton() {
    mkdir -p "$root"/usr/{bin,sbin,lib,lib64}
    local directory
    for directory in bin sbin lib lib64; do
        ln -s "usr/$directory" "$root/$directory"
    done
    put 644 "$here/../../LICENSE" /usr/share/doc/belay/copyright
    "$here/notices.sh" >"$root/usr/share/doc/belay/third-party"
    # libc6 is linked into Belay's programs.
    papers libc6
}

program() {
    [ -x "$bindir/$1" ] || give_up "$bindir has no $1; please run: make build"
    # A program that needs a loader would not start here.
    ! readelf --program-headers "$bindir/$1" | grep -q INTERP ||
        give_up "$bindir/$1 is not linked statically; please run: make build"
    put 755 "$bindir/$1" "/usr/bin/$1"
}

# Prints a path in /usr, wherever the links of a merged /usr lead.
beneath_usr() {
    printf '/usr/%s\n' "$(printf '%s' "$1" | sed 's|^/usr||; s|^/||')"
}

# first NAME DIRECTORY...: prints the path of the file in the first directory that contains it.
first() {
    local name=$1 directory
    shift
    for directory in "$@"; do
        if [ -e "$sysroot$directory/$name" ]; then
            printf '%s\n' "$directory/$name"
            return 0
        fi
    done
    give_up "$name is missing in ${sysroot:-/};" \
        "please run: tests/setup/packages.sh filesystems images"
}

# Prints the path of a library.
library() {
    first "$1" "/lib/$triple" "/usr/lib/$triple" /lib /lib64
}

# Prints the libraries that a program or library loads, recursively. ldd cannot be used, since it
# would have to start the program.
libraries_of() {
    local path name needed
    # The loader is listed as the interpreter, so skip it here.
    needed=$(readelf --dynamic "$sysroot$1" |
        sed -n '/\[ld-linux/d; s/.*(NEEDED).*\[\(.*\)\]$/\1/p')
    {
        readelf --program-headers "$sysroot$1" |
            sed -n 's/.*interpreter: \(.*\)\]$/\1/p'
        for name in $needed; do library "$name"; done
    } | sort -u | while read -r path; do
        printf '%s\n' "$path"
        libraries_of "$path"
    done
}

# Copies a program or library and the libraries that it loads, and prints their paths.
with_libraries() {
    local path libraries
    libraries=$(libraries_of "$1" | sort -u)
    for path in "$1" $libraries; do
        put 755 "$sysroot$path" "$(beneath_usr "$path")"
        printf '%s\n' "$path"
    done
}

files() {
    local name path
    for name in "${tools[@]}"; do
        path=$(first "$name" /usr/sbin /sbin /usr/bin /bin)
        with_libraries "$path"
    done
    for name in "${opened[@]}"; do
        path=$(library "$name")
        with_libraries "$path"
    done
}

query() {
    dpkg-query --admindir "$sysroot/var/lib/dpkg" "$@"
}

# dpkg may list a file with or without /usr, which is merged with the root by now.
package_of() {
    local path=${1#/usr}
    { query --search "/usr$path" || query --search "$path"; } 2>/dev/null |
        head -n 1 | cut -d : -f 1
}

# Vulnerability scanners read what distroless images keep in status.d.
papers() {
    local package=$1 licence
    put 644 "$sysroot/usr/share/doc/$package/copyright" "/usr/share/doc/$package/copyright"
    mkdir -p "$root/var/lib/dpkg/status.d"
    query --status "$package" | sed '/^Conffiles:/,/^[^ ]/{/^Conffiles:/d;/^ /d}' \
        >"$root/var/lib/dpkg/status.d/$package"
    for licence in $(grep -oh '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' \
        "$sysroot/usr/share/doc/$package/copyright" | sort -u); do
        [ ! -e "$licence" ] || put 644 "$licence" "$licence"
    done
}

distribution_tools() {
    local path package
    files | sort -u >"$root/.files"
    while read -r path; do package_of "$path"; done <"$root/.files" | sort -u >"$root/.packages"
    while read -r package; do papers "$package"; done <"$root/.packages"
    rm "$root/.files" "$root/.packages"
    for path in "${data[@]}"; do
        [ ! -e "$sysroot$path" ] ||
            { mkdir -p "$root${path%/*}" && cp -rL "$sysroot$path" "$root${path%/*}/"; }
    done
    put 644 /etc/os-release /etc/os-release
}

# Copies the public certificate authorities, for the endpoints of clouds: only the package's, not
# any that was added on this machine.
authorities() {
    local certificates=("$sysroot"/usr/share/ca-certificates/mozilla/*.crt)
    [ -e "${certificates[0]}" ] || give_up "there is no certificate in /usr/share/ca-certificates;" \
        "please run: tests/setup/packages.sh images"
    mkdir -p "$root/etc/ssl/certs"
    LC_ALL=C sort --zero-terminated < <(printf '%s\0' "${certificates[@]}") |
        xargs --null cat >"$root/etc/ssl/certs/ca-certificates.crt"
    papers ca-certificates
}

umask 022
have dpkg-query || give_up "images are made on Debian or Ubuntu, whose packages name their licences"
sysroot=${SYSROOT:-}
case ${ARCHITECTURE:-$(dpkg --print-architecture)} in
    amd64) triple=x86_64-linux-gnu ;;
    arm64) triple=aarch64-linux-gnu ;;
    *) give_up "no image is made for the architecture ${ARCHITECTURE:-of this machine}" ;;
esac
[ ! -e "$root" ] || give_up "$root exists already; please name a directory that does not exist"
skeleton
# belayctl is for debugging with kubectl exec.
program belayctl
case $image in
    node)
        program belay-node
        distribution_tools
        ;;
    controller)
        program belay-controller
        authorities
        ;;
    *) give_up "there is no image called $image; there are node and controller" ;;
esac
