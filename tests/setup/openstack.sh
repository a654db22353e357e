#!/usr/bin/env bash
# Installs the programs of the OpenStack bed: MariaDB and RabbitMQ with apt, and the OpenStack
# services from the Python package index, in a virtual environment with the versions in
# requirements.txt. Prints the directory of that environment. An interrupted run continues where it
# stopped.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

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

install_packages
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    give_up "the OpenStack bed needs Python 3.11 or later"
exec "$here/venv.sh" openstack "$here/../beds/openstack/requirements.txt" \
    "OpenStack's services (500 MB; the bed runs them)"
