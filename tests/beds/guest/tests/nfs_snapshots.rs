//! Snapshots and restores by the controller's backend `nfs` in guests, with a real NFS server.

use belay_guest::Guest;

use crate::filer::SHARE;
use crate::nfs_clones::{kills, prepare};
use crate::nfs_controller::{fails, run, with_filer};
use crate::rig::{kernels, kernels_or, newest_kernel, until};

/// `cut NAME VOLUME ...` creates a snapshot and prints its ID, `discard ID` deletes it; `unpack`
/// does what csi-driver-nfs does to restore one, with its tar command. In `/run/snapshots.sh`,
/// since a script has room for few functions.
const FUNCTIONS: &str = "\
. /run/files.sh
share=${share:-/}
# Not cut(1).
cut() {
    local made
    made=$(controller snapshot-create \"$@\") &&
        sed -n 's/.*\"snapshot_id\": *\"\\([^\"]*\\)\".*/\\1/p' <<<\"$made\"
}
discard() { controller snapshot-delete --ignore-not-found \"$@\"; }
unpack() { mkdir -p $2 && tar -xzf $1 -C $2 2>/run/tar.log; }
nothing_left() {
    [ -z \"$(ls {SHARE}/.belay/trash {SHARE}/.belay/snapshots 2>/dev/null | grep -v :)\" ]
}
";

const SETUP: &str = ". /run/snapshots.sh";

/// A snapshot of `pvc-1` in `/run/archived.sh`, by that version of NFS.
const ARCHIVED: &str = "\
part=$(sed 's,^/,,' <<<$share)
source=10.9.0.1#$part#pvc-1##
echo mountoptions=nfsvers=$version >/run/secret
how='--secrets-from /run/secret'
id=$(cut cut-1 $source $how)
[ $id = 10.9.0.1#$part#cut-1#cut-1#pvc-1 ]
file={SHARE}/cut-1/pvc-1.tar.gz
[ $(stat -c %s $file) -lt 12000000 ]
before=$(stat -c '%i %Y %s' $file)
controller snapshot-create cut-1 $source $how >/run/first
echo more >{SHARE}/pvc-1/later
controller snapshot-create cut-1 $source $how >/run/second
rm {SHARE}/pvc-1/later
touch -d '2001-02-03 04:05:06.789' {SHARE}/pvc-1
diff /run/first /run/second
[ \"$(stat -c '%i %Y %s' $file)\" = \"$before\" ]
";

/// Its restore, in `/run/restored.sh`.
const RESTORED: &str = "\
flags=\"--mount-flag nfsvers=$version --from-snapshot $id $how --parameter subDir=ns/data\"
volume=$(create pvc-2 $flags)
[ $(create pvc-2 $flags) = $volume ]
alike {SHARE}/pvc-1 {SHARE}/ns/data
[ {SHARE}/ns/data/a/noise -ef {SHARE}/ns/data/a/b/link ]
[ $(du -k {SHARE}/ns/data/sparse | command cut -f1) -lt 1000 ]
if [ $version = 4.2 ]; then
    [ \"$(origin {SHARE}/ns/data/a/noise)\" = \"b'here'\" ]
fi
unpack $file /run/unpacked
cmp {SHARE}/pvc-1/a/b/link /run/unpacked/a/b/link
cmp {SHARE}/pvc-1/sparse /run/unpacked/sparse
rm -r /run/unpacked
delete $volume $how
discard $id $how
discard $id $how
[ ! -e {SHARE}/cut-1 ]
nothing_left
";

/// One by the tar command of csi-driver-nfs, compressed or not, whole or half.
const FOREIGN: &str = "\
flags=-cf; [ $suffix = tar ] || flags=-czf
file={SHARE}/cut-3/pvc-1.$suffix
mkdir {SHARE}/cut-3
tar -C {SHARE}/pvc-1 $flags $file .
sum=$(sha256sum <$file)
id=$(cut cut-3 10.9.0.1##pvc-1##)
[ \"$(sha256sum <$file)\" = \"$sum\" ]
volume=$(create pvc-5 --from-snapshot $id)
diff -r --no-dereference --exclude=fifo --exclude=device {SHARE}/pvc-1 {SHARE}/pvc-5
[ $(stat -c %u:%g:%a {SHARE}/pvc-5/a/noise) = 1234:2345:4711 ]
[ {SHARE}/pvc-5/a/noise -ef {SHARE}/pvc-5/a/b/link ]
[ -p {SHARE}/pvc-5/fifo ]
[ $(du -k {SHARE}/pvc-5/sparse | command cut -f1) -lt 1000 ]
delete $volume
truncate -s 100000 $file
# Not final: an earlier call has succeeded.
! cut cut-3 10.9.0.1##pvc-1## 2>/run/refused
grep -q 'ABORTED.*not complete' /run/refused
! create pvc-5 --from-snapshot $id 2>/run/refused
grep -q FAILED_PRECONDITION /run/refused
[ ! -e {SHARE}/pvc-5 ]
discard $id
[ ! -e {SHARE}/cut-3 ]
";

/// Creates the source of all snapshots, and the scripts.
fn prepare_source(guest: &mut Guest<'_>, more: u32) {
    prepare(guest, more);
    for (name, script) in [
        ("snapshots", FUNCTIONS),
        ("archived", ARCHIVED),
        ("restored", RESTORED),
        ("foreign", FOREIGN),
    ] {
        let script = script.replace("{SHARE}", SHARE);
        run(guest, &format!("cat >/run/{name}.sh <<'END'\n{script}END"));
    }
}

#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_volume_is_archived_and_restored_by_every_version() {
    for kernel in kernels() {
        with_filer(kernel, |guest| {
            prepare_source(guest, 0);
            for version in ["3", "4.0", "4.1", "4.2"] {
                let share = if version == "3" { SHARE } else { "/" };
                let set = format!("share={share} version={version}\n{SETUP}");
                run(
                    guest,
                    &format!("{set}\n. /run/archived.sh\n. /run/restored.sh"),
                );
            }
            // The class chooses the share, where csi-driver-nfs has a volume.
            run(
                guest,
                &format!(
                    "{SETUP}
                     fill {SHARE}/vol1/old
                     id=$(cut cut-2 10.9.0.1#vol1#old## --parameter Share=/vol2 \\
                         --parameter mountOptions=nfsvers=4.1)
                     [ $id = 10.9.0.1#vol2#cut-2#cut-2#old ]
                     [ -e {SHARE}/vol2/cut-2/old.tar.gz ]
                     volume=$(create pvc-3 --from-snapshot $id)
                     alike {SHARE}/vol1/old {SHARE}/pvc-3
                     delete $volume
                     discard $id"
                ),
            );
            for suffix in ["tar.gz", "tar"] {
                run(
                    guest,
                    &format!("suffix={suffix}\n{SETUP}\n. /run/foreign.sh"),
                );
            }
            refusals(guest);
        });
    }
}

fn refusals(guest: &mut Guest<'_>) {
    for (script, words) in [
        ("cut x 10.9.0.1##none##", "NOT_FOUND"),
        ("cut x nonsense", "NOT_FOUND"),
        ("cut a/b 10.9.0.1##pvc-1##", "INVALID_ARGUMENT"),
        ("cut .belay 10.9.0.1##pvc-1##", "INVALID_ARGUMENT"),
        (
            "cut x 10.9.0.1##pvc-1## --parameter server=filer",
            "INVALID_ARGUMENT",
        ),
        (
            "cut x 10.9.0.1##pvc-1## --parameter tier=1",
            "INVALID_ARGUMENT",
        ),
        ("cut x 10.9.0.1##vol1/old##", "FAILED_PRECONDITION"),
        ("controller snapshot-list", "UNIMPLEMENTED"),
        (
            "create pvc-4 --from-snapshot 10.9.0.1##x#x#pvc-1",
            "NOT_FOUND",
        ),
        ("discard 10.9.0.1##..#..#pvc-1", "FAILED_PRECONDITION"),
    ] {
        let text = fails(guest, &format!("{SETUP}\n{script}"));
        assert!(text.contains(words), "{script}: {text}");
    }
    run(guest, &format!("{SETUP}\ndiscard nonsense\nnothing_left"));
}

/// The controller and its workers are killed at any moment; the same calls, repeated, end well.
#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_snapshot_and_its_restore_are_whole_whatever_is_killed() {
    for kernel in kernels_or(newest_kernel()) {
        with_filer(kernel, |guest| {
            prepare_source(guest, 100);
            for kill in kills() {
                run(
                    guest,
                    &format!(
                        "{SETUP}
                         {kill}
                         cuts() {{ id=$(cut cut-1 10.9.0.1##pvc-1##); }}
                         restores() {{ create pvc-2 --from-snapshot $id; }}
                         victim 3>&- &
                         cuts || true
                         again
                         file={SHARE}/cut-1/pvc-1.tar.gz
                         if [ -e $file ]; then tar -tzf $file >/dev/null; fi
                         {}
                         victim 3>&- &
                         restores || true
                         again
                         if [ -e {SHARE}/pvc-2 ]; then alike {SHARE}/pvc-1 {SHARE}/pvc-2; fi
                         {}
                         alike {SHARE}/pvc-1 {SHARE}/pvc-2
                         delete 10.9.0.1##pvc-2##
                         discard $id
                         [ ! -e {SHARE}/pvc-2 ]
                         [ ! -e {SHARE}/cut-1 ]
                         nothing_left",
                        until("cuts"),
                        until("restores"),
                    ),
                );
            }
        });
    }
}
