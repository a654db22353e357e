# shellcheck shell=bash
# Sourced by the scripts of the guests: the cloud whose servers they are. belay-guest-cloud plugs
# the disks; clients use its own API, a real Keystone, Cinder and Nova, or a twin of DigitalOcean or
# Civo.

openstack=$bed/../openstack
openstack_state=$BASE/nova
# The directory of the twin, which has the twin's name and contains its volumes.
twins=$BASE/twins
# The credentials that the twins accept.
digitalocean_token=dop_v1_token-of-the-twin
civo_key=canary-of-the-twin-of-civo
civo_cluster=c1u57e12-0000-4000-8000-000000000001
# The port of the real services' metadata, which the bed and the twin of DigitalOcean serve on
# another port.
metadata_port=8775
# Maximum number of disks of a guest.
slots_max=16

is_openstack() {
    [ -e "$openstack_state/bed.json" ]
}

is_digitalocean() {
    [ -d "$twins/digitalocean" ]
}

is_civo() {
    [ -d "$twins/civo" ]
}

is_twin() {
    is_digitalocean || is_civo
}

# user COMMAND...: makes requests as a user of the real cloud.
user() {
    "$bed/cluster.sh" exec setsid --wait "$openstack/user.py" "$openstack_state" "$@"
}

# Starts the services in the cluster's namespaces, and creates a server for each guest. Nova sends
# its requests to the operator's socket of belay-guest-cloud.
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

