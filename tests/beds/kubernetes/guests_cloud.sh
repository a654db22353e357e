# shellcheck shell=bash
# Sourced by the scripts of the guests: the cloud whose servers they are. belay-guest-cloud plugs the
# disks in; its clients use its own API, or that of a real Keystone, Cinder and Nova.

openstack=$bed/../openstack
openstack_state=$BASE/nova
# As that of the real service, which the bed starts on another port.
metadata_port=8775

is_openstack() {
    [ -e "$openstack_state/bed.json" ]
}

# user COMMAND...: what a user of the real cloud does.
user() {
    "$bed/cluster.sh" exec setsid --wait "$openstack/user.py" "$openstack_state" "$@"
}

# Starts the services in the cluster's namespaces, and makes a server for each guest. Nova gives its
# orders to the operator's socket of belay-guest-cloud.
start_openstack() {
    local name server servers=()
    "$bed/cluster.sh" exec "$openstack/bed.py" --state "$openstack_state" \
        up --address "$bridge_address"
    "$bed/cluster.sh" exec "$openstack/bed.py" --state "$openstack_state" start metadata
    mkdir "$openstack_state/plugs"
    for name in $(names); do
        server=$(user boot "$name")
        printf '%s\n' "$server" >"$BASE/guests/$name/server"
        ln -s "$socket" "$openstack_state/plugs/$server"
        servers+=("$(guest_address "$name")=$server")
    done
    user metadata "$(metadata_address)" "${servers[@]}" >"$BASE/log/metadata.log" 2>&1 </dev/null &
}

# server_of NAME: /ID of the guest's server, if its cloud has given it one.
server_of() {
    ! is_openstack || printf '/%s' "$(cat "$BASE/guests/$1/server")"
}

metadata_address() {
    if is_openstack; then
        printf '%s\n' "$bridge_address:$metadata_port"
    else
        printf '%s\n' "$cloud_address"
    fi
}

# The configuration of the driver.
cloud_conf() {
    if is_openstack; then
        user conf
        return
    fi
    cat <<CONF
[Global]
auth-url=http://$cloud_address/identity/v3
region=bed
application-credential-id=bed
application-credential-secret=$("$(cat "$BASE/run/guests.program")" secret)
CONF
}
