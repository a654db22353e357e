#!/usr/bin/env bash
# Makes a guest a node of the cluster. Runs in the guest, after each boot.
#
#   guest.sh NAME BASE BIN CACHE NODE    directories of the machine, which the guest has below
#                                        /machine, and the name of its Node
#
# The disk /dev/ubda has the data that survives a power cut: state and images of containerd, the
# kubelet's directory, logs. /dev/ubdb, if there is one, has the volumes of the driver `local`.
set -euo pipefail
name=$1 machine=/machine$2 bin=/machine$3 as=$5
BELAY_CACHE=/machine${4:?the cache of the machine}
. "$(dirname "$(readlink -f "$0")")/env.sh"
. "$(dirname "$(readlink -f "$0")")/supervise.sh"

BASE=/node
address=$(guest_address "$name")
export PATH=$bin:$node_tools/bin:$PATH

# User-mode Linux does not report a clock speed, without which the kubelet exits.
report_clock() {
    awk '{ print } /^processor/ { print "cpu MHz\t\t: 2000.000" }' /proc/cpuinfo >/run/cpuinfo
    mount --bind /run/cpuinfo /proc/cpuinfo
}

make_directories() {
    mkdir -p /node
    mount /dev/ubda /node
    # Without this, each mount of the kubelet would appear twice.
    mount --make-private /node
    mkdir -p /node/{kubelet,containerd,log,run} /run/containerd /var/lib/kubelet /var/log
    mount --bind /node/kubelet /var/lib/kubelet
    mount --make-shared /var/lib/kubelet
    mount --bind /node/log /var/log
    rm -f /node/run/*
}

mount_volumes() {
    [ -b /dev/ubdb ] || return 0
    modprobe --all loop xfs btrfs ext4
    mkdir -p /var/lib/belay
    mount /dev/ubdb /var/lib/belay
}

# The kubelet does not sync its certificate, and never starts again with an empty one.
remove_torn_files() {
    [ -d /node/kubelet/pki ] || return 0
    find /node/kubelet/pki -type f -empty -delete
    find /node/kubelet/pki -xtype l -delete
}

make_network() {
    ip link set vec0 up
    ip address add "$address/24" dev vec0
    ip route add default via "$bridge_address"
    echo 1 >/proc/sys/net/ipv4/ip_forward
    # Pods on the host's network use a copy of this file.
    printf '%s %s\n' 127.0.0.1 localhost "$address" "$as" "$filer_address" filer >/etc/hosts
    rm -f /etc/resolv.conf
    cp "$machine/resolv.conf" /etc/resolv.conf
}

enable_controllers() {
    local controller
    for controller in $(</sys/fs/cgroup/cgroup.controllers); do
        echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
    done
}

# Writes the configuration of containerd. Containers that are not privileged get the runtime's own
# AppArmor profile, as on most nodes, if the kernel was started with AppArmor.
write_containerd() {
    mount -t securityfs securityfs /sys/kernel/security
    cp "$machine/guests/$name/containerd.toml" /run/containerd.toml
    [ -e /sys/kernel/security/apparmor ] || return 0
    sed -i 's/disable_apparmor = true/disable_apparmor = false/' /run/containerd.toml
    ln -sf "$BELAY_CACHE/apparmor/sbin/apparmor_parser" /sbin/apparmor_parser
    mkdir -p /etc/apparmor
    touch /etc/apparmor/parser.conf
}

# Imports the images that pods of the suite run. The links lead to paths of the machine.
import_images() {
    local image
    await 120 "an answer of containerd" ctr version
    [ ! -e /node/imported ] || return 0
    for image in busybox agnhost glibc; do
        ctr --namespace k8s.io images import "/machine$(readlink "$machine/images/$image.tar")" \
            >>/node/log/import.log 2>&1
    done
    # Without this, a power cut soon afterwards would leave empty programs.
    sync --file-system /node
    touch /node/imported
}

report_clock
make_directories
mount_volumes
remove_torn_files
make_network
enable_controllers
modprobe --all bridge veth
write_containerd
supervise containerd containerd --config /run/containerd.toml >/dev/null 2>&1 &
import_images
supervise kubelet kubelet --config="$machine/guests/$name/kubelet.yaml" \
    --kubeconfig="$machine/guests/$name/$as" --hostname-override="$as" \
    --node-ip="$address" --node-labels=belay.dev/guest=true --root-dir=/var/lib/kubelet --v=2 \
    >/dev/null 2>&1 &
