//! An NFS server in a guest: Linux's own, in a network namespace, and so with a cable that can be
//! cut. Knows nothing of Belay.

use std::path::PathBuf;

use belay_guest::Guest;

use crate::rig::seen;

/// The server's address.
pub(crate) const ADDRESS: &str = "10.9.0.1";
/// The exported directory, for NFS 3. It is also the root of NFS 4, because the guest's root is an
/// overlay, which cannot be exported.
pub(crate) const SHARE: &str = "/srv/nfs";

/// A server: a network namespace of that name, with that address and directory.
struct Server {
    name: &'static str,
    address: &'static str,
    share: &'static str,
    /// Directories `vol1`, `vol2` and so on, which any user may write.
    directories: u32,
}

const FILER: Server = Server {
    name: "filer",
    address: ADDRESS,
    share: SHARE,
    directories: 20,
};

/// The address of [`start_another`].
pub(crate) const ANOTHER: &str = "10.9.1.1";

/// Starts the server with all versions, and directories `vol1` to `vol20`. Locks are not served:
/// version 3 needs `nolock`.
pub(crate) fn start(guest: &mut Guest<'_>) {
    guest.run("modprobe -a nfsd nfs nfsv3 nfsv4 veth");
    serve(guest, &FILER);
}

/// A second server, which [`cut`] leaves alone, with a directory `vol1`.
pub(crate) fn start_another(guest: &mut Guest<'_>) {
    let another = Server {
        name: "another",
        address: ANOTHER,
        share: "/srv/another",
        directories: 1,
    };
    serve(guest, &another);
}

/// Its mounts and its host name are its own as well: to clients of NFS 4.1, two addresses with one
/// name are one server.
fn serve(guest: &mut Guest<'_>, server: &Server) {
    let programs = seen(&programs());
    let Server {
        name,
        address,
        share,
        directories,
    } = server;
    let (network, _) = address.rsplit_once('.').expect("four numbers");
    guest.run(&format!(
        "ip netns add {name}
         ip link add {name} type veth peer name far-{name}
         ip link set far-{name} netns {name}
         ip addr add {network}.2/24 dev {name}
         ip link set {name} up
         ip -n {name} link set lo up
         ip -n {name} addr add {address}/24 dev far-{name}
         ip -n {name} link set far-{name} up
         # A server that does not answer still has an address.
         mac=$(ip netns exec {name} cat /sys/class/net/far-{name}/address)
         ip neigh replace {address} lladdr $mac dev {name} nud permanent
         truncate -s 256M /run/{name}.img
         mkfs.ext4 -q /run/{name}.img
         mkdir -p {share} /var/lib/nfs /run/{name}/nfs/{{sm,v4recovery}}
         mount -o loop /run/{name}.img {share}
         for number in $(seq {directories}); do mkdir -m 777 {share}/vol$number; done
         ln -sf /proc/self/mounts /etc/mtab
         touch /etc/exports /run/{name}/nfs/{{etab,rmtab}}
         options=rw,sync,no_root_squash,no_subtree_check,fsid=0,insecure
         echo \"{share} *($options)\" >/run/{name}/exports
         # Its package makes the user.
         getent passwd _rpc || echo _rpc:x:498:65534::/run:/usr/sbin/nologin >>/etc/passwd
         [ -e /etc/netconfig ] || cp {programs}/etc/netconfig /etc/
         unshare --mount --uts sleep infinity >/dev/null 2>&1 3>&- &
         namespaces=$!
         cat >/run/{name}.sh <<END
root={programs}
export PATH=\\$root/usr/sbin:\\$root/sbin:\\$PATH
export LD_LIBRARY_PATH=\\$root/usr/lib/x86_64-linux-gnu:\\$root/lib/x86_64-linux-gnu
inside() {{ nsenter --net=/run/netns/{name} --target $namespaces --mount --uts \"\\$@\"; }}
END
         . /run/{name}.sh
         mounts() {{ readlink /proc/$1/ns/mnt; }}
         while [ $(mounts $namespaces) = $(mounts self) ]; do sleep 0.1; done
         inside hostname {name}
         inside mount --bind /run/{name}/exports /etc/exports
         inside mount --bind /run/{name}/nfs /var/lib/nfs
         # rpcbind's socket has one path.
         inside mount -t tmpfs none /run
         inside mkdir /run/sendsigs.omit.d /run/rpcbind
         inside mount -t nfsd nfsd /proc/fs/nfsd
         echo 10 | inside tee /proc/fs/nfsd/nfsv4leasetime /proc/fs/nfsd/nfsv4gracetime
         inside rpcbind -w
         for _ in $(seq 100); do inside rpcinfo 127.0.0.1 >/dev/null 2>&1 && break; sleep 0.1; done
         inside exportfs -ra
         inside rpc.mountd
         inside rpc.nfsd 4
         echo Y | inside tee /proc/fs/nfsd/v4_end_grace
         inside cat /proc/fs/nfsd/versions"
    ));
}

/// From now on nothing that is sent to the server arrives, nor what it sends.
pub(crate) fn cut(guest: &mut Guest<'_>) {
    guest.run("ip -n filer link set far-filer down");
}

/// The opposite of [`cut`].
pub(crate) fn join(guest: &mut Guest<'_>) {
    guest.run("ip -n filer link set far-filer up");
}

/// Returns the directory of downloaded tools, `$BELAY_CACHE`; make exports the variable.
pub(crate) fn cache() -> PathBuf {
    let given = std::env::var_os("BELAY_CACHE").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/belay");
    given.unwrap_or_else(home)
}

fn programs() -> PathBuf {
    let programs = cache().join("nfs-server");
    assert!(
        programs.exists(),
        "no {}; `make nfs` unpacks it",
        programs.display()
    );
    programs
}
