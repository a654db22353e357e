//! Volumes of an NFS server in guests: the node agent mounts them, and a server that does not
//! answer affects only them.

use std::time::{Duration, Instant};

use belay_guest::{Guest, Kernel};
use serde_json::Value;

use crate::belay::{Volume, call};
use crate::filer::{self, ADDRESS, SHARE};
use crate::rig::{boot, kernels, kernels_or, machine_with_state, newest_kernel, until};

/// The shell setup of a call: `nfs` calls the driver, `publish ID DIRECTORY ...` mounts a directory
/// of the server for a pod of the same name.
pub(crate) const SETUP: &str = "\
nfs() { belayctl --endpoint /run/nfs.sock --output json node \"$@\"; }
target() { echo /pods/nfs/$1/mount; }
publish() {
    local id=$1 directory=$2
    shift 2
    mkdir -p /pods/nfs/$id
    nfs publish $id --target $(target $id) --volume-context server=${server:-10.9.0.1} \\
        --volume-context share=${share:-/} --volume-context subDir=$directory \"$@\"
}
unpublish() { nfs unpublish $1 --target $(target $1); }
stats() { nfs stats $1 --path $(target $1); }
# Without one, pgrep prints 0 and fails.
helpers() { pgrep -fc -- --helper-process || true; }
shown() { grep \" $(target $1) \" /proc/self/mountinfo; }
";

/// Both drivers in one agent, and the controller of `local`.
pub(crate) const START: &str = "\
mkdir -p /state/belay /pods/nfs
pgrep -x belay-controlle >/dev/null ||
    setsid belay-controller --endpoint /run/controller.sock --node-id guest \\
        --state-dir /state/belay >>/run/controller.log 2>&1 3>&- &
ready /run/controller.sock >/dev/null 2>&1 || { cat /run/controller.log; exit 1; }
setsid belay-node --endpoint /run/node.sock --node-id guest --http-endpoint 127.0.0.1:9808 \\
    --loop-dir /state/belay/volumes --next-driver --driver-kind nfs --endpoint /run/nfs.sock \\
    --node-id guest >>/run/node.log 2>&1 3>&- &
for socket in node nfs; do
    ready /run/$socket.sock >/dev/null 2>&1 || { cat /run/node.log; exit 1; }
done";

#[track_caller]
pub(crate) fn run(guest: &mut Guest<'_>, script: &str) -> String {
    call(guest, &format!("{SETUP}{script}")).expect("power")
}

/// The output of a script that fails.
#[track_caller]
fn fails(guest: &mut Guest<'_>, script: &str) -> String {
    run(guest, &format!("! {{ {script}; }} 2>&1"))
}

#[track_caller]
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) fn with_filer(kernel: Kernel, test: impl FnOnce(&mut Guest<'_>)) {
    let (machine, _) = machine_with_state(kernel, "ext4");
    let mut guest = boot(&machine);
    filer::start(&mut guest);
    run(&mut guest, START);
    test(&mut guest);
    let left = run(
        &mut guest,
        "grep -c ' /pods/nfs/' /proc/self/mountinfo || true",
    );
    assert_eq!(left, "0", "mounts are left");
    run(&mut guest, &until("[ $(helpers) = 0 ]"));
}

#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn every_version_is_mounted_written_and_unmounted() {
    for kernel in kernels() {
        with_filer(kernel, |guest| {
            versions(guest);
            options(guest);
            refusals(guest);
            mounts_of_others(guest);
            old_server(guest);
        });
    }
}

fn versions(guest: &mut Guest<'_>) {
    for (version, shown) in [
        ("3", "vers=3"),
        ("4.0", "vers=4.0"),
        ("4.1", "vers=4.1"),
        ("4.2", "vers=4.2"),
    ] {
        let flags = format!("--mount-flag nfsvers={version} --mount-flag nolock");
        let share = if version == "3" { SHARE } else { "/" };
        run(
            guest,
            &format!(
                "share={share}
                 publish v vol1 {flags}
                 shown v | grep {shown}
                 echo {version} >$(target v)/file
                 publish v vol1 {flags}
                 [ $(shown v | wc -l) = 1 ]
                 [ $(cat {SHARE}/vol1/file) = {version} ]
                 unpublish v
                 unpublish v
                 [ ! -e $(target v) ]"
            ),
        );
    }
    // The negotiation selects the best version; the best of 4 is not 4.0.
    for flags in ["", "--mount-flag vers=4"] {
        run(
            guest,
            &format!("publish v vol1 {flags}\nshown v | grep vers=4.2\nunpublish v"),
        );
    }
}

