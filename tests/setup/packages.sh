#!/usr/bin/env bash
# Installs the system packages that are missing, and no other.
#
#   packages.sh build filesystems foreign images kubernetes guest openstack curl ...
#
# A package is missing when its command is: so a machine that has the tools from elsewhere is left
# alone, and the usual case costs no call of dpkg.
set -euo pipefail
. "$(dirname "$(readlink -f "$0")")/env.sh"

packages=()
reasons=()

# need COMMAND WHY PACKAGE...
need() {
    local command=$1 why=$2
    shift 2
    if ! have "$command"; then
        packages+=("$@")
        reasons+=("$why")
    fi
}

# A compiler without the C library's headers links nothing, so linking is tested.
links_c() {
    local out
    out=$(mktemp) || return 1
    printf 'int main(void) { return 0; }\n' | cc -x c - -o "$out" 2>/dev/null
    local code=$?
    rm -f "$out"
    return "$code"
}

# Debian splits Python: without these packages there is no pip, and no header.
builds_python() {
    have python3 && links_c && python3 -c '
import ensurepip, os, sysconfig
os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null
}

need_for_build() {
    if ! links_c; then
        packages+=(gcc libc6-dev)
        reasons+=("cargo links with it")
    fi
    if ! [ -e /etc/ssl/certs/ca-certificates.crt ] && ! [ -e /etc/pki/tls/certs/ca-bundle.crt ]; then
        packages+=(ca-certificates)
        reasons+=("dependencies come over TLS")
    fi
}

need_for() {
    case $1 in
        build)
            need_for_build
            ;;
        filesystems)
            need mkfs.ext4 "volumes are ext4" e2fsprogs
            need mkfs.xfs "or xfs" xfsprogs
            need mkfs.btrfs "or btrfs" btrfs-progs
            need losetup "on loop devices" mount
            need unshare "in a mount namespace" util-linux
            ;;
        foreign)
            need strace "a test counts processes" strace
            need valgrind "a test counts instructions" valgrind
            need sgdisk "a test makes a GPT disk" gdisk
            need cryptsetup "a test makes a LUKS disk" cryptsetup-bin
            need pvcreate "a test makes an LVM disk" lvm2
            need mkfs.vfat "a test makes a vfat disk" dosfstools
            ;;
        images)
            need buildah "images are built by it" buildah
            need readelf "programs are inspected before they go into one" binutils
            if ! [ -e /usr/share/ca-certificates/mozilla ]; then
                packages+=(ca-certificates)
                reasons+=("the controller's image has its certificates")
            fi
            ;;
        monitoring)
            need jq "the dashboard is read by it" jq
            need curl "Prometheus is queried with it" curl
            ;;
        systemd)
            need systemd-analyze "units are checked and run by it" systemd
            ;;
        udev)
            need udevadm "rules are tried by it" udev
            ;;
        kubernetes)
            need ip "a cluster has its own network" iproute2
            need openssl "and its own keys" openssl
            need ldd "images take libraries along" libc-bin
            need python3 "the stress tests are written in it" python3
            ;;
        guest)
            need linux.uml "a guest's kernel" user-mode-linux
            need udevadm "disks in a guest are named by it" udev
            need modprobe "a guest loads modules" kmod
            need taskset "and stays on one processor" util-linux
            need ip "its loopback interface is brought up" iproute2
            need patchelf "another kernel is unpacked as well" patchelf
            need genisoimage "it makes a config drive, as clouds do" genisoimage
            need mkfs.vfat "so does it" dosfstools
            need mcopy "it fills that one" mtools
            need python3 "its http.server is a metadata service" python3
            need sgdisk "a boot disk has partitions" gdisk
            need pvcreate "udev's rules activate LVM" lvm2
            ;;
        openstack)
            need mariadbd "the services of OpenStack keep their state in it" mariadb-server
            need rabbitmq-server "and exchange messages through it" rabbitmq-server
            need losetup "a disk of a server is a loop device" mount
            if ! builds_python; then
                packages+=(gcc libc6-dev python3-venv python3-dev)
                reasons+=("the services are written in it, and uWSGI is compiled")
            fi
            ;;
        cross-arm64)
            need aarch64-linux-gnu-gcc "programs for arm64 are linked by it" \
                gcc-aarch64-linux-gnu libc6-dev-arm64-cross
            ;;
        cross-amd64)
            need x86_64-linux-gnu-gcc "programs for amd64 are linked by it" \
                gcc-x86-64-linux-gnu libc6-dev-amd64-cross
            ;;
        emulation)
            need qemu-aarch64-static "programs for arm64 are started in it" qemu-user-static
            ;;
        curl)
            need curl "a toolchain is fetched with it" curl
            ;;
        *)
            give_up "packages.sh knows no group called $1"
            ;;
    esac
}

install_missing() {
    local command="apt-get install --no-install-recommends ${packages[*]}"
    have apt-get || give_up "please install, with this system's own package manager: ${packages[*]}"
    [ "$(id -u)" = 0 ] || give_up "please run: sudo $command"
    announce "installing ${packages[*]} by apt ($(printf '%s; ' "${reasons[@]}" | sed 's/; $//'))"
    apt-get update -qq </dev/null || announce "apt-get update failed; trying with the lists there are"
    apt_install "${packages[@]}" || give_up "apt could not do it; please run: $command"
}

for group in "$@"; do
    need_for "$group"
done
[ "${#packages[@]}" = 0 ] || install_missing
