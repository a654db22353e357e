//! A server that is frozen under many writers, and one that goes down and comes back: what the
//! agent serves meanwhile, and what is on the server in the end.

use std::time::{Duration, Instant};

use belay_guest::Guest;
use serde_json::Value;

use crate::belay::Volume;
use crate::filer::{self, ANOTHER, SHARE};
use crate::nfs::{self, SETUP, json, local_volume, run};
use crate::rig::{kernels_or, newest_kernel, until};

/// The volumes with writers.
const VOLUMES: u32 = 20;
/// How many times each call of the other driver is measured.
const CALLS: u32 = 400;
/// Volumes of a server that answers, mounted at once.
const AT_ONCE: u32 = 200;

/// Writes numbered records of 4 KiB, each to all volumes at the same time. A number is in
/// `/run/acks/VOLUME` after fsync(2) has returned.
const WRITERS: &str = r"
import os, sys, threading, time

def write(volume):
    number = 0
    with open(f'/pods/nfs/{volume}/mount/records', 'ab', 0) as file, \
            open(f'/run/acks/{volume}', 'w', 1) as acks:
        while not os.path.exists('/run/stop'):
            number += 1
            record = b'%d\n' % number
            file.write(record + b'.' * (4095 - len(record)) + b'\n')
            os.fsync(file.fileno())
            print(number, file=acks)
            time.sleep(0.2)

threads = [threading.Thread(target=write, args=(volume,)) for volume in sys.argv[1:]]
for thread in threads: thread.start()
for thread in threads: thread.join()
";

/// Exits with 1 and names the volume if a record is missing that was acknowledged.
const CHECK: &str = r"
import sys

