#!/usr/bin/env bash
# Installs the missing system packages, and no others.
#
#   packages.sh build filesystems foreign images kubernetes guest openstack curl ...
#
# A package is missing if its command is. So a machine with tools from other sources is left alone,
# and usually no call of dpkg is needed.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

packages=()
# The packages that apt will install, group by group, each with the reason.
announced=()

# need COMMAND PACKAGE...: adds the packages if the command is missing.
need() {
    have "$1" || packages+=("${@:2}")
}

# Checks that programs can be linked: a compiler without the C library's headers links nothing.
links_c() {
    local out
    out=$(mktemp) || return 1
    printf 'int main(void) { return 0; }\n' | cc -x c - -o "$out" 2>/dev/null
    local code=$?
    rm -f "$out"
    return "$code"
}

# Checks for pip and the headers, which Debian packages separately from Python.
builds_python() {
    have python3 && links_c && python3 -c '
import ensurepip, os, sysconfig
os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null
}

# need_for GROUP: sets `reason`, and adds to `packages`.
need_for() {
    case $1 in
        build)
            reason='to link programs and fetch crates'
            links_c || packages+=(gcc libc6-dev)
            if ! [ -e /etc/ssl/certs/ca-certificates.crt ] &&
                ! [ -e /etc/pki/tls/certs/ca-bundle.crt ]; then
                packages+=(ca-certificates)
            fi
            ;;
        filesystems)
            reason='to make and mount volumes'
            need mkfs.ext4 e2fsprogs
            need mkfs.xfs xfsprogs
            need mkfs.btrfs btrfs-progs
            need losetup mount
            need unshare util-linux
            ;;
        foreign)
            reason='for tests: to count system calls, and to make disks that must not be formatted'
            need strace strace
            need valgrind valgrind
            need sgdisk gdisk
            need cryptsetup cryptsetup-bin
            need pvcreate lvm2
            need mkfs.vfat dosfstools
            need rsync rsync
            ;;
        images)
            reason='to build container images'
            need buildah buildah
            need readelf binutils
            need cryptsetup cryptsetup-bin
            [ -e /usr/share/ca-certificates/mozilla ] || packages+=(ca-certificates)
            ;;
        monitoring)
            reason='to read the dashboard and query Prometheus'
            need jq jq
            need curl curl
            ;;
        systemd)
            reason='to check and run systemd units'
            need systemd-analyze systemd
            ;;
        udev)
            reason='to test udev rules'
            need udevadm udev
            ;;
        kubernetes)
            reason='to start a Kubernetes cluster'
            need ip iproute2
            need openssl openssl
            need ldd libc-bin
            need python3 python3
            ;;
        guest)
            reason='to boot User-mode Linux guests'
            need linux.uml user-mode-linux
            need udevadm udev
            need modprobe kmod
            need taskset util-linux
            need ip iproute2
            need patchelf patchelf
            need genisoimage genisoimage
            need cryptsetup cryptsetup-bin
            need mkfs.vfat dosfstools
            need mcopy mtools
            need python3 python3
            need sgdisk gdisk
            need pvcreate lvm2
            ;;
        openstack)
            reason='to run Keystone, Cinder and Nova'
            need mariadbd mariadb-server
            need rabbitmq-server rabbitmq-server
            need losetup mount
            builds_python || packages+=(gcc libc6-dev python3-venv python3-dev)
            ;;
        python)
            reason='to install Python packages'
            python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
            ;;
        cross-arm64)
            reason='to link programs for arm64'
            need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
            ;;
        cross-amd64)
            reason='to link programs for amd64'
            need x86_64-linux-gnu-gcc gcc-x86-64-linux-gnu libc6-dev-amd64-cross
            ;;
        emulation)
            reason='to run programs for arm64'
            need qemu-aarch64-static qemu-user-static
            ;;
        curl)
            reason='to fetch a Rust toolchain'
            need curl curl
            ;;
        *)
            give_up "packages.sh knows no group called $1"
            ;;
    esac
}

install_missing() {
    local command="apt-get install --no-install-recommends ${packages[*]}" line
    have apt-get || give_up "please install, with this system's own package manager: ${packages[*]}"
    [ "$(id -u)" = 0 ] || give_up "please run: sudo $command"
    for line in "${announced[@]}"; do
        announce "installing by apt: $line"
    done
    apt-get update -qq </dev/null || announce "apt-get update failed; trying with the lists there are"
    apt_install "${packages[@]}" || give_up "apt could not do it; please run: $command"
}

for group in "$@"; do
    before=${#packages[@]}
    need_for "$group"
    [ "${#packages[@]}" = "$before" ] || announced+=("${packages[*]:before} ($reason)")
done
[ "${#packages[@]}" = 0 ] || install_missing
