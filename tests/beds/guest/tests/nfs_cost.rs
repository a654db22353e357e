//! The cost of a mount compared with mount(8) and mount.nfs, by which csi-driver-nfs mounts: the
//! processes, which are counted and compared, and time and memory, which are printed.

use belay_guest::Guest;

use crate::filer::ADDRESS;
use crate::nfs::{run, with_filer};
use crate::rig::{kernels_or, newest_kernel};

const MOUNTS: u32 = 20;

/// `count COMMAND` prints the processes and threads that a call of it starts, and the median of its
/// microseconds. Its argument is the number of the call.
const COUNT: &str = r"
started() { sed -n 's/^processes //p' /proc/stat; }
count() {
    local before after begun all= n
    for n in $(seq $calls); do
        before=$(started); begun=${EPOCHREALTIME/./}
        $1 $n >/dev/null 2>/run/count.log || { cat /run/count.log; exit 1; }
        all+=$(( ${EPOCHREALTIME/./} - begun ))$'\n'
        after=$(started)
    done
    echo $((after - before)) $(sort -n <<<$all | sed -n $((calls / 2 + 1))p)
}
";

/// The most resident memory of a helper in KiB, which waits after its answer.
const MEMORY: &str = r"
import json, re, socket, subprocess, sys

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
ours.send(json.dumps({'Usage': sys.argv[1]}).encode() + b'\n')
child = subprocess.Popen(['/belay/belay-node', '--helper-process'], stdin=theirs)
theirs.close()
assert b'total_bytes' in ours.recv(8192)
print(re.search(r'VmHWM:\s*(\d+)', open(f'/proc/{child.pid}/status').read()).group(1))
ours.close()
assert child.wait() == 0
";

#[test]
#[ignore = "needs User-mode Linux: make nfs"]
fn a_mount_starts_one_process_and_mount_nfs_starts_more() {
    for kernel in kernels_or(newest_kernel()) {
        with_filer(kernel, compare);
    }
}

fn compare(guest: &mut Guest<'_>) {
    let measured = run(
        guest,
        &format!(
            "calls={MOUNTS}
             {COUNT}
             . /run/filer.sh
             ln -sf $root/sbin/mount.nfs /sbin/mount.nfs
             mkdir -p $(seq -f /run/theirs/%g $calls)
             ours() {{ publish c$1 vol1 --mount-flag nfsvers=4.2; }}
             theirs() {{ mount -t nfs -o nfsvers=4.2 {ADDRESS}:/vol1 /run/theirs/$1; }}
             call() {{ mkdir -p /pods/nfs/c$1; : $(target c$1); nfs info; }}
             # The first mount makes the connection.
             publish warm vol2 >/run/warm
             echo $(count true) $(count call) $(count ours) $(count theirs)"
        ),
    );
    let memory = run(
        guest,
        &format!(
            ". /run/filer.sh
             cat >/run/memory.py <<'END'{MEMORY}END
             sed -n 's/^VmRSS:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/$(pgrep -xo belay-node)/status
             python3 /run/memory.py $(target c1)"
        ),
    );
    let numbers: Vec<u64> = measured
        .split_whitespace()
        .map(|number| {
            let number = number.parse();
            number.unwrap_or_else(|error| panic!("{error}: {measured}"))
        })
        .collect();
    let [count, _, call, call_us, ours, ours_us, theirs, theirs_us] = numbers[..] else {
        panic!("{measured}")
    };
    let (ours, theirs) = (ours - call, theirs - count);
    let ours_us = ours_us.saturating_sub(call_us);
    let memory = memory.replace('\n', " KiB of the agent, ");
    eprintln!(
        "a mount: {ours} processes and kernel threads, {ours_us} us (and {call_us} us of belayctl)"
    );
    eprintln!("mount.nfs: {theirs}, {theirs_us} us. Memory: {memory} KiB of a helper");
    // Kernel threads of the client count as well, and are as many.
    assert!(ours < theirs, "{ours} and {theirs}: {measured}");
    run(
        guest,
        &format!(
            "umount $(seq -f /run/theirs/%g {MOUNTS})
             for n in warm $(seq -f c%g {MOUNTS}); do unpublish $n; done"
        ),
    );
}