/// The server has no version 4 from now on.
fn old_server(guest: &mut Guest<'_>) {
    run(
        guest,
        &format!(
            ". /run/filer.sh
             inside rpc.nfsd 0
             inside rpc.nfsd -N 4 4
             share={SHARE} publish v vol1 --mount-flag nolock
             shown v | grep vers=3
             unpublish v"
        ),
    );
}

fn options(guest: &mut Guest<'_>) {
    run(
        guest,
        &format!(
            "publish r vol2 --mode MULTI_NODE_READER_ONLY
             publish w vol3 --mount-flag noatime,_netdev
             shown r | grep ' ro,'
             if touch $(target r)/x 2>/dev/null; then exit 1; fi
             shown w | grep noatime
             touch $(target w)/x
             [ -e {SHARE}/vol3/x ]
             [ ! -e {SHARE}/vol2/x ]
             unpublish r
             touch $(target w)/y
             unpublish w
             publish p vol4 --volume-context mountPermissions=0751
             [ $(stat -c %a {SHARE}/vol4) = 751 ]
             unpublish p"
        ),
    );
    run(guest, "publish s vol1");
    let stats = json(&run(guest, "stats s"));
    assert!(
        stats["usage"][0]["total"]
            .as_u64()
            .is_some_and(|bytes| bytes > 100 << 20),
        "{stats}"
    );
    assert_eq!(stats["volume_condition"]["abnormal"], false, "{stats}");
    run(guest, "unpublish s");
}

fn refusals(guest: &mut Guest<'_>) {
    for (publish, why) in [
        ("publish v nothing-there", "NOT_FOUND"),
        ("publish v vol1 --mount-flag odd", "odd"),
        ("publish v ../etc", "INVALID_ARGUMENT"),
        (
            "publish v vol1 --mount-flag nfsvers=4.9",
            "INVALID_ARGUMENT",
        ),
        ("publish v vol1 --block", "INVALID_ARGUMENT"),
    ] {
        let said = fails(guest, publish);
        assert!(said.contains(why), "{publish}: {said}");
        run(guest, "if shown v; then exit 1; fi");
    }
    // The port of a server that serves nothing.
    let said = fails(
        guest,
        "publish v vol1 --mount-flag port=9,soft,timeo=10,retrans=1",
    );
    assert!(said.contains("UNAVAILABLE"), "{said}");
    run(guest, "unpublish v");
}

/// Mounts with mount(8) as csi-driver-nfs does, and as other programs do.
fn mounts_of_others(guest: &mut Guest<'_>) {
    run(
        guest,
        &format!(
            ". /run/filer.sh
             mkdir -p $(target v) $(target o)
             mount.nfs {ADDRESS}:/vol1 $(target v) -o nfsvers=4.1
             mount.nfs {ADDRESS}:/vol2 $(target o) -o nfsvers=4.1
             publish v vol1
             [ $(shown v | wc -l) = 1 ]
             stats v
             unpublish v"
        ),
    );
    let said = fails(guest, "publish o vol1");
    assert!(said.contains("ALREADY_EXISTS"), "{said}");
    run(guest, "unpublish o");
    run(
        guest,
        "mkdir -p $(target o)\nmount -t tmpfs tmpfs $(target o)",
    );
    let said = fails(guest, "unpublish o");
    assert!(said.contains("FAILED_PRECONDITION"), "{said}");
    run(guest, "umount $(target o)\nunpublish o");
}

