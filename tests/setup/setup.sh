#!/usr/bin/env bash
# Prepares the machine for the given targets: check, test, demo, e2e, guest, mutants (any of them).
# Leaves existing tools alone, so a second run takes a fraction of a second.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
purposes=" $* "

wanted_by() {
    local purpose
    for purpose in "$@"; do
        case $purposes in *" $purpose "*) return 0 ;; esac
    done
    return 1
}

wanted_by check test demo e2e guest mutants || {
    printf 'usage: setup.sh TARGET..., of: check, test, demo, e2e, guest, mutants\n' >&2
    exit 64
}

# Install all packages first: without root, the script ends here, before anything is built.
groups=(build)
if wanted_by test demo e2e guest; then groups+=(filesystems); fi
if wanted_by test; then groups+=(foreign); fi
if wanted_by e2e; then groups+=(images kubernetes); fi
"$here/packages.sh" "${groups[@]}"

"$here/rust.sh"
if wanted_by check; then "$here/cargo_tool.sh" cargo-deny 'make check'; fi
if wanted_by mutants; then "$here/cargo_tool.sh" cargo-mutants 'make mutants'; fi
if wanted_by test guest; then
    "$here/go.sh"
    "$here/csi_sanity.sh"
fi
if wanted_by test; then
    "$here/grpcurl.sh"
    "$here/csc.sh"
    "$here/helm.sh"
    "$here/prometheus.sh"
fi
if wanted_by e2e; then
    "$here/go.sh"
    "$here/helm.sh"
    "$here/kubernetes.sh"
fi
if wanted_by guest; then
    "$here/guest.sh"
    "$here/nfs.sh"
    "$here/apparmor.sh"
fi
