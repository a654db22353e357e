//! The cost of encrypted volumes compared with the same commands by hand, in one run and guest, and
//! the memory of 20 stages at once. The figures are printed; times are not compared with a limit.

use std::collections::BTreeMap;
use std::time::Duration;

use belay_guest::Guest;

use crate::luks::{local, run};
use crate::rig::{MIB, kernels, machine_with_state};

/// Rounds of each measured call, and volumes that are staged at once.
const ROUNDS: u32 = 9;
const AT_ONCE: u32 = 20;
const STATE_MIB: u64 = 6144;
const ALL_MAX: Duration = Duration::from_secs(600);

/// Defines the measured calls. `measure NAME COMMAND...` appends the name and the microseconds to
/// `/run/times`. The commands by hand have the options of the agent's.
const MEASURE: &str = r#"
cat >>/run/calls.sh <<'END'
measure() { local begun=${EPOCHREALTIME/./} name=$1; shift
    "$@" >/run/measured 2>&1 || { cat /run/measured; return 1; }
    echo $name $((${EPOCHREALTIME/./} - begun)) >>/run/times; }
made() { controller create "$@" | sed -n 's/.*"volume_id": *"\([^"]*\)".*/\1/p'; }
plain() { volume $1; node stage $1 --staging $stages --fs-type ext4; }
larger() { controller expand $1 --size 224MiB >/dev/null; }
derivation='--pbkdf argon2id --pbkdf-memory 32768 --pbkdf-parallel 1 --pbkdf-force-iterations 4'
crypt() { DM_DISABLE_UDEV=1 cryptsetup --batch-mode --disable-locks "$@"; }
format() { crypt luksFormat --type luks2 --cipher aes-xts-plain64 --key-size 512 --hash sha256 \
    $derivation --key-file /run/key $1; }
unlock() { crypt open --type luks --token-type none --disable-keyring --key-file /run/key $1 hand; }
by_hand() {
    local device
    truncate -s 160M /state/by-hand; device=$(losetup -f --show /state/by-hand)
    measure hand-format format $device
    measure hand-open unlock $device
    measure hand-mkfs mkfs.ext4 -q -m 0 -G 16 -E nodiscard,lazy_itable_init=1,lazy_journal_init=0 \
        /dev/$(ls /sys/block | grep ^dm-)
    truncate -s 224M /state/by-hand; losetup -c $device
    measure hand-resize crypt resize --disable-keyring hand
    measure hand-close crypt close hand
    losetup -d $device; rm /state/by-hand; }
encrypted() {
    local id=$(made encrypted --size 160MiB --parameter encrypted=true)
    measure first stage $id --fs-type ext4; unstage $id
    measure later stage $id --fs-type ext4; publish $id --fs-type ext4; larger $id
    measure grow grow $id 224MiB; unpublish $id
    measure unstage unstage $id; controller delete $id; }
unencrypted() {
    local id=$(made plain --size 160MiB)
    measure plain-first plain $id; unstage $id
    measure plain-stage plain $id; publish $id --fs-type ext4; larger $id
    measure plain-grow grow $id 224MiB; unpublish $id
    measure plain-unstage unstage $id; controller delete $id; }
# staged_while FILE NAME: stages and unstages a plain volume while the file exists, or 40 times.
staged_while() { local n=0
    while [ -e $1 ] || [ $n -lt 40 ]; do
        measure $2 plain $other; unstage $other >/dev/null; n=$((n + 1))
    done; }
END
: >/run/times"#;

/// Stages many volumes at once, with the agent in a control group, and samples the memory of the
/// group. The page cache counts for the group as well, but can be reclaimed.
const STAGE_ALL: &str = r#"
group=/sys/fs/cgroup/agent
echo +memory >/sys/fs/cgroup/cgroup.subtree_control; mkdir $group
pgrep -x belay-node >$group/cgroup.procs
anon() { sed -n 's/^anon //p' $group/memory.stat; }
other=$(made other --size 64MiB); plain $other >/dev/null; unstage $other >/dev/null
idle=$(anon)
staged_while /run/working idle
ids=$(for n in $(seq $all); do made all-$n --size 144MiB --parameter encrypted=true; done)
: >/run/working
(most=0; while [ -e /run/working ]; do
    now=$(anon); [ $now -le $most ] || most=$now; sleep 0.02
 done; echo $most >/run/most) &
