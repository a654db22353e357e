#!/usr/bin/env bash
# Implements `make openstack`: starts a bed, runs its tests, stops and removes it. Arguments go to
# cargo. After a failure, the logs of the services are in target/openstack.
#
#   BELAY_OPENSTACK=DIR    test a bed that already runs, and leave it running
#   SHORT=1                as in CI: verbs, missing and shared volumes, types, snapshots, zones,
#                          faults, csi-sanity and secrets; without backups, frozen and killed
#                          services, guests, kills, rate limits, and tests of the bed itself
#   BELAY_NIGHTLY=1        ten times as many kills, and 500 concurrent attaches
#
# Tests with guests need x86_64, since User-mode Linux exists only for it.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../../.."
. tests/setup/env.sh

logs=${CARGO_TARGET_DIR:-target}/openstack
work=

clean_up() {
    local code=$?
    # Continue the cleanup after any failure here.
    set +e
    trap - EXIT
    trap '' INT TERM HUP
    if [ -n "$work" ]; then
        if [ "$code" != 0 ] && [ -d "$work/bed/log" ]; then
            rm -rf "$logs"
            mkdir -p "${logs%/*}"
            cp -r "$work/bed/log" "$logs"
            printf 'openstack: the logs of the services are in %s\n' "$logs" >&2
        fi
        # If processes are left, so is the record that ends them.
        if "$here/bed.py" --state "$work/bed" remove; then rm -rf "$work"; else code=1; fi
    fi
    exit "$code"
}

selection=()
if [ -n "${SHORT:-}" ]; then
    selection=(clouds:: lifecycle:: missing:: retype:: sanity:: secrets:: sharing:: snapshots:: tokens:: trouble:: zones::)
elif [ "$(uname -m)" = x86_64 ] && { have linux.uml || have apt-get; }; then
    tests/setup/setup.sh guest
    tests/beds/guest/build.sh "${BELAY_BIN_DIR:-${CARGO_TARGET_DIR:-target}/bin}" "$@"
else
    announce "tests with guests are left out: there is no User-mode Linux for this machine"
    selection=(--skip guests:: --skip twin::)
fi
tests/setup/go.sh
tests/setup/csi_sanity.sh
python3 "$here/proxy_test.py" 2>&1 | tail -n 3
# The build first: the services would wait for it, and it for them. The same packages as for the
# other tests, so nothing is built twice.
cargo test "$@" --workspace --test openstack --no-run
if [ -z "${BELAY_OPENSTACK:-}" ]; then
    trap clean_up EXIT
    trap 'exit 130' INT TERM HUP
    work=$(mktemp -d)
    "$here/bed.py" --state "$work/bed" up
    export BELAY_OPENSTACK=$work/bed
fi
# One at a time: the proxy's rules and counts are for all clients.
cargo test "$@" --workspace --test openstack -- --ignored --test-threads=1 "${selection[@]}"
