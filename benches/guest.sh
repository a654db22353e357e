#!/usr/bin/env bash
# Measures Probe, and volumes on disks and on an NFS server, in a guest: cloud disks need a
# hypervisor, and not every kernel has an NFS client. Guests need User-mode Linux, which exists only
# for x86_64 and comes from apt: on other machines, this reports so and passes.
#
#   guest.sh BINDIR CARGO_FLAGS...
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. tests/setup/env.sh

bindir=$(readlink -f "${1:?the directory of the programs}")
shift
seconds_max=900
address=10.9.0.1

if [ "$(uname -m)" != x86_64 ] || ! { have linux.uml || have apt-get; }; then
    announce "volumes on disks and on NFS are not measured: there is no User-mode Linux here"
    exit 0
fi
tests/setup/setup.sh guest
tests/beds/guest/build.sh "$bindir" "$@"
programs=$(
    cargo bench "$@" -p belay-benches --bench probe --bench stage_publish --no-run \
        --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
)

work=$(mktemp -d)
cloud=$bindir/belay-guest-cloud

clean_up() {
    [ -z "${served:-}" ] || kill "$served"
    rm -rf "$work"
}

trap clean_up EXIT
truncate --size 1G "$work"/belay-bench-{ours,bare}
truncate --size 256M "$work/share"
mkfs.ext4 -q "$work/share"
TMPDIR=$work "$cloud" serve "$work/operator" 127.0.0.1:0 "$work" 2 1024 \
    "guest=127.0.0.1=ubd0=$work/share" 2>"$work/log" &
served=$!
until [ -S "$work/operator" ]; do
    kill -0 "$served" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
done
"$cloud" boot "$work/operator" guest
for disk in belay-bench-ours belay-bench-bare; do
    "$cloud" plug "$work/operator" guest "$disk" "$work/$disk"
done
if ! "$cloud" run "$work/operator" guest "$seconds_max" >"$work/answer" <<SH; then
set -eo pipefail
modprobe -a nfs nfsv4 veth
ip link add vec0 type veth
"/machine$PWD/tests/beds/kubernetes/filer.sh" $address ${address%.*}.0/24 "$BELAY_CACHE" >/dev/null
export BELAY_BIN_DIR=/machine$bindir BELAY_BENCH_NFS=$address:/ CRITERION_HOME=/tmp/criterion
uname -sr
for program in $(echo $programs); do
    "/machine\$program" --bench 'disk|nfs|new connection' 2>&1 | cat
done
SH
    cat "$work/answer" >&2
    exit 1
fi
cat "$work/answer"
# The guest has both kinds of volumes.
! grep 'is left out' "$work/answer" >&2
