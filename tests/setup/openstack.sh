#!/usr/bin/env bash
# Installs the programs of the OpenStack bed: MariaDB and RabbitMQ with apt, and the OpenStack
# services from the Python package index, in a virtual environment with the versions in
# requirements.txt. Prints the directory of that environment. An interrupted run continues where it
# stopped.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

lock=$here/../beds/openstack/requirements.txt
policy=/usr/sbin/policy-rc.d
services=(mariadb rabbitmq-server epmd)

# Installs packages. The bed starts its own servers, so the packages' services must not run, now or
# after a boot.
install_packages() {
    local before=() after=() service
    for service in mariadbd rabbitmq-server; do
        if have "$service"; then before+=("$service"); fi
    done
    if [ ! -e "$policy" ] && [ -w "${policy%/*}" ]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        "$here/packages.sh" openstack
        rm -f "$policy"
        trap - EXIT
    else
        "$here/packages.sh" openstack
    fi
    for service in mariadbd rabbitmq-server; do
        if have "$service"; then after+=("$service"); fi
    done
    if [ "${before[*]}" != "${after[*]}" ] && [ -d /run/systemd/system ]; then
        systemctl --quiet disable --now "${services[@]/%/.service}" epmd.socket || true
    fi
}

# Creates one environment for each set of versions and each Python, so that worktrees do not disturb
# each other. A complete environment contains the file `complete`.
environment() {
    local python key
    python=$(python3 -c 'import sys; print(sys.version, sys.base_prefix)')
    key=$(printf '%s\n' "$python" | cat - "$lock" | sha256sum | cut -c 1-12)
    printf '%s/openstack/venv-%s\n' "$BELAY_CACHE" "$key"
}

install_environment() {
    local venv=$1
    [ -e "$venv/complete" ] && return 0
    announce "installing OpenStack's services into $venv by pip (500 MB; the bed runs them)"
    [ -x "$venv/bin/pip" ] || python3 -m venv --clear "$venv"
    # The list is complete, so pip has nothing to resolve.
    "$venv/bin/pip" install --quiet --no-deps --requirement "$lock" >&2 ||
        give_up "pip could not install all of $lock; run it again to continue"
    touch "$venv/complete"
}

install_packages
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    give_up "the OpenStack bed needs Python 3.11 or later"
mkdir -p "$BELAY_CACHE/openstack"
venv=$(environment)
# Two concurrent runs would write into each other's environment.
exec 9>"$BELAY_CACHE/openstack/setup.lock"
flock 9
install_environment "$venv"
printf '%s\n' "$venv"