#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_server_that_does_not_answer_hurts_its_own_volumes_alone() {
    for kernel in kernels() {
        with_filer(kernel, |guest| {
            let local = local_volume(guest);
            run(
                guest,
                "for n in 1 2 3 4; do publish v$n vol$n; done
                 publish last vol5 --mount-flag nosharecache --mount-flag nfsvers=4.1
                 stats v1
                 stats v2
                 head -c 3M /dev/urandom >/run/bytes
                 cp /run/bytes $(target v1)/bytes
                 sync $(target v1)/bytes",
            );
            filer::cut(guest);
            // A writer whose bytes are not on the server, and a pod that keeps a file open.
            run(
                guest,
                "(setsid dd if=/run/bytes of=$(target v1)/late bs=1M conv=fsync \\
                    >/run/dd.log 2>&1 3>&- &)
                 sleep 1",
            );
            answers(guest, &local);
            unpublishes(guest);
            hangs(guest, &local);
            filer::join(guest);
            run(
                guest,
                &format!(
                    "{}
                     cmp /run/bytes {SHARE}/vol1/bytes
                     cmp /run/bytes {SHARE}/vol1/late
                     stats v3 | grep '\"abnormal\": *false'
                     unpublish v3
                     unpublish v4",
                    until(&format!("cmp -s /run/bytes {SHARE}/vol1/late"))
                ),
            );
            local.unpublish(guest).expect("power");
            local.unstage(guest).expect("power");
        });
    }
}

pub(crate) fn local_volume(guest: &mut Guest<'_>) -> Volume {
    let local = Volume::create(guest, "beside", "ext4", 64).expect("power");
    local.stage(guest).expect("power");
    local.publish(guest).expect("power");
    local
}

/// Statistics are answered with the last usage, and the other driver does not notice.
fn answers(guest: &mut Guest<'_>, local: &Volume) {
    let stats = json(&run(guest, "stats v2"));
    assert!(
        stats["usage"][0]["total"]
            .as_u64()
            .is_some_and(|bytes| bytes > 0),
        "{stats}"
    );
    let condition = &stats["volume_condition"];
    assert_eq!(condition["abnormal"], true, "{stats}");
    assert!(
        condition["message"]
            .as_str()
            .is_some_and(|text| text.contains("ServerUnreachable")),
        "{stats}"
    );
    assert!(local.total(guest).expect("power") > 0);
    let metrics = crate::belay::metrics(guest).expect("power");
    let unhealthy = "reason=\"ServerUnreachable\"} 1";
    assert!(metrics.contains(unhealthy), "no {unhealthy}: {metrics}");
}

/// A pod ends although its volume's server does not answer: in use, with unwritten data, or alone.
fn unpublishes(guest: &mut Guest<'_>) {
    for volume in ["v1", "v2", "last"] {
        let begun = Instant::now();
        run(
            guest,
            &format!("unpublish {volume}\n[ ! -e $(target {volume}) ]"),
        );
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(40), "{volume}: {took:?}");
    }
}

/// Calls that hang are cancelled, however many they are, and cost the other driver nothing.
fn hangs(guest: &mut Guest<'_>, local: &Volume) {
    run(
        guest,
        "for n in $(seq 20); do (publish h$n vol6 >/run/h$n.log 2>&1 3>&- &) ; done; sleep 3",
    );
    // 6 helpers may mount, of 20 calls.
    let helpers = run(guest, "helpers");
    assert_eq!(helpers, "6", "helper processes");
    for _ in 0..5 {
        assert!(local.total(guest).expect("power") > 0);
    }
    // An agent that is killed meanwhile leaves no process, and no mount.
    run(
        guest,
        &format!(
            "pkill -KILL -x belay-node; sleep 1; {}\n{START}",
            until("[ $(helpers) = 0 ]")
        ),
    );
    run(
        guest,
        "if grep ' /pods/nfs/h' /proc/self/mountinfo; then exit 1; fi
         shown v3
         shown v4",
    );
    assert!(local.total(guest).expect("power") > 0);
}

#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn an_agent_is_replaced_under_a_writer_that_does_not_notice() {
    for kernel in kernels_or(newest_kernel()) {
        with_filer(kernel, |guest| {
            run(
                guest,
                "publish v vol1
                 (setsid bash -c 'for n in $(seq 400); do
                        echo $n >>$0/log || exit; sleep 0.02
                    done' \\
                    $(target v) >/run/writer.log 2>&1 3>&- &)",
            );
            for signal in ["TERM", "KILL"] {
                run(
                    guest,
                    &format!(
                        "pkill -{signal} -x belay-node; {}\n{START}",
                        until("! pgrep -x belay-node")
                    ),
                );
                run(guest, "publish v vol1\n[ $(shown v | wc -l) = 1 ]\nstats v");
            }
            run(
                guest,
                &format!(
                    "{}
                     [ ! -s /run/writer.log ]
                     unpublish v",
                    until(&format!("[ $(wc -l <{SHARE}/vol1/log) = 400 ]"))
                ),
            );
        });
    }
}
