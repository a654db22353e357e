#!/usr/bin/env bash
# Implements `make arrivals`: measures in a guest how long after the kernel's uevent the node agent
# opens a disk, compared with udev's link; and counts the agent's system calls while a stage waits
# for its disk. Prints a table for benches/BUDGET.md.
#
#   arrivals.sh BINDIR     ROUNDS=n sets the number of disks (200)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../../setup/env.sh"

bindir=$(readlink -f "${1:?the directory of the programs}")
rounds=${ROUNDS:-200}
bytes=$((256 << 20))
volume=7f8b1c2d-1111-4222-8333-444455556666
seconds_max=900
work=$(mktemp -d)
cloud=$bindir/belay-guest-cloud

clean_up() {
    [ -z "${served:-}" ] || kill "$served"
    rm -rf "$work"
}

# run SECONDS <SCRIPT
run() {
    "$cloud" run "$work/operator" guest "$1"
}

trap clean_up EXIT
TMPDIR=$work "$cloud" serve "$work/operator" 127.0.0.1:0 "$work" 2 768 \
    guest=127.0.0.1=belay.name=guest 2>"$work/log" &
served=$!
until [ -S "$work/operator" ]; do
    kill -0 "$served" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
done
"$cloud" boot "$work/operator" guest
truncate --size "$bytes" "$work/disk"
"$cloud" plug "$work/operator" guest "$volume" "$work/disk"
run "$seconds_max" >"$work/answer" <<SH || { cat "$work/answer" >&2; exit 1; }
set -e
mkdir -p /belay && mount --bind "/machine$bindir" /belay
setsid /belay/belay-node --driver-kind openstack --endpoint /run/node.sock --node-id guest \\
    --http-endpoint 127.0.0.1:9808 >/run/node.log 2>&1 3>&- &
agent=\$!
for _ in \$(seq 300); do
    /belay/belayctl --endpoint /run/node.sock identity probe >/dev/null 2>&1 && break
    sleep 0.1
done
echo virtio-uml.0 >/sys/bus/platform/drivers/virtio-uml/unbind
uname -r
python3 "/machine$here/arrivals.py" "$volume" 0 "$bytes" "$rounds" "\$(pidof belay-node)" || {
    tail /run/node.log
    exit 1
}
SH
python3 - "$work/answer" <<'PY'
import json
import sys

lines = open(sys.argv[1]).read().splitlines()
release, measured = lines[0], json.loads(lines[-1])
times = measured["times"]


def percentile(name, share):
    ordered = sorted(entry[name] for entry in times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


print(f"Linux {release}, {len(times)} disks, ms after the kernel's uevent:\n")
print("| | p50 | p99 | least |\n|---|--:|--:|--:|")
for name, text in (("open", "the agent has opened the disk"), ("link", "udev's link is there")):
    print(f"| {text} | {percentile(name, .5):.1f} | {percentile(name, .99):.1f} |"
          f" {percentile(name, 0):.1f} |")
idle, waiting = (sum(measured[key].values()) for key in ("idle", "waiting"))
print(f"\nSystem calls of the agent in a minute: {idle} without a call, {waiting} while a stage"
      f" waits: {measured['waiting']}")
# Even a poll every two seconds would take 30 calls.
if waiting > idle + 20:
    sys.exit("the agent polls while a stage waits for its disk")
PY
