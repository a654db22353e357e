//! The controller's backend `nfs` in guests, with a real NFS server: its worker processes mount,
//! and no other process sees it.

use belay_guest::{Guest, Kernel};

use crate::belay::call;
use crate::filer::{self, SHARE};
use crate::rig::{boot, kernels, kernels_or, machine_with_state, newest_kernel, until};
use crate::sanity::csi_sanity;

/// The shell setup of a call: `controller` calls the controller, `create NAME ...` creates a
/// volume of the server and prints its ID, `delete ID` deletes it.
const SETUP: &str = "\
controller() {
    belayctl --timeout 60 --endpoint /run/controller.sock --output json controller \"$@\"
}
nfs() { belayctl --timeout 60 --endpoint /run/nfs.sock --output json node \"$@\"; }
id_of() { sed -n 's/.*\"volume_id\": *\"\\([^\"]*\\)\".*/\\1/p'; }
create() {
    local name=$1
    shift
    local created
    created=$(controller create $name --size 1GiB --parameter server=10.9.0.1 \\
        --parameter share=${share:-/} \"$@\") && id_of <<<\"$created\"
}
delete() { controller delete --ignore-not-found \"$@\"; }
refuses() {
    if create \"$@\" 2>/run/refused; then return 1; fi
    grep -q ALREADY_EXISTS /run/refused
}
workers() { pgrep -fc -- --nfs-worker-process; }
";

pub(crate) const START: &str = "\
setsid belay-controller --endpoint /run/controller.sock --backend nfs --nfs-adopt \\
    --http-endpoint 127.0.0.1:9810 >>/run/controller.log 2>&1 3>&- &
ready /run/controller.sock >/dev/null 2>&1 || { cat /run/controller.log; exit 1; }";

const NODE: &str = "\
mkdir -p /pods
setsid belay-node --driver-kind nfs --endpoint /run/nfs.sock --node-name guest \\
    >>/run/node.log 2>&1 3>&- &
ready /run/nfs.sock >/dev/null 2>&1 || { cat /run/node.log; exit 1; }";

#[track_caller]
pub(crate) fn run(guest: &mut Guest<'_>, script: &str) -> String {
    call(guest, &format!("{SETUP}{script}")).expect("power")
}

/// The output of a script that fails.
#[track_caller]
pub(crate) fn fails(guest: &mut Guest<'_>, script: &str) -> String {
    run(guest, &format!("! {{ {script}; }} 2>&1"))
}

pub(crate) fn with_filer(kernel: Kernel, test: impl FnOnce(&mut Guest<'_>)) {
    let (machine, _) = machine_with_state(kernel, "ext4");
    let mut guest = boot(&machine);
    filer::start(&mut guest);
    run(&mut guest, START);
    test(&mut guest);
    run(&mut guest, &until("[ $(workers) = 0 ]"));
    let visible = "! grep -E ' - nfs4? ' /proc/*/mountinfo";
    run(&mut guest, visible);
}

#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_volume_is_created_published_and_deleted_by_every_version() {
    for kernel in kernels() {
        with_filer(kernel, |guest| {
            run(guest, NODE);
            for version in ["3", "4.0", "4.1", "4.2"] {
                let share = if version == "3" { SHARE } else { "/" };
                run(guest, &format!("share={share}\n{}", lifecycle(version)));
            }
            policies(guest);
            capacity(guest);
            refusals(guest);
        });
    }
}

/// One of a class with a mode, with a mount flag; the second call finds it.
fn lifecycle(version: &str) -> String {
    format!(
        "flags=\"--mount-flag nfsvers={version} --parameter mountPermissions=0770\"
         id=$(create pvc-1 $flags)
         [ $id = \"10.9.0.1#$(sed 's,^/,,' <<<$share)#pvc-1##\" ]
         [ $(create pvc-1 $flags) = $id ]
         [ $(stat -c %a {SHARE}/pvc-1) = 770 ]
         ! grep -qE ' - nfs4? ' /proc/$(pgrep -x belay-controlle)/mountinfo
         mkdir -p /pods/v
         nfs publish $id --target /pods/v/mount --mount-flag nfsvers={version} \\
             --mount-flag nolock --volume-context server=10.9.0.1 \\
             --volume-context share=$share --volume-context subDir=pvc-1
         mkdir -p /pods/v/mount/a/b
         echo {version} >/pods/v/mount/a/b/file
         ln -s / /pods/v/mount/link
         nfs unpublish $id --target /pods/v/mount
         [ $(cat {SHARE}/pvc-1/a/b/file) = {version} ]
         echo mountoptions=nfsvers={version} >/run/secret
         delete $id --secrets-from /run/secret
         delete $id --secrets-from /run/secret
         [ ! -e {SHARE}/pvc-1 ]
         [ -z \"$(ls {SHARE}/.belay/claims {SHARE}/.belay/trash | grep -v :)\" ]"
    )
}

fn policies(guest: &mut Guest<'_>) {
    run(
        guest,
        &format!(
            "share=/
             archived=$(create pvc-2 --parameter onDelete=archive --parameter subDir=ns/data)
             [ $archived = 10.9.0.1##ns/data#pvc-2#archive ]
             retained=$(create pvc-3 --parameter ondelete=Retain)
             [ $retained = 10.9.0.1##pvc-3##Retain ]
             echo 2 >{SHARE}/ns/data/file
             echo 3 >{SHARE}/pvc-3/file
             delete $archived
             delete $archived
             delete $retained
             [ $(cat {SHARE}/archived-ns/data/file) = 2 ]
             [ $(cat {SHARE}/pvc-3/file) = 3 ]
             # Neither becomes a new volume.
             refuses pvc-3
             refuses pvc-5 --parameter subDir=pvc-3/x
             refuses pvc-5 --parameter subDir=archived-ns/data
             refuses pvc-5 --parameter subDir=archived-ns/data/x
             mv {SHARE}/pvc-3 {SHARE}/kept
             delete $(create pvc-3)
             [ $(cat {SHARE}/kept/file) = 3 ]
             # As csi-driver-nfs has made it.
             mkdir -p {SHARE}/old/pvc
             echo 4 >{SHARE}/old/pvc/file
             controller expand 10.9.0.1##old/pvc#pvc-4# --size 5GiB
             delete 10.9.0.1##old/pvc#pvc-4#
             [ ! -e {SHARE}/old ]"
        ),
    );
}

/// The room is what the server's filesystem has, and less once it has a file.
fn capacity(guest: &mut Guest<'_>) {
    run(
        guest,
        &format!(
            r#"room() {{
                 controller capacity --parameter server=10.9.0.1 --parameter share=/ |
                     sed -n 's/.*"available_capacity": *"\{{0,1\}}\([0-9]*\).*/\1/p'
             }}
             free() {{ sync -f {SHARE}; echo $(($(stat -f -c '%a * %S' {SHARE}))); }}
             # NFS counts in larger blocks.
             is_that_of_the_server() {{
                 local room=$(room) free=$(free)
                 [ $((room - free)) -lt 262144 ] && [ $((free - room)) -lt 262144 ] ||
                     {{ echo "$room $free"; return 1; }}
             }}
             is_that_of_the_server
             before=$(free)
             dd if=/dev/urandom of={SHARE}/large bs=1M count=8 status=none
             [ $(free) -lt $((before - 4194304)) ]
             is_that_of_the_server
             rm {SHARE}/large
             [ "$(controller capacity | grep -c 'capacity.*[1-9]')" = 0 ]"#
        ),
    );
}

fn refusals(guest: &mut Guest<'_>) {
    let before = run(guest, &format!("ls -A {SHARE}"));
    for (script, words) in [
        ("create pvc-5 --parameter subDir=vol1", "ALREADY_EXISTS"),
        ("create pvc-5 --parameter subDir=../x", "INVALID_ARGUMENT"),
        ("create pvc-5 --parameter subdri=x", "INVALID_ARGUMENT"),
        ("share=/nowhere create pvc-5", "does not have that share"),
        ("create pvc-5 --mount-flag nfsvers=4.9", "mount option"),
        ("create pvc-5 --block", "INVALID_ARGUMENT"),
        ("controller list", "UNIMPLEMENTED"),
        (
            "controller capacity --parameter server=10.9.0.1",
            "share: is required",
        ),
        (
            "controller capacity --parameter server=10.9.0.1 --parameter share=/nowhere",
            "does not have that share",
        ),
        (
            "controller capacity --parameter server=10.9.0.99 --parameter share=/",
            "UNAVAILABLE",
        ),
        ("controller get 10.9.0.1##pvc-5##", "NOT_FOUND"),
        ("controller get nonsense", "NOT_FOUND"),
        ("delete '10.9.0.1#../..#x##'", "share: has the part"),
        ("delete 10.9.0.1####", "FAILED_PRECONDITION"),
        ("delete 10.9.0.1##vol1/.#pvc-5#", "FAILED_PRECONDITION"),
        ("delete 10.9.0.1##vol1#pvc-5##", "FAILED_PRECONDITION"),
    ] {
        let text = fails(guest, script);
        assert!(text.contains(words), "{script}: {text}");
    }
    assert_eq!(run(guest, &format!("ls -A {SHARE}")), before);
    run(guest, "delete nonsense");
}

/// The controller and its workers are killed at any moment; the same call, repeated, ends well.
#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn kills_of_controller_and_workers_leave_nothing_behind() {
    let rounds = match std::env::var_os("BELAY_NIGHTLY") {
        Some(_) => 12,
        None => 4,
    };
    for kernel in kernels_or(newest_kernel()) {
        with_filer(kernel, |guest| {
            for (round, victim) in ["-x belay-controlle", "-f -- --nfs-worker-process"]
                .iter()
                .cycle()
                .take(rounds)
                .enumerate()
            {
                // From before the mount to after the answer.
                let pause = format!("0.{:02}", round * 72 / rounds);
                run(
                    guest,
                    &format!(
                        "share=/
                         running() {{ pgrep -x belay-controlle >/dev/null; }}
                         victim() {{ sleep {pause}; pkill -KILL {victim} || true; }}
                         again() {{ wait $!; sleep 0.2; running || {{ {START}
                             }}; }}
                         id=10.9.0.1##ns/data#pvc-1#
                         victim 3>&- &
                         create pvc-1 --parameter subDir=ns/data || true
                         again
                         [ $(create pvc-1 --parameter subDir=ns/data) = $id ]
                         for n in $(seq 20); do
                             mkdir {SHARE}/ns/data/$n
                             echo $n >{SHARE}/ns/data/$n/file
                         done
                         victim 3>&- &
                         delete $id || true
                         again
                         delete $id
                         [ ! -e {SHARE}/ns ]
                         [ -z \"$(ls {SHARE}/.belay/trash)\" ]"
                    ),
                );
            }
            let left = run(
                guest,
                &format!("ls {SHARE}/.belay/claims {SHARE}/.belay/tmp | grep -v : || true"),
            );
            assert_eq!(left.trim(), "");
        });
    }
}

/// Begins to create a volume: the server answers, but changes nothing.
const BEGIN: &str = "\
fsfreeze -f /srv/nfs
(belayctl --timeout 110 --endpoint /run/controller.sock controller create begun --size 1GiB \\
    --parameter server=10.9.0.1 --parameter share=/ >/run/begun 2>&1 3>&- &)
sleep 2
[ $(workers) = 1 ]";

/// A creation whose mount waits for the server longer than its call.
const NEVER: &str = "\
belayctl --timeout 110 --endpoint /run/controller.sock controller create never --size 1GiB \
    --parameter server=10.9.0.1 --parameter share=/ --mount-flag hard";

#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_server_that_does_not_answer_delays_only_its_own_calls() {
    for kernel in kernels_or(newest_kernel()) {
        with_filer(kernel, |guest| {
            let id = run(guest, "share=/ create pvc-1");
            let id = id.trim();
            run(guest, BEGIN);
            filer::cut(guest);
            let text = fails(
                guest,
                &format!(
                    "belayctl --timeout 110 --endpoint /run/controller.sock controller delete {id}"
                ),
            );
            assert!(
                text.contains("UNAVAILABLE") || text.contains("DEADLINE_EXCEEDED"),
                "{text}"
            );
            // Not final: the provisioner would forget what the first call may have created.
            let is_open = |text: &str| {
                let codes = ["UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED"];
                codes.iter().any(|code| text.contains(*code))
            };
            let ended = until("grep -q '^belayctl: ' /run/begun");
            let first = run(guest, &format!("{ended}; cat /run/begun"));
            assert!(is_open(&first), "{first}");
            // The directory is free: it is the name that the second call is refused by.
            run(guest, &until("[ $(workers) = 0 ]"));
            let again = fails(guest, "share=/ create begun");
            assert!(is_open(&again), "{again}");
            assert!(!again.contains("another call is changing it"), "{again}");
            // Final: it is killed before it has mounted the share.
            for _ in 0..2 {
                let never = fails(guest, NEVER);
                assert!(never.contains("INTERNAL"), "{never}");
                assert!(never.contains("was not mounted within"), "{never}");
            }
            // The controller answers meanwhile.
            run(
                guest,
                "(create pvc-2 >/dev/null 2>&1 3>&- &)
                 belayctl --timeout 5 --endpoint /run/controller.sock identity probe",
            );
            filer::join(guest);
            run(
                guest,
                &format!(
                    "fsfreeze -u {SHARE}
                     {}
                     {}
                     delete 10.9.0.1##pvc-2##
                     [ ! -e {SHARE}/pvc-1 ]
                     share=/
                     {}",
                    until("[ $(workers) = 0 ]"),
                    until(&format!("delete {id}")),
                    until("create begun"),
                ),
            );
        });
    }
}

/// csi-sanity, the official suite, on controller and node agent.
#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn csi_sanity_passes_with_a_real_server() {
    with_filer(newest_kernel(), |guest| {
        run(guest, NODE);
        let parameters = "server: 10.9.0.1\nshare: /";
        let passed = csi_sanity(guest, "/run/nfs.sock", parameters, "");
        passed.is_complete();
        run(
            guest,
            &format!("[ -z \"$(ls {SHARE}/.belay/{{claims,snapshots,trash}} | grep -v :)\" ]"),
        );
    });
}
