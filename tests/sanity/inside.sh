#!/usr/bin/env bash
# The part of run.sh that is process 1 in separate namespaces: for each combination, starts both
# programs, runs csi-sanity against them, and stops them again.
#
#   inside.sh BIN WORK REPORTS COMBINATION...
#
# A combination is mount or block, followed by -topology or the state directory's filesystem, if
# any.
set -euo pipefail
[ $$ = 1 ] || { echo "inside.sh: is started by run.sh only" >&2; exit 64; }

bin=$1 work=$2 reports=$3
shift 3

start_seconds_max=20
stop_seconds_max=20

await_socket() {
    local socket=$1 pid=$2 tries
    for ((tries = 0; tries < start_seconds_max * 20; tries++)); do
        [ ! -S "$socket" ] || return 0
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.05
    done
    return 1
}

# Stops a program. One that ignores TERM is a separate failure, and is not waited for.
stop() {
    local name=$1 pid=$2 tries
    kill -TERM "$pid" 2>/dev/null || true
    for ((tries = 0; tries < stop_seconds_max * 20; tries++)); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" || complain "$name ended with code $? after TERM"
}

complain() {
    printf '%s\n' "$*" >>"$report/problems"
}

# The skipped case of v5.6.0 compares two messages together with the internal state of their decoder,
# so it fails for each driver that reports the topology of snapshots.
run_suite() {
    csi-sanity --ginkgo.skip="snapshot with accessibility requirements" \
        --ginkgo.no-color --ginkgo.junit-report="$report/junit.xml" \
        --csi.endpoint="$run/node.sock" --csi.controllerendpoint="$run/controller.sock" \
        --csi.mountdir="$run/mount" --csi.stagingdir="$run/staging" \
        --csi.testvolumeaccesstype="${combination%%-*}" >"$report/csi-sanity.log" 2>&1 ||
        complain "csi-sanity ended with code $?"
}

# Reports leftovers. The suite deletes its volumes, so leftovers are the driver's error.
look_for_remains() {
    local remains
    remains=$(cut -d ' ' -f 5 /proc/self/mountinfo | grep -F "$run/" || true)
    [ -z "$remains" ] || complain "mounts left behind: $remains"
    remains=$(find "$run" -name '*.sock')
    [ -z "$remains" ] || complain "sockets left behind: $remains"
}

start_binaries() {
    local state flags=(--node-id sanity)
    state=$work/$(filesystem)/$combination
    [[ $combination != *-topology* ]] || flags+=(--with-topology)
    mkdir -p "$state/volumes"
    "$bin/belay-controller" --backend local --state-dir "$state" \
        --endpoint "unix://$run/controller.sock" "${flags[@]}" >"$report/controller.log" 2>&1 &
    controller=$!
    "$bin/belay-node" --loop-dir "$state/volumes" \
        --endpoint "unix://$run/node.sock" "${flags[@]}" >"$report/node.log" 2>&1 &
    node=$!
}

# Prints the filesystem for the state directory.
filesystem() {
    case $combination in
        *-btrfs) echo btrfs ;;
        *-ext4) echo ext4 ;;
        *) echo xfs ;;
    esac
}

run_combination() {
    local node controller run=$work/$combination report=$reports/$combination
    mkdir -p "$run" "$report"
    start_binaries
    if await_socket "$run/controller.sock" "$controller" && await_socket "$run/node.sock" "$node"; then
        run_suite
    else
        complain "a binary did not come up; see controller.log and node.log"
    fi
    stop belay-node "$node"
    stop belay-controller "$controller"
    look_for_remains
}

for image in "$work"/image.*; do
    mkdir "$work/${image##*.}"
    mount -t "${image##*.}" "$(losetup --noheadings --output NAME --associated "$image")" \
        "$work/${image##*.}"
done
for combination in "$@"; do
    printf 'sanity: %s\n' "$combination"
    run_combination
done