# start_digitalocean PROGRAM: starts the twin, with a droplet for each guest.
start_digitalocean() {
    local name droplet droplets=() limits=()
    # All specs together make more calls than the real cloud allows in an hour.
    [ -z "${FULL:-}" ] || limits=(--calls-a-minute 2500)
    mkdir -p "$twins/digitalocean"
    guests_driver=dobs.csi.digitalocean.com
    for name in $(names); do
        droplet=$((100 + ${name#node}))
        printf '%s\n' "$droplet" >"$BASE/guests/$name/server"
        droplets+=("$droplet=$name=$(guest_address "$name")")
    done
    serve_twin "$1" digitalocean "${limits[@]}" --metadata "$(metadata_address)" "${droplets[@]}"
}

# start_civo PROGRAM: starts the twin, with an instance for each guest, which has the guest's name.
start_civo() {
    local name
    mkdir -p "$twins/civo"
    guests_driver=csi.civo.com
    for name in $(names); do printf '%s\n' "$name" >"$BASE/guests/$name/server"; done
    # shellcheck disable=SC2046
    serve_twin "$1" civo --civo $(names)
}

# serve_twin PROGRAM NAME ARGUMENT...
serve_twin() {
    local program=$1 directory=$twins/$2
    shift 2
    # In the real clouds, a change takes some seconds.
    "$bed/cluster.sh" exec setsid "$program" --delay-ms 1000 --address "$cloud_address" \
        --disks "$socket" "$directory" "$@" >"$BASE/log/twin.log" 2>&1 </dev/null &
    await 30 "the twin of the cloud" cloud_volumes
}

# server_of NAME: prints /ID of the guest's server, if its cloud has assigned an ID.
server_of() {
    ! is_openstack || printf '/%s' "$(cat "$BASE/guests/$1/server")"
}

# is_registered NAME: whether the driver is registered with the guest's kubelet.
is_registered() {
    kubectl get csinode "$1" --output jsonpath='{.spec.drivers[*].name}' | grep -qw "$guests_driver"
}

# Prints the number of slots for disks: virtio, and SCSI.
slots() {
    if is_twin; then echo "0+$slots_max"; else echo "$slots_max"; fi
}

# Prints the maximum number of volumes of a server.
volumes_max() {
    if is_digitalocean; then echo 15; else echo "$slots_max"; fi
}

metadata_address() {
    if is_openstack || is_digitalocean; then
        printf '%s\n' "$bridge_address:$metadata_port"
    else
        printf '%s\n' "$cloud_address"
    fi
}

# Prints the address of the API of belay-guest-cloud, which no client must reach if another API
# replaces it.
own_address() {
    if is_openstack || is_twin; then
        printf '127.0.0.1:%s\n' "${cloud_address##*:}"
    else
        printf '%s\n' "$cloud_address"
    fi
}

# Prints the arguments of helm for the driver.
chart_flags() {
    printf -- '--values\n%s\n' "$bed/guests.yaml"
    if is_twin; then
        printf -- '--values\n%s\n' "$bed/guests_$guests_twin.yaml"
    fi
    address_flags
}

# Prints the arguments of helm that only the bed needs.
address_flags() {
    ! is_digitalocean || printf -- '--set\ndrivers[0].apiUrl=http://%s\n' "$cloud_address"
    printf -- '--set\ndrivers[0].maxVolumes=%s\n' "$(volumes_max)"
    is_civo || printf -- '--set\ndrivers[0].metadata.address=%s\n' "$(metadata_address)"
}

# Prints the name of the Secret with the credentials.
secret() {
    if is_digitalocean; then
        echo digitalocean
    elif is_civo; then
        echo civo-api-access
    else
        echo cloud-config
    fi
}

# credentials DIRECTORY: writes the content of the Secret, a file for each key.
credentials() {
    if is_digitalocean; then
        printf '%s' "$digitalocean_token" >"$1/access-token"
    elif is_civo; then
        printf '%s' "$civo_key" >"$1/api-key"
        printf 'http://%s' "$cloud_address" >"$1/api-url"
        printf LON1 >"$1/region"
        printf '%s' "$civo_cluster" >"$1/cluster-id"
    elif is_openstack; then
        user conf >"$1/cloud.conf"
    else
        cat >"$1/cloud.conf" <<CONF
[Global]
auth-url=http://$cloud_address/identity/v3
region=bed
application-credential-id=bed
application-credential-secret=$("$(cat "$BASE/run/guests.program")" secret)
CONF
    fi
}

# Whether the cloud's volumes can be compared with the cluster's.
has_volumes() {
    is_openstack || is_twin
}

# twin_call METHOD PATH [BODY]: prints the twin's response.
twin_call() {
    "$bed/cluster.sh" exec python3 -c 'import sys, urllib.request
url, token, method, body = sys.argv[1:]
headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
request = urllib.request.Request(url, body.encode() or None, headers, method=method)
with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
    print(answer.read().decode())' "http://$cloud_address/v2/$2" "$(twin_token)" "$1" "${3:-}"
}

twin_token() {
    if is_civo; then echo "$civo_key"; else echo "$digitalocean_token"; fi
}

# Prints the cloud's volumes as JSON: ID, name, size in GiB, servers, and the name of the link that
# udev creates on a server.
cloud_volumes() {
    if is_openstack; then
        user volumes | python3 -c 'import json, sys
print(json.dumps([{**v, "link": "virtio-" + v["id"][:20]} for v in json.load(sys.stdin)
                  if v["status"] in ("available", "in-use")]))'
    elif is_civo; then
        { twin_call GET "kubernetes/clusters/$civo_cluster/instances" && twin_call GET volumes; } |
            python3 -c 'import json, sys
names, volumes = map(json.loads, sys.stdin)
names = {i["id"]: i["hostname"] for i in names}
print(json.dumps([{"id": v["id"], "name": v["name"], "size": v["size_gb"],
                   "servers": [names[i] for i in [v["instance_id"]] if i],
                   "link": "scsi-0QEMU_QEMU_HARDDISK_" + v["id"]} for v in volumes]))'
    else
        twin_call GET 'volumes?per_page=200' | python3 -c 'import json, sys
print(json.dumps([{"id": v["id"], "name": v["name"], "size": v["size_gigabytes"],
                   "servers": [str(d) for d in v["droplet_ids"]],
                   "link": "scsi-0DO_Volume_" + v["name"]} for v in json.load(sys.stdin)["volumes"]]))'
    fi
}

# volumes EXPRESSION: whether the expression is true for `v`, the volumes in the cloud.
volumes() {
    cloud_volumes | python3 -c 'import json, sys
v = json.load(sys.stdin)
sys.exit(not eval(f"({sys.argv[1]})"))' "$1"
}