share = sys.argv[1]
for volume in sys.argv[2:]:
    acked = [int(line) for line in open(f'/run/acks/{volume}')]
    with open(f'{share}/vol{volume[1:]}/records', 'rb') as file:
        data = file.read()
    starts = range(0, len(data) // 4096 * 4096, 4096)
    found = [int(data[at:at + 4096].split(b'\n')[0]) for at in starts]
    if not acked or found[:len(acked)] != acked:
        sys.exit(f'{volume}: {len(acked)} records acknowledged, the server has {found}')
print(sum(1 for _ in sys.argv[2:]))
";

/// Ten minutes in `make nightly`.
fn frozen_for() -> Duration {
    match std::env::var_os("BELAY_NIGHTLY") {
        Some(_) => Duration::from_secs(600),
        None => Duration::from_secs(60),
    }
}

fn names() -> String {
    let names: Vec<_> = (1..=VOLUMES).map(|number| format!("v{number}")).collect();
    names.join(" ")
}

fn start_writers(guest: &mut Guest<'_>, volumes: &str) {
    run(
        guest,
        &format!(
            "mkdir -p /run/acks
             rm -f /run/stop /run/acks/*
             cat >/run/writers.py <<'END'{WRITERS}END
             (setsid python3 /run/writers.py {volumes} >/run/writers.log 2>&1 3>&- &)
             for volume in {volumes}; do
                 for _ in $(seq 300); do [ -s /run/acks/$volume ] && break; sleep 0.1; done
                 [ -s /run/acks/$volume ]
             done"
        ),
    );
}

/// Each writer has written again, then stops; what was acknowledged is on the server.
fn stop_writers(guest: &mut Guest<'_>, volumes: &str) {
    let goes_on = until("[ $(wc -l </run/acks/$volume) -gt $before ]");
    run(
        guest,
        &format!(
            "for volume in {volumes}; do before=$(wc -l </run/acks/$volume); {goes_on}; done
             touch /run/stop
             {}
             [ ! -s /run/writers.log ] || {{ cat /run/writers.log; exit 1; }}
             cat >/run/check.py <<'END'{CHECK}END
             python3 /run/check.py {SHARE} {volumes}",
            until("! pgrep -f /run/writers.py >/dev/null")
        ),
    );
}

/// The times of calls to the driver `local`, in microseconds at 99 %.
fn measure(guest: &mut Guest<'_>, local: &Volume) -> u64 {
    let message = serde_json::json!({"volume_id": local.id, "volume_path": local.target()});
    let bench = format!(
        "belayctl --endpoint /run/node.sock --output json bench NodeGetVolumeStats \
             --count {CALLS} '{message}'"
    );
    let measured = json(&run(guest, &bench));
    let row = &measured["measured"][0];
    assert_eq!(row["failed"], 0, "{measured}");
    let p99 = row["p99_us"].as_u64();
    p99.unwrap_or_else(|| panic!("no p99_us: {measured}"))
}

/// Returns the number of threads, which grows while a server hangs.
fn threads(guest: &mut Guest<'_>) -> u32 {
    let threads = run(guest, "ls /proc/$(pgrep -xo belay-node)/task | wc -l");
    threads.parse().expect("a number")
}

#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_server_frozen_under_twenty_writers_loses_nothing_and_delays_no_other_driver() {
    for kernel in kernels_or(newest_kernel()) {
        nfs::with_filer(kernel, |guest| {
            filer::start_another(guest);
            let local = local_volume(guest);
            let volumes = names();
            run(
                guest,
                &format!(
                    "for volume in {volumes}; do
                         publish $volume vol${{volume#v}}
                         stats $volume
                     done >/run/published"
                ),
            );
            start_writers(guest, &volumes);
            start_statistics(guest);
            let (first, second) = (measure(guest, &local), measure(guest, &local));
            let before = threads(guest);
            filer::cut(guest);
            let begun = Instant::now();
            while_frozen(guest, &local, begun, first.max(second), before);
            filer::join(guest);
            stop_writers(guest, &volumes);
            let ended = until("unpublish h$n");
            run(
                guest,
                &format!(
                    "for volume in {volumes}; do unpublish $volume; done
                     for n in $(seq 20); do {ended}; done"
                ),
            );
            local.unpublish(guest).expect("power");
            local.unstage(guest).expect("power");
        });
    }
}

/// Reads the statistics of all volumes like a kubelet, one after the other, before and while the
/// server hangs.
fn start_statistics(guest: &mut Guest<'_>) {
    run(
        guest,
        &format!(
            "cat >/run/load.sh <<'END'
{SETUP}
while [ ! -e /run/thawed ]; do
    for n in $(seq {VOLUMES}); do stats v$n; sleep 0.2; done
done
END
             (PATH=/belay:$PATH setsid bash /run/load.sh >/run/load.log 2>&1 3>&- &)"
        ),
    );
}

fn while_frozen(guest: &mut Guest<'_>, local: &Volume, begun: Instant, alone: u64, before: u32) {
    // Pods that start on that server.
    run(
        guest,
        "for n in $(seq 20); do (publish h$n vol1 >/run/h$n.log 2>&1 3>&- &); done; sleep 8",
    );
    let stats = json(&run(guest, "stats v7"));
    assert_eq!(stats["volume_condition"]["abnormal"], true, "{stats}");
    assert!(total(&stats) > 0, "{stats}");
    let during = measure(guest, local);
    eprintln!("p99 of `local`: {alone} us before (the slower of two), {during} us while it hangs");
    // Others use the machine, too; what hangs takes seconds.
    assert!(
        during < 5 * alone.max(5_000),
        "{during} us, {alone} us before"
    );
    mount_many(guest);
    for volume in ["v19", "v20"] {
        let begun = Instant::now();
        run(
            guest,
            &format!("unpublish {volume}\n[ ! -e $(target {volume}) ]"),
        );
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(40), "{volume}: {took:?}");
    }
    // Mounts, unmounts, statistics, and what was killed and has not exited.
    while begun.elapsed() < frozen_for() {
        let helpers: u32 = run(guest, "sleep 5; helpers").parse().expect("a number");
        assert!(helpers <= 8 + 2 + 8, "{helpers} helper processes");
        let now = threads(guest);
        assert!(now <= before + 4, "{now} threads, {before} before");
    }
    let stats = json(&run(guest, "touch /run/thawed; stats v7"));
    assert_eq!(stats["volume_condition"]["abnormal"], true, "{stats}");
}

/// Within the two minutes that a kubelet waits.
fn mount_many(guest: &mut Guest<'_>) {
    let begun = Instant::now();
    run(
        guest,
        &format!(
            "export server={ANOTHER}
             for n in $(seq {AT_ONCE}); do
                 publish m$n vol1 >/run/m$n.log 2>&1 3>&- &
                 all=\"$all $!\"
             done
             for one in $all; do wait $one || {{ cat /run/m*.log; exit 1; }}; done
             [ $(grep -c ' /pods/nfs/m[0-9]*/mount ' /proc/self/mountinfo) = {AT_ONCE} ]"
        ),
    );
    eprintln!("{AT_ONCE} mounts of another server: {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(120));
    run(
        guest,
        &format!("for n in $(seq {AT_ONCE}); do unpublish m$n; done"),
    );
}

fn total(stats: &Value) -> u64 {
    stats["usage"][0]["total"].as_u64().unwrap_or_default()
}

#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_server_that_goes_down_and_comes_back_goes_on_with_what_it_acknowledged() {
    for kernel in kernels_or(newest_kernel()) {
        nfs::with_filer(kernel, |guest| {
            run(
                guest,
                "for n in 1 2 3; do publish v$n vol$n; stats v$n; done",
            );
            start_writers(guest, "v1 v2");
            // Its port is closed, and connections are reset; then it has forgotten its clients.
            run(guest, ". /run/filer.sh\ninside rpc.nfsd 0");
            let stats = json(&run(guest, "stats v1"));
            assert_eq!(stats["volume_condition"]["abnormal"], true, "{stats}");
            assert!(total(&stats) > 0, "{stats}");
            run(
                guest,
                "unpublish v3
                 [ ! -e $(target v3) ]
                 if publish v4 vol4 --mount-flag soft,timeo=10,retrans=1; then exit 1; fi",
            );
            // The agent is replaced meanwhile.
            run(
                guest,
                &format!(
                    "pkill -KILL -x belay-node; {}\n{}",
                    until("! pgrep -x belay-node"),
                    nfs::START
                ),
            );
            run(guest, ". /run/filer.sh\ninside rpc.nfsd 4");
            stop_writers(guest, "v1 v2");
            run(
                guest,
                "stats v1 | grep '\"abnormal\": *false'
                 publish v1 vol1
                 [ $(shown v1 | wc -l) = 1 ]
                 for n in 1 2; do unpublish v$n; done
                 [ ! -e $(target v4) ]",
            );
        });
    }
}
