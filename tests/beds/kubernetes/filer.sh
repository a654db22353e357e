#!/usr/bin/env bash
# Makes a guest the NFS server of the cluster. Runs in the guest, after each boot.
#
#   filer.sh ADDRESS NETWORK CACHE    CACHE: a directory of the machine, below /machine in the guest
#
# Runs Linux's own server, with all versions of NFS. The disk /dev/ubda has the share and the
# server's state, which survive a power cut. tests/setup/nfs.sh unpacks its programs. As by default,
# requests from client ports of 1024 and above are refused.
set -euo pipefail
address=$1 network=$2 root=/machine${3:?the cache of the machine}/nfs-server

make_directories() {
    mkdir -p /node
    mount /dev/ubda /node
    mkdir -p /node/{share,state/sm,state/v4recovery} /var/lib/nfs /run/sendsigs.omit.d /run/rpcbind
    mount --bind /node/state /var/lib/nfs
    touch /var/lib/nfs/{etab,rmtab}
    ln -sf /proc/self/mounts /etc/mtab
    # The root of an overlay cannot be exported, so the share is the root of version 4.
    printf '/node/share %s(rw,sync,no_root_squash,no_subtree_check,fsid=0)\n' "$network" >/etc/exports
    # An installation of the packages would create these users.
    getent passwd _rpc >/dev/null ||
        echo '_rpc:x:498:65534::/run:/usr/sbin/nologin' >>/etc/passwd
    [ -e /etc/netconfig ] || cp "$root/etc/netconfig" /etc/
}

make_network() {
    ip link set vec0 up
    ip address add "$address/24" dev vec0
    printf '127.0.0.1 localhost\n%s filer\n' "$address" >/etc/hosts
}

# Starts the server. After a power cut, clients reclaim their state within seconds, or start again.
serve() {
    export PATH=$root/usr/sbin:$root/sbin:$PATH
    export LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu
    modprobe nfsd
    mount -t nfsd nfsd /proc/fs/nfsd
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    rpcbind -w
    for _ in $(seq 100); do
        ! rpcinfo 127.0.0.1 >/dev/null 2>&1 || break
        sleep 0.1
    done
    exportfs -ra
    rpc.mountd
    rpc.nfsd 8
    cat /proc/fs/nfsd/versions
}

make_network
make_directories
serve