watcher=$!
staged_while /run/working meanwhile &
stager=$!
begun=$SECONDS waits=
for id in $ids; do
    (for _ in $(seq 60); do stage $id --fs-type ext4 && exit; sleep 1; done; exit 1) \
        >/run/staged-$id 2>&1 &
    waits+=" $!"
done
for one in $waits; do wait $one || { tail -n 3 /run/staged-*; exit 1; }; done
took=$((SECONDS - begun))
rm /run/working; wait $watcher $stager
[ $(mappers) = $all ]
for id in $ids; do unstage $id >/dev/null; done; [ $(mappers) = 0 ]
# The guest has one processor, so compare with key derivations that are not the agent's.
truncate -s 64M /state/derived; : >/run/working
(while [ -e /run/working ]; do format /state/derived; done) &
deriver=$!
staged_while /run/none derivation-by-hand; rm /run/working; wait $deriver
agent=$(sed -n 's/^VmHWM:[^0-9]*//p' /proc/$(pgrep -x belay-node)/status)
echo "anonymous memory of the group: $((idle >> 10)) KiB idle, $(($(cat /run/most) >> 10)) at most;"
echo "memory.peak: $(($(cat $group/memory.peak) >> 10)) KiB; VmHWM of the agent: $agent"
echo "all were staged after $took s""#;

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn the_cost_of_encrypted_volumes_is_printed_next_to_the_commands_by_hand() {
    for_each_kernel(|guest| {
        for _ in 0..ROUNDS {
            run(guest, "encrypted; unencrypted; by_hand");
        }
        print_ratios(&times(guest));
    });
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn the_memory_of_many_first_stages_at_once_is_printed() {
    for_each_kernel(stage_all);
}

/// Runs in a guest with the agent of `local`, and space for all volumes.
fn for_each_kernel(measure: impl Fn(&mut Guest<'_>)) {
    if std::env::var_os("BELAY_NIGHTLY").is_none() {
        eprintln!("only with BELAY_NIGHTLY=1: the figures need minutes");
        return;
    }
    for kernel in kernels() {
        let (machine, medium) = machine_with_state(kernel, "ext4");
        medium.resize(STATE_MIB * MIB);
        let mut guest = local(&machine);
        guest.run("resize2fs /dev/disk/by-id/virtio-state 2>&1");
        guest.run(MEASURE);
        measure(&mut guest);
    }
}

/// Returns the sorted microseconds of each measured call.
fn times(guest: &mut Guest<'_>) -> BTreeMap<String, Vec<u64>> {
    let mut found: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in run(guest, "cat /run/times").lines() {
        let (name, time) = line.split_once(' ').expect("a name and a time");
        let time = time.parse().expect("a number");
        found.entry(name.to_owned()).or_default().push(time);
    }
    for times in found.values_mut() {
        times.sort_unstable();
    }
    found
}

fn print_ratios(times: &BTreeMap<String, Vec<u64>>) {
    let sum = |names: &[&str]| -> u64 {
        let times = names.iter().map(|name| &times[*name]);
        times.map(|times| times[times.len() / 2]).sum()
    };
    eprintln!(
        "{:<14}{:>10}{:>12}{:>8}",
        "medians", "Belay us", "by hand us", "ratio"
    );
    let first = ["hand-format", "hand-open", "hand-mkfs", "plain-stage"];
    for (name, by_hand) in [
        ("first", &first[..]),
        ("later", &["hand-open", "plain-stage"]),
        ("unstage", &["plain-unstage", "hand-close"]),
        ("grow", &["plain-grow", "hand-resize"]),
    ] {
        let (ours, theirs) = (sum(&[name]), sum(by_hand));
        let percent = ours * 100 / theirs;
        eprintln!("{name:<14}{ours:>10}{theirs:>12}{percent:>6} %");
    }
    for (name, times) in times {
        eprintln!("  {name}: {times:?}");
    }
}

fn stage_all(guest: &mut Guest<'_>) {
    let setup = crate::belay::SETUP;
    let script = format!("all={AT_ONCE}\n{STAGE_ALL}");
    // A long script would make the guest stop responding.
    guest.run(&format!("cat >/run/all.sh <<'WHOLE'\n{script}\nWHOLE"));
    let all = format!("{setup}set -e\n. /run/calls.sh\n. /run/all.sh");
    eprintln!("{AT_ONCE} at once: {}", guest.run_within(ALL_MAX, &all));
    for (name, times) in times(guest) {
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        let (count, median, p99) = (times.len(), at(50), at(99));
        eprintln!("a plain stage, {name}: {count} times, median {median} us, p99 {p99} us");
    }
}
