//! An NFS server in a guest: Linux's own, in a network namespace, and so with a cable that can be
//! cut. Knows nothing of Belay.

use std::path::PathBuf;

use belay_guest::Guest;

use crate::rig::seen;

/// The server's address.
pub(crate) const ADDRESS: &str = "10.9.0.1";
/// What it exports, for version 3. It is the root of version 4, whose own would be the guest's, an
/// overlay, which cannot be exported.
pub(crate) const SHARE: &str = "/srv/nfs";

/// Starts the server with all versions, and directories `vol1` to `vol9` that any user may write.
/// Locks are not served: version 3 needs `nolock`.
pub(crate) fn start(guest: &mut Guest<'_>) {
    let programs = seen(&programs());
    guest.run(&format!(
        "modprobe -a nfsd nfs nfsv3 nfsv4 veth
         ip netns add filer
         ip link add near type veth peer name far
         ip link set far netns filer
         ip addr add 10.9.0.2/24 dev near
         ip link set near up
         ip -n filer link set lo up
         ip -n filer addr add {ADDRESS}/24 dev far
         ip -n filer link set far up
         # A server that does not answer has an address all the same.
         mac=$(ip netns exec filer cat /sys/class/net/far/address)
         ip neigh replace {ADDRESS} lladdr $mac dev near nud permanent
         truncate -s 256M /run/filer.img
         mkfs.ext4 -q /run/filer.img
         mkdir -p {SHARE} /var/lib/nfs/sm /var/lib/nfs/v4recovery /run/sendsigs.omit.d
         mount -o loop /run/filer.img {SHARE}
         mkdir -m 777 {SHARE}/vol{{1..9}}
         ln -sf /proc/self/mounts /etc/mtab
         echo '{SHARE} *(rw,sync,no_root_squash,no_subtree_check,fsid=0,insecure)' >/etc/exports
         touch /var/lib/nfs/{{etab,rmtab}}
         cat >/run/filer <<'END'
root={programs}
export PATH=$root/usr/sbin:$root/sbin:$PATH
export LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu
inside() {{ nsenter --net=/run/netns/filer \"$@\"; }}
END
         . /run/filer
         [ -e /etc/netconfig ] || cp $root/etc/netconfig /etc/
         inside mount -t nfsd nfsd /proc/fs/nfsd
         echo 10 >/proc/fs/nfsd/nfsv4leasetime
         echo 10 >/proc/fs/nfsd/nfsv4gracetime
         # Its package makes the user.
         getent passwd _rpc || echo _rpc:x:498:65534::/run:/usr/sbin/nologin >>/etc/passwd
         inside rpcbind -w
         for _ in $(seq 100); do inside rpcinfo 127.0.0.1 >/dev/null 2>&1 && break; sleep 0.1; done
         inside exportfs -ra
         inside rpc.mountd
         inside rpc.nfsd 4
         echo Y >/proc/fs/nfsd/v4_end_grace
         cat /proc/fs/nfsd/versions"
    ));
}

/// From now on nothing that is sent to the server arrives, nor what it sends.
pub(crate) fn cut(guest: &mut Guest<'_>) {
    guest.run("ip -n filer link set far down");
}

/// The opposite of [`cut`].
pub(crate) fn join(guest: &mut Guest<'_>) {
    guest.run("ip -n filer link set far up");
}

/// `$BELAY_CACHE/nfs-server`; make exports the variable.
fn programs() -> PathBuf {
    let given = std::env::var_os("BELAY_CACHE").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/belay");
    let programs = given.unwrap_or_else(home).join("nfs-server");
    assert!(
        programs.exists(),
        "no {}; `make nfs` unpacks it",
        programs.display()
    );
    programs
}
