#!/usr/bin/env bash
# Measures the resident memory of an agent with a driver of each kind. Fails if it exceeds the limit
# in benches/BUDGET.md.
#
#   drivers.sh PROGRAMS        the directory of the release programs
#
# There is no metadata service here: `digitalocean`, which reads the node's ID from it, responds on
# its socket, but is not ready. All calls to the other drivers must succeed.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"

programs=$(readlink -f "$1")
kinds=(local openstack digitalocean civo nfs)
kib_max=6144
scratch=$(mktemp --directory)
running=
trap 'if [ -n "$running" ]; then kill "$running" 2>/dev/null || true; fi; rm -rf "$scratch"' EXIT
unset BELAY_LOG_LEVEL BELAY_HTTP_ENDPOINT CSI_ENDPOINT

resident() {
    awk '/^VmRSS:/ { print $2 }' "/proc/$running/status"
}

mkdir "$scratch/volumes"
flags=(--http-endpoint 127.0.0.1:0 --node-name node)
for kind in "${kinds[@]}"; do
    [ "$kind" = local ] || flags+=(--next-driver)
    flags+=(--driver-kind "$kind" --endpoint "$scratch/$kind.sock" --node-id 1)
    case $kind in
        local) flags+=(--loop-dir "$scratch/volumes") ;;
        digitalocean) flags+=(--metadata-address 127.0.0.1:1) ;;
    esac
done
"$programs/belay-node" "${flags[@]}" >"$scratch/log" 2>&1 &
running=$!
for kind in "${kinds[@]}"; do
    for n in $(seq 50); do
        "$programs/belayctl" --endpoint "$scratch/$kind.sock" identity info >/dev/null 2>&1 && break
        [ "$n" -lt 50 ] || give_up "the driver $kind does not answer: $(tail -n 5 "$scratch/log")"
        sleep 0.2
    done
    for call in "identity probe" "node info" "node capabilities"; do
        # shellcheck disable=SC2086
        "$programs/belayctl" --endpoint "$scratch/$kind.sock" $call >"$scratch/answer" 2>&1 && continue
        [ "$kind" = digitalocean ] ||
            give_up "$call of the driver $kind fails: $(cat "$scratch/answer")"
    done
done
kib=$(resident)
printf 'belay-node with %s drivers: %s KiB resident, limit %s\n' "${#kinds[@]}" "$kib" "$kib_max"
[ "$kib" -le "$kib_max" ] ||
    give_up "an agent with ${#kinds[@]} drivers has $kib KiB resident; see benches/BUDGET.md"
