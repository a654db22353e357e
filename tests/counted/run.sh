#!/usr/bin/env bash
# Counts the cost of the programs' own code with callgrind: instructions, allocations, and pages of
# code. Fails if a count has grown by more than 5 % over baseline.txt, so that the commit that
# causes the growth also explains it.
#
#   run.sh PROGRAMS            compares; PROGRAMS is the directory of the release programs
#   run.sh PROGRAMS --write    writes baseline.txt
#
# The controller is the release program, called by belayctl. The node agent makes system calls that
# valgrind does not support, so its operations run on the simulated kernel, which is not counted, in
# a debug build. Allocations are counted in debug builds, since release programs have no symbol
# names. tests/blackbox/syscalls.rs counts system calls.
set -euo pipefail
shopt -s inherit_errexit
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"
cd "$here/../.."

if [ "$(uname -m)" != x86_64 ]; then
    announce "the baseline of tests/counted is for x86_64: nothing is counted"
    exit 0
fi
programs=$(readlink -f "$1")
baseline=$here/baseline.txt
growth_max=5
scratch=$(mktemp --directory)
running=
trap 'if [ -n "$running" ]; then kill "$running" || true; fi; rm -rf "$scratch"' EXIT

# Names that differ between two runs would be other allocations.
unset BELAY_LOG_LEVEL BELAY_HTTP_ENDPOINT CSI_ENDPOINT

# The controller inspects each of the machine's block devices, and has a worker for each processor;
# here, it sees no device and uses one processor. Without root, it runs in a user namespace.
alone=(taskset --cpu-list "$(awk '/^Cpus_allowed_list/ { split($2, list, /[-,]/); print list[1] }' /proc/self/status)"
    unshare --mount --propagation private)
[ "$(id -u)" = 0 ] || alone+=(--user --map-root-user)
alone+=(sh -c 'mount -t tmpfs none /sys/block && exec "$@"' sh)

callgrind=(valgrind --tool=callgrind --vgdb=no --callgrind-out-file="$scratch/profile"
    --separate-callers28="*__rust_alloc*" --separate-callers28="*__rust_realloc")

# lifecycles COUNT CONTROLLER: sets `counts` to the instructions, allocations and pages of a
# controller that runs COUNT lifecycles of a volume, each call on a new connection.
lifecycles() {
    local state=$scratch/state socket=$scratch/controller.sock id n
    mkdir "$state"
    "${alone[@]}" "${callgrind[@]}" --dump-instr=yes "$2" --endpoint "$socket" --state-dir "$state" --node-id node \
        --overcommit 1000 >"$scratch/log" 2>&1 &
    running=$!
    ctl() { "$programs/belayctl" --endpoint "$socket" volume "$@" >"$scratch/answer"; }
    for n in $(seq 100); do
        [ -S "$socket" ] && break
        [ "$n" -lt 100 ] || give_up "the controller does not start: $(tail -n 3 "$scratch/log")"
        sleep 0.2
    done
    for n in $(seq "$1"); do
        ctl create "volume-$n" --size 1MiB --fs-type ext4
        id=$(grep -oE 'vol-[0-9a-f]+' "$scratch/answer" | head -n 1)
        ctl list
        # The counts include a query of the method by reflection. `volume delete` would look for the
        # volume instead.
        "$programs/belayctl" --endpoint "$socket" rpc DeleteVolume "{\"volume_id\": \"$id\"}" >/dev/null
    done
    kill "$running"
    wait "$running" || give_up "the controller failed: $(tail -n 3 "$scratch/log")"
    running=
    rm -rf "$state" "$socket"
    read -r -a counts <<<"$(awk -f "$here/count.awk" "$scratch/profile")"
}

# Computes the same for one lifecycle, without the start; the pages are the total.
controller() {
    local few=5 many=15 start
    lifecycles "$few" "$1"
    start=("${counts[@]}")
    lifecycles "$many" "$1"
    counts[0]=$(((counts[0] - start[0]) / (many - few)))
    counts[1]=$(((counts[1] - start[1]) / (many - few)))
}

# Builds the unit tests of the node agent again without optimization: inlined functions have no
# names.
unit_tests() {
    cargo --config profile.dev.package.belay-node-agent.opt-level=0 test --quiet ${CARGO_FLAGS:-} \
        --workspace --lib --no-run --message-format=json |
        sed -n '/"kind":\["lib"\]/s|.*"name":"belay_node_agent".*"executable":"\([^"]*\)".*|\1|p' | tail -n 1
}

measure() {
    local counts tests operation
    local debug=${CARGO_TARGET_DIR:-target}/debug
    local fake='for belay_node_agent::kernel::fake::[A-Za-z]+>::|<belay_node_agent::kernel::fake::Fd as '

    tests=$(unit_tests)
    [ -x "$tests" ] || give_up "cargo names no unit tests of belay-node-agent"
    controller "$programs/belay-controller"
    printf 'controller lifecycle instructions %s\n' "${counts[0]}"
    printf 'controller code pages %s\n' "${counts[2]}"
    controller "$debug/belay-controller"
    printf 'controller lifecycle allocations %s\n' "${counts[1]}"
    for operation in stage publish stats unpublish unstage; do
        "${callgrind[@]}" --toggle-collect="belay_node_agent::operation::$operation::$operation" "$tests" \
            --exact operation::tests::cost::lifecycles_of_one_volume_leave_nothing \
            >"$scratch/log" 2>&1 || give_up "$(tail -n 5 "$scratch/log")"
        read -r -a counts <<<"$(awk -v without="$fake" -f "$here/count.awk" "$scratch/profile")"
        printf 'agent %s instructions %s\n' "$operation" "${counts[0]}"
        printf 'agent %s allocations %s\n' "$operation" "${counts[1]}"
    done
}

# Prints what the counts depend on, in addition to the code.
made_by() {
    printf '# %s, %s, %s\n' "$(rustc --version)" "$(valgrind --version)" \
        "$(grep -m 1 -ow avx2 /proc/cpuinfo || echo 'no avx2')"
}

made_by >"$scratch/counts"
measure >>"$scratch/counts"
if [ "${2:-}" = --write ]; then
    cp "$scratch/counts" "$baseline"
    exit 0
fi
judged=1
if [ "$(head -n 1 "$baseline")" != "$(head -n 1 "$scratch/counts")" ]; then
    announce "the baseline is of $(head -n 1 "$baseline"): only printed here"
    judged=0
fi
# The name consists of all words but the last.
awk -v max="$growth_max" '
    /^#/ { next }
    { count = $NF; $NF = ""; what = $0 }
    NR == FNR { expected[what] = count; next }
    {
        known = (what in expected) && expected[what] > 0
        growth = known ? (count / expected[what] - 1) * 100 : 0
        verdict = count == 0 ? "NOT COUNTED" : !known || growth > max ? "GROWN" : growth < -max ? "less: lower the baseline" : "ok"
        printf "%-42s%12d of %12d  %+6.1f %%  %s\n", what, count, expected[what], growth, verdict
        if (verdict ~ /^[A-Z]/) failed = 1
        delete expected[what]
    }
    END {
        for (what in expected) { printf "%s is in the baseline, and not measured\n", what; failed = 1 }
        exit failed
    }' "$baseline" "$scratch/counts" || [ "$judged" = 0 ] ||
    give_up "more than $growth_max % above tests/counted/baseline.txt; if the growth is worth it, make counted WRITE=1"
