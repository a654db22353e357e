//! Claims of the controller's backend `nfs` in guests, with a real NFS server: who may write them,
//! and what calls of an earlier volume do to a later one.

use crate::filer::SHARE;
use crate::nfs_controller::{START, fails, run, with_filer};
use crate::rig::{newest_kernel, until};

/// The directory with the claims is another user's, or the server maps root to another user.
#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn claims_are_trusted_only_if_they_are_the_controllers() {
    with_filer(newest_kernel(), |guest| {
        let id = run(guest, "share=/ create pvc-1");
        let id = id.trim();
        run(
            guest,
            &format!("echo data >{SHARE}/pvc-1/file; chown 1000 {SHARE}/.belay"),
        );
        for script in ["share=/ create pvc-2", &format!("delete {id}")] {
            let text = fails(guest, script);
            assert!(text.contains("FAILED_PRECONDITION"), "{text}");
            assert!(text.contains("belongs to UID 1000, not to 0"), "{text}");
        }
        run(
            guest,
            &format!("chown 0 {SHARE}/.belay; chmod 777 {SHARE}/.belay"),
        );
        let text = fails(guest, &format!("delete {id}"));
        assert!(text.contains("has mode 0777"), "{text}");
        run(
            guest,
            &format!(
                "[ $(cat {SHARE}/pvc-1/file) = data ]
                 chmod 700 {SHARE}/.belay
                 delete {id}
                 rm -r {SHARE}/.belay
                 chmod 777 {SHARE}
                 # In place: the server has this file mounted.
                 squash=s/no_root_squash/all_squash,anonuid=1000,anongid=1000/
                 sed $squash /run/filer/exports >/run/exports
                 cat /run/exports >/run/filer/exports
                 . /run/filer.sh
                 inside exportfs -ra
                 share=/
                 id=$(create pvc-3)
                 [ $(stat -c %u {SHARE}/.belay) = 1000 ]
                 [ $(create pvc-3) = $id ]
                 delete $id
                 [ ! -e {SHARE}/pvc-3 ]"
            ),
        );
    });
}

/// A worker of another controller stops at any moment, and continues when the next volume has its
/// directory.
#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_slow_worker_of_another_controller_changes_no_later_volume() {
    let rounds = match std::env::var_os("BELAY_NIGHTLY") {
        Some(_) => 40,
        None => 10,
    };
    with_filer(newest_kernel(), |guest| {
        run(
            guest,
            &START
                .replace("controller.sock", "other.sock")
                .replace("9810", "9811"),
        );
        for round in 0..rounds {
            // A call of the other controller, and the preparation for it.
            let (prepare, slow) = match round % 2 {
                0 => ("true", "create pvc-1 --parameter subDir=ns/data"),
                _ => (
                    "create pvc-1 --parameter subDir=ns/data; mkdir -p $data/a/b/c",
                    "delete $id",
                ),
            };
            let pause = format!("0.{:02}", round * 40 / rounds);
            run(
                guest,
                &format!(
                    "share=/
                     data={SHARE}/ns/data
                     id=10.9.0.1##ns/data#pvc-1#
                     other() {{ (
                         controller() {{
                             belayctl --timeout 60 --endpoint /run/other.sock --output json \\
                                 controller \"$@\"
                         }}
                         \"$@\"
                     ) }}
                     {prepare}
                     other {slow} >/run/slow 2>&1 3>&- &
                     slow=$!
                     # A worker that starts later is not stopped, and creates the volume at last.
                     while kill -0 $slow && [ $(workers) = 0 ]; do :; done
                     sleep {pause}
                     pkill -STOP -f -- --nfs-worker-process || true
                     {}
                     # A creation that is late leaves a directory that is no volume.
                     for _ in $(seq 20); do
                         create pvc-2 --parameter subDir=ns/data && break
                         rmdir $data
                     done
                     echo precious >$data/file
                     pkill -CONT -f -- --nfs-worker-process || true
                     wait $slow || true
                     [ $(cat $data/file) = precious ]
                     [ $(create pvc-2 --parameter subDir=ns/data) = 10.9.0.1##ns/data#pvc-2# ]
                     delete 10.9.0.1##ns/data#pvc-2#
                     [ ! -e $data ]
                     [ -z \"$(ls {SHARE}/.belay/claims | grep -v :)\" ]",
                    until("delete $id"),
                ),
            );
        }
    });
}

/// Two controllers archive a volume at once; the deletion is repeated. They are one client of NFS
/// 4.1, with directory delegations since Linux 6.19.
#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn an_archive_and_a_repeated_deletion_remove_nothing_newer() {
    let rounds = match std::env::var_os("BELAY_NIGHTLY") {
        Some(_) => 200,
        None => 20,
    };
    with_filer(newest_kernel(), |guest| {
        for (name, port) in [("other", "9811"), ("third", "9812")] {
            let start = START
                .replace("controller.sock", &format!("{name}.sock"))
                .replace("controller.log", &format!("{name}.log"))
                .replace("9810", port)
                .replace(" --nfs-adopt", "");
            run(guest, &start);
        }
        run(
            guest,
            &format!(
                "share=/
                 data={SHARE}/ns/data
                 archive={SHARE}/archived-ns/data
                 by() {{
                     belayctl --timeout 60 --endpoint /run/$1.sock --output json \\
                         controller delete --ignore-not-found $2
                 }}
                 # That of csi-driver-nfs.
                 mkdir -p $archive
                 echo old >$archive/old
                 for n in $(seq {rounds}); do
                     id=$(create pvc-$n --parameter subDir=ns/data --parameter onDelete=archive)
                     echo $n >$data/$n
                     if delete $id 2>/run/refused; then exit 1; fi
                     grep -q 'ABORTED.*archived-ns/data' /run/refused
                     mv {SHARE}/archived-ns {SHARE}/kept-$n
                     by other $id >/run/slow 2>&1 3>&- &
                     slow=$!
                     by third $id || true
                     wait $slow || true
                     {}
                     [ \"$(ls $archive)\" = $n ]
                     [ $(cat $archive/$n) = $n ]
                     [ -z \"$(find {SHARE}/.belay/trash -type f)\" ]
                     # The answer was lost, and another program uses the directory.
                     mkdir -p $data
                     echo precious >$data/file
                     if by other $id 2>/run/refused; then exit 1; fi
                     grep -q 'FAILED_PRECONDITION.*--nfs-adopt' /run/refused
                     [ $(cat $data/file) = precious ]
                     rm -r $data
                 done
                 [ $(cat {SHARE}/kept-1/data/old) = old ]",
                until("by other $id")
            ),
        );
    });
}
