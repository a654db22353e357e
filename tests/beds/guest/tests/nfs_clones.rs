//! Clones by the controller's backend `nfs` in guests, with a real NFS server.

use belay_guest::Guest;

use crate::filer::SHARE;
use crate::nfs_controller::{START, fails, run, with_filer};
use crate::rig::{kernels, kernels_or, newest_kernel, until};

/// The shell functions in `/run/files.sh`: `fill DIRECTORY` creates files of all types, `alike A B`
/// compares the properties that a copy must have. A script has room for few functions.
const FILES: &str = "\
set -E
trap 'echo failed: $BASH_COMMAND' ERR
attribute() { python3 -c \"import os, sys; os.setxattr(sys.argv[1], 'user.origin', b'here')\" $1; }
origin() { python3 -c \"import os, sys; print(os.getxattr(sys.argv[1], 'user.origin'))\" $1; }
fill() {
    mkdir -p $1/a/b/c $1/empty
    head -c 5000000 /dev/urandom >$1/a/noise
    echo secret >$1/a/b/secret
    truncate -s 60M $1/sparse
    echo data | dd of=$1/sparse bs=1M seek=20 conv=notrunc status=none
    ln $1/a/noise $1/a/b/link
    ln -s ../../../etc/passwd $1/a/symbolic
    mkfifo -m 666 $1/fifo
    mknod $1/device c 1 3
    chown -h 1234:2345 $1/a/symbolic $1/a/noise $1/fifo
    chown 1000:3000 $1/a/b
    chmod 4711 $1/a/noise
    chmod 0 $1/a/b/secret
    chmod 3770 $1/a/b
    chmod 1777 $1
    attribute $1/a/noise
    find $1 -exec touch -h -d '2001-02-03 04:05:06.789' {} +
}
described() {
    (cd $1
     find . -type d -printf '%p %y %m %U %G %T@\\n' | sort
     find . ! -type d -printf '%p %y %m %U %G %T@ %n %s %l\\n' | sort
     find . -type f -exec sha256sum {} + | sort)
}
alike() {
    described $1 >/run/source
    described $2 >/run/copy
    [ -s /run/source ]
    diff /run/source /run/copy
}
";

/// Creates the source of all clones.
pub(crate) fn prepare(guest: &mut Guest<'_>, more: u32) {
    run(guest, &format!("cat >/run/files.sh <<'END'\n{FILES}END"));
    run(
        guest,
        &format!(
            ". /run/files.sh
             share=/ create pvc-1
             fill {SHARE}/pvc-1
             for n in $(seq {more}); do echo $n >{SHARE}/pvc-1/a/$n; done"
        ),
    );
}

#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_volume_is_cloned_by_every_version() {
    for kernel in kernels() {
        with_filer(kernel, |guest| {
            prepare(guest, 0);
            for version in ["3", "4.0", "4.1", "4.2"] {
                let share = if version == "3" { SHARE } else { "/" };
                run(
                    guest,
                    &format!(
                        ". /run/files.sh
                         share={share}
                         source=10.9.0.1#$(sed 's,^/,,' <<<$share)#pvc-1##
                         echo mountoptions=nfsvers={version} >/run/secret
                         flags=\"--mount-flag nfsvers={version} --from-volume $source \\
                             --secrets-from /run/secret\"
                         id=$(create pvc-2 $flags --parameter subDir=ns/data)
                         [ $(create pvc-2 $flags --parameter subDir=ns/data) = $id ]
                         alike {SHARE}/pvc-1 {SHARE}/ns/data
                         [ {SHARE}/ns/data/a/noise -ef {SHARE}/ns/data/a/b/link ]
                         [ $(du -k {SHARE}/ns/data/sparse | cut -f1) -lt 1000 ]
                         if [ {version} = 4.2 ]; then
                             [ \"$(origin {SHARE}/ns/data/a/noise)\" = \"b'here'\" ]
                         fi
                         ! create pvc-2 --parameter subDir=ns/data --mount-flag nfsvers={version} \\
                             2>/run/refused
                         grep -q 'it was created from volume' /run/refused
                         delete $id --secrets-from /run/secret
                         # The server says where its holes are, or all of it would be read.
                         truncate -s 2T {SHARE}/pvc-1/endless
                         if [ {version} = 4.2 ]; then
                             delete $(create pvc-3 $flags --parameter subDir=ns/data) \
                                 --secrets-from /run/secret
                         else
                             ! create pvc-3 $flags --parameter subDir=ns/data 2>/run/refused
                             grep -q 'FAILED_PRECONDITION.*/endless' /run/refused
                         fi
                         rm {SHARE}/pvc-1/endless
                         [ ! -e {SHARE}/ns ]
                         [ -z \"$(ls {SHARE}/.belay/trash)\" ]"
                    ),
                );
            }
            // From a share inside, where a volume of csi-driver-nfs is.
            run(
                guest,
                &format!(
                    ". /run/files.sh
                     fill {SHARE}/vol1/old
                     share=/
                     id=$(create pvc-3 --from-volume 10.9.0.1#vol1#old##)
                     alike {SHARE}/vol1/old {SHARE}/pvc-3
                     delete $id"
                ),
            );
            for (script, words) in [
                ("create pvc-4 --from-volume 10.9.0.1##none##", "NOT_FOUND"),
                (
                    "create vol2 --from-volume 10.9.0.1##pvc-1##",
                    "ALREADY_EXISTS",
                ),
                (
                    "create pvc-4 --from-volume 10.9.0.1##pvc-1## --parameter server=filer",
                    "INVALID_ARGUMENT",
                ),
            ] {
                let text = fails(guest, &format!("share=/\n{script}"));
                assert!(text.contains(words), "{script}: {text}");
            }
            let claims = run(guest, &format!("ls {SHARE}/.belay/claims | wc -l"));
            assert_eq!(claims.trim(), "1");
        });
    }
}

/// Shell functions for each round of a test: `victim` kills the controller or its workers after a
/// time, and `again` waits for that and starts the controller if it is gone.
pub(crate) fn kills() -> impl Iterator<Item = String> {
    let rounds = match std::env::var_os("BELAY_NIGHTLY") {
        Some(_) => 24,
        None => 8,
    };
    let victims = ["-x belay-controlle", "-f -- --nfs-worker-process"];
    let rounds = victims.into_iter().cycle().take(rounds).enumerate();
    rounds.map(|(round, victim)| {
        let pause = format!("{}.{:02}", round / 6, round * 16 % 100);
        format!(
            "running() {{ pgrep -x belay-controlle >/dev/null; }}
             victim() {{ sleep {pause}; pkill -KILL {victim} || true; }}
             again() {{ wait $!; sleep 0.2; running || {{ {START}
                 }}; }}"
        )
    })
}

/// The controller and its workers are killed at any moment; the same call, repeated, makes all of
/// the copy.
#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_clone_is_whole_whatever_is_killed() {
    for kernel in kernels_or(newest_kernel()) {
        with_filer(kernel, |guest| {
            prepare(guest, 100);
            for kill in kills() {
                run(
                    guest,
                    &format!(
                        ". /run/files.sh
                         share=/
                         {kill}
                         clone() {{ create pvc-2 --from-volume 10.9.0.1##pvc-1##; }}
                         victim 3>&- &
                         clone || true
                         again
                         if [ -e {SHARE}/pvc-2 ]; then alike {SHARE}/pvc-1 {SHARE}/pvc-2; fi
                         {}
                         alike {SHARE}/pvc-1 {SHARE}/pvc-2
                         delete 10.9.0.1##pvc-2##
                         [ ! -e {SHARE}/pvc-2 ]
                         [ -z \"$(ls {SHARE}/.belay/trash)\" ]",
                        until("clone")
                    ),
                );
            }
        });
    }
}

/// Its process stops for as long as the call waits.
#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_clone_that_takes_longer_than_its_call_is_made_by_the_same_process() {
    with_filer(newest_kernel(), |guest| {
        prepare(guest, 300);
        let text = fails(
            guest,
            "share=/
             stopped() {
                 until worker=$(pgrep -f -- --nfs-worker-process); do :; done
                 # The first one looks for the source.
                 while ! grep -q 'copying a volume' /run/controller.log; do sleep 0.01; done
                 until worker=$(pgrep -f -- --nfs-worker-process); do :; done
                 kill -STOP $worker
             }
             stopped 3>&- &
             belayctl --timeout 110 --endpoint /run/controller.sock controller create pvc-2 \\
                 --size 1GiB --parameter server=10.9.0.1 --parameter share=/ \\
                 --from-volume 10.9.0.1##pvc-1##",
        );
        assert!(text.contains("ABORTED"), "{text}");
        assert!(text.contains("being copied"), "{text}");
        run(
            guest,
            &format!(
                ". /run/files.sh
                 share=/
                 [ ! -e {SHARE}/pvc-2 ]
                 pkill -CONT -f -- --nfs-worker-process
                 create pvc-2 --from-volume 10.9.0.1##pvc-1##
                 alike {SHARE}/pvc-1 {SHARE}/pvc-2
                 ! grep -q 'was not copied' /run/controller.log
                 [ $(grep -c 'copied .*files=[1-9]' /run/controller.log) = 1 ]"
            ),
        );
    });
}
