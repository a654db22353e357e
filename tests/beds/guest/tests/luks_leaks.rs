//! The passphrases of encrypted volumes are in no argument, environment, log, page, context, file
//! or core file: searches a whole guest for them with `leaks.py`, after it has found planted ones.
//! `make luks` runs this test too.

use std::path::Path;
use std::time::Duration;

use belay_guest::Guest;

use crate::luks::{PREPARE, START_LOCAL, create, run};
use crate::rig::{boot, kernels_or, machine_with_state, newest_kernel, seen};

/// Maximum duration of a search of the whole guest.
const SEARCH_MAX: Duration = Duration::from_secs(300);

/// Creates the passphrases, lets every process write a core file, and defines the searches.
const SECRETS: &str = "\
mkdir /run/secrets /run/cores /run/gathered
for name in key other wrong; do
    head -c 33 /dev/urandom | base64 -w 0 | tr '+/' ab >/run/secrets/$name
done
echo '/run/cores/core.%e.%p' >/proc/sys/kernel/core_pattern
cat >>/run/calls.sh <<'END'
ulimit -c unlimited
K=/run/secrets/key O=/run/secrets/other W=/run/secrets/wrong
leaks() { python3 $LEAKS $1 /run/secrets \"${@:2}\"; }
sample() { rm -f /run/report*
    (setsid python3 $LEAKS sample /run/secrets /run/report >/run/sampler 2>&1 3>&- &
    echo $! >/run/sampler.pid)
    for _ in $(seq 100); do [ -e /run/report.ready ] && return; sleep 0.1; done; return 1; }
sampled() { pkill -TERM -f 'leaks.py sample'
    for _ in $(seq 100); do [ -e /run/report ] && break; sleep 0.1; done; cat /run/report; }
page() { exec 5<>/dev/tcp/127.0.0.1/9808; printf \"GET $1 HTTP/1.0\\r\\n\\r\\n\" >&5; cat <&5; }
END";

/// Starts the agent with all that it can log, and with its pages.
const START_AGENT: &str = "\
ulimit -c unlimited
setsid belay-node --endpoint /run/node.sock --node-id guest --log-level trace \\
    --http-endpoint 127.0.0.1:9808 --loop-dir /state/belay/volumes >>/run/node.log 2>&1 3>&- &
echo $! >/run/node.pid
ready /run/node.sock >/dev/null 2>&1 || { cat /run/node.log; exit 1; }";

/// The commands that the sampler must have seen, so that it has not slept meanwhile.
const COMMANDS: [&str; 9] = [
    "luksFormat",
    "open --type luks --token-type none --disable-keyring",
    "--test-passphrase",
    "luksAddKey",
    "luksRemoveKey",
    "config --label",
    "resize",
    "close",
    "mkfs.ext4",
];

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn no_passphrase_is_found_outside_of_the_memory_of_the_agent() {
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    for kernel in kernels_or(newest_kernel()) {
        let (machine, _) = machine_with_state(kernel, "ext4");
        let mut guest = boot(&machine);
        guest.run(PREPARE);
        let search = seen(&Path::new(env!("CARGO_MANIFEST_DIR")).join("leaks.py"));
        run(
            &mut guest,
            &format!("{SECRETS}\necho LEAKS={search} >>/run/calls.sh"),
        );
        planted_passphrases_are_found(&mut guest);
        run(&mut guest, &format!("{START_LOCAL}\n{START_AGENT}\nsample"));
        let raw = create(&mut guest, "raw", 128, "--block");
        for number in 0..if is_long { 10 } else { 1 } {
            stages(&mut guest, number, &raw);
        }
        check_samples(&mut guest);
        cores(&mut guest, &raw);
        check_the_rest(&mut guest);
    }
}

/// The searches find what they are for.
fn planted_passphrases_are_found(guest: &mut Guest<'_>) {
    let report = run(
        guest,
        "sample
         bash -c 'sleep 0.3; exit' $(cat $K)
         MINE=$(cat $O) bash -c 'sleep 0.3; exit'
         bash -c 'sleep 0.3; exit' $(base64 -w 0 <$W)
         sampled",
    );
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let hits = report["hits"].as_array().expect("a list");
    let count = |word: &str| {
        let hits = hits.iter().filter_map(|hit| hit.as_str());
        hits.filter(|hit| hit.starts_with(word)).count()
    };
    assert!(
        count("arguments") >= 2 && count("environment") >= 1,
        "{report}"
    );
    let found = run(
        guest,
        "cp $K /run/gathered/plain; od -An -v -tx1 $O | tr -d ' \\n' >/run/gathered/hex
         od -An -v -tu1 -w99 $W | sed 's/^ *//; s/  */, /g' >/run/gathered/bytes
         echo planted $(cat $K) >/dev/kmsg; dmesg >/run/gathered/dmesg
         dmsetup create x$(cat $W) --table '0 8 error'
         bash -c 'text=$(cat /run/secrets/key); kill -SEGV $$' || true
         python3 -c 'import os, time
f = os.memfd_create(\"planted\"); os.write(f, open(\"/run/secrets/other\", \"rb\").read())
open(\"/run/memory\", \"w\"); time.sleep(60)' >/dev/null 2>&1 3>&- &
         for _ in $(seq 100); do [ -e /run/memory ] && break; sleep 0.1; done
         leaks files /run/gathered /run/cores /sys/devices/virtual/block; leaks descriptors python3
         kill $!
         dmsetup remove x$(cat $W); dmesg -C
         rm -rf /run/udev/links/*$(cat $W)* /run/gathered/* /run/cores/*",
    );
    for place in [
        "gathered/plain",
        "gathered/hex",
        "gathered/bytes",
        "gathered/dmesg",
        "/dm/name",
        "cores/core.bash",
        "a passphrase in /memfd:planted",
    ] {
        assert!(found.contains(place), "{place} was not found: {found}");
    }
}

/// Stages volumes five times: the first time, with a wrong and with a malformed Secret, with
/// another passphrase, and raw.
fn stages(guest: &mut Guest<'_>, number: usize, raw: &str) {
    let id = create(guest, &format!("searched-{number}"), 160, "");
    let calls = [
        format!(
            "KEY=$K stage {id} --fs-type ext4; publish {id} --fs-type ext4
             page / >>/run/gathered/page; page /metrics >>/run/gathered/metrics
             controller expand {id} --size 192MiB; grow {id} 192MiB
             unpublish {id}; unstage {id}"
        ),
        format!(
            "! KEY=$W OLD=$O stage {id} --fs-type ext4
             ! KEY=$K stage {id} --fs-type ext4 --secret-file luksKey=$O
             ! KEY=$K OLD=$K stage {id} --fs-type ext4
             KEY=$K stage {id} --fs-type ext4; unstage {id}"
        ),
        format!("OLD=$K KEY=$O stage {id} --fs-type ext4; unstage {id}"),
        format!("KEY=$O stage {id} --fs-type ext4; unstage {id}; controller delete {id}"),
        format!(
            "KEY=$W stage {raw} --block; publish {raw} --block; unpublish {raw}; unstage {raw}"
        ),
    ];
    for call in calls {
        run(guest, &format!("({call}) >>/run/gathered/answers 2>&1"));
    }
    // A shell with -e ignores the result of a negated command.
    let answers = run(guest, "cat /run/gathered/answers");
    for refusal in ["opens no key slot", "are the same", "luksKey"] {
        assert!(answers.contains(refusal), "{refusal}: {answers}");
    }
}

fn check_samples(guest: &mut Guest<'_>) {
    let report = run(guest, "sampled");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let rate = report["sweeps"].as_f64().unwrap_or(0.0) / report["seconds"].as_f64().unwrap_or(1.0);
    eprintln!(
        "{} samples of all processes in {} s: {rate:.0} a second",
        report["sweeps"], report["seconds"]
    );
    assert_eq!(report["hits"], serde_json::json!([]), "{report}");
    let seen = report["commands"].to_string();
    for command in COMMANDS {
        assert!(seen.contains(command), "{command} was not sampled: {seen}");
    }
}

/// A crash of cryptsetup, or of the agent, during a slow key derivation writes no core file.
fn cores(guest: &mut Guest<'_>, raw: &str) {
    run(
        guest,
        &format!(
            "cryptsetup luksConvertKey -q --key-file $W --pbkdf argon2id --pbkdf-memory 65536 \\
                 --pbkdf-force-iterations 16 --disable-locks /state/belay/volumes/{raw}"
        ),
    );
    for program in ["cryptsetup", "belay-node"] {
        run(
            guest,
            &format!(
                "(KEY=$W stage {raw} --block) >>/run/gathered/answers 2>&1 3>&- &
                 for _ in $(seq 100); do
                     pgrep -x cryptsetup >/run/pgrep && break; sleep 0.1
                 done
                 sleep 0.3; pkill -ABRT -x {program}; wait"
            ),
        );
    }
    run(
        guest,
        "while pgrep -x belay-node; do sleep 0.1; done; [ -z \"$(ls /run/cores)\" ]",
    );
    run(
        guest,
        &format!("{START_AGENT}\nKEY=$W stage {raw} --block; unstage {raw}"),
    );
}

/// Searches files, pages and descriptors. The files in memory of all keys are closed.
fn check_the_rest(guest: &mut Guest<'_>) {
    run(
        guest,
        "page / >>/run/gathered/page; page /metrics >>/run/gathered/metrics
         grep -q belay_ /run/gathered/metrics; grep -q vol- /run/gathered/page
         grep -q NodeStageVolume /run/node.log; dmesg >/run/gathered/dmesg
         controller list --show-secrets >/run/gathered/list",
    );
    let places = "/run /tmp /dev/shm /state /pods /sys /etc /var/log /proc/self/mountinfo";
    let script = format!(
        ". /run/calls.sh\nleaks descriptors belay-node; leaks descriptors cryptsetup
         leaks files {places} 2>/run/searched"
    );
    assert_eq!(guest.run_within(SEARCH_MAX, &script), "");
    eprintln!("{}", run(guest, "cat /run/searched"));
}
