#!/usr/bin/env bash
# Tests the controller's client for Kubernetes, and the chart's definitions of objects, with a real API
# server and etcd, which listen on the loopback interface only.
#
#   objects.sh [FLAG of cargo...]
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

"$here/build/build.sh"
BELAY_KUBERNETES=$(bed_binaries)
export BELAY_KUBERNETES
cd "$here/../../.."
cargo build "$@" --quiet -p belay-ctl
BELAYCTL=$(readlink -f "${CARGO_TARGET_DIR:-target}/debug/belayctl")
export BELAYCTL
cargo test "$@" -p belay-controller --test objects
