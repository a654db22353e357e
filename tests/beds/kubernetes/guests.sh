#!/usr/bin/env bash
# Adds guests as nodes to a running cluster, next to node1: User-mode Linux machines, each with its
# own kernel, kubelet and disks. They are the servers of a small cloud (tests/beds/guest), in which
# OpenStack clients create volumes and attach them as disks. With CLOUD=openstack at `up`, that cloud
# plugs the disks for a real Keystone, Cinder and Nova (tests/beds/openstack); with
# CLOUD=digitalocean or CLOUD=civo, for a twin of that cloud (tests/twins). With CLOUD=nfs, a
# further guest is an NFS server, and the guests have only their own disks. With CLOUD=local, each
# guest has a second disk, for the volumes of the driver `local`.
#
#   guests.sh up PROGRAM         starts the cloud, and as many guests as GUESTS said when the
#                                cluster was started; returns when all are ready. PROGRAM:
#                                belay-guest-cloud, with belay-twins next to it
#   guests.sh deploy IMAGES      installs Belay for the guests, in place of what is installed
#   guests.sh import ARCHIVE     imports an image into the containerd of each guest
#   guests.sh run NAME [SECONDS] <SCRIPT
#   guests.sh cut NAME           cuts the power of a guest
#   guests.sh boot NAME [NODE]   turns it on again; returns when the node is ready. NODE: the other
#                                name of its Node, NAME-new
#   guests.sh logs DIRECTORY     copies what the guests have logged
#   guests.sh down               removes the nodes; the guests end with the cluster at the latest
#
# All of it runs in the namespaces of the cluster, and ends with them.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
. "$here/guests_cloud.sh"
. "$here/guests_nfs.sh"
. "$here/guests_local.sh"

disk_gib=8
memory_mib=1536
seconds_max=240
namespace=belay-system
socket=$BASE/run/guests.sock
export PATH=$BASE/bin:$PATH KUBECONFIG=$BASE/kubeconfig

names() {
    [ -d "$BASE/guests" ] || give_up "the cluster has no guests; please start it with GUESTS=2"
    ls "$BASE/guests"
}

inside() {
    "$here/cluster.sh" exec "$@"
}

# Calls the cloud through a socket in the filesystem, which also works from outside.
cloud() {
    local program
    program=$(cat "$BASE/run/guests.program" 2>/dev/null) ||
        give_up "no guests run; please run: guests.sh up PROGRAM"
    "$program" "$@"
}

# run NAME SECONDS <SCRIPT
run() {
    cloud run "$socket" "$1" "$2"
}

check_ready() {
    [ "$(uname -m)" = x86_64 ] || give_up "there is no User-mode Linux for this machine"
    [ -c /dev/net/tun ] || give_up "guests need /dev/net/tun; please load the module tun"
    [ -x "$1" ] || give_up "there is no $1; please run: tests/beds/guest/build.sh BINDIR"
}

make_network() {
    local name
    inside ip link add br0 type bridge
    inside ip address add "$bridge_address/24" dev br0
    inside ip link set br0 up
    for name in $(names); do
        inside ip tuntap add "tap${name#node}" mode tap
        inside ip link set "tap${name#node}" master br0 up
        inside ip route add "$(guest_pods "$name")" via "$(guest_address "$name")"
    done
    ! is_nfs || make_filer_network
}

make_disk() {
    truncate --size "${disk_gib}G" "$1"
    mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1 "$1"
}

start_cloud() {
    local name servers=() arguments
    mkdir -p "$BASE/cloud"
    for name in $(names); do
        make_disk "$BASE/guests/$name/disk"
        arguments="belay.name=$name ubd0=$BASE/guests/$name/disk"
        arguments+=" vec0:transport=tap,ifname=tap${name#node},depth=64,gro=1"
        arguments+=",mac=52:54:00:00:00:$(printf %02x "${name#node}")"
        ! is_nfs || arguments+=" security=apparmor"
        ! is_local || arguments+=$(make_volumes_disk "$name")
        servers+=("$name$(server_of "$name")=$(guest_address "$name")=$arguments")
    done
    if is_nfs; then
        make_disk "$filer/disk"
        servers+=("filer=$filer_address=$(filer_arguments)")
    fi
    printf '%s\n' "$1" >"$BASE/run/guests.program"
    inside setsid "$1" serve "$socket" "$(own_address)" "$BASE/cloud" "$(slots)" "$memory_mib" \
        "${servers[@]}" >"$BASE/log/guests.log" 2>&1 </dev/null &
    await 30 "the cloud of the guests" test -S "$socket"
}

boot() {
    if [ "$1" = filer ]; then
        boot_filer
        return
    fi
    cloud boot "$socket" "$1"
    run "$1" "$seconds_max" <<SH
"/machine$here/guest.sh" "$1" "$BASE" "$(cat "$BASE/programs")" "$BELAY_CACHE" "${2:-$1}"
SH
}

is_ready() {
    kubectl wait --for=condition=Ready "node/$1" --timeout=1s
}

# each COMMAND: runs the command with the name of each guest, for all guests concurrently.
each() {
    local name pids=() pid code=0
    for name in $(names); do
        "$@" "$name" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || code=1; done
    return "$code"
}

up() {
    names >/dev/null
    check_ready "$1"
    [ "${CLOUD:-}" != nfs ] || mkdir "$filer"
    [ "${CLOUD:-}" != local ] || mkdir "$disks"
    make_network
    case ${CLOUD:-mock} in
        mock | nfs | local) ;;
        openstack) start_openstack ;;
        digitalocean | civo)
            "start_$CLOUD" "$(dirname "$(readlink -f "$1")")/belay-twins"
            guests_twin=$CLOUD
            ;;
        *) give_up "CLOUD=$CLOUD: there are: mock openstack nfs local digitalocean civo" ;;
    esac
    start_cloud "$(readlink -f "$1")"
    ! is_nfs || boot filer
    each boot
    each await_ready
}

await_ready() {
    await "$seconds_max" "the node $1" is_ready "$1"
}

# Imports an image and syncs it: otherwise, after a power cut, its programs would be empty.
import() {
    run "$2" "$seconds_max" <<SH >/dev/null
PATH=/machine$node_tools/bin:\$PATH
ctr --namespace k8s.io images import "/machine$1"
sync --file-system /node
SH
}

put_secret() {
    local name directory
    name=$(secret)
    directory=$(mktemp -d)
    credentials "$directory"
    kubectl get namespace "$namespace" >/dev/null 2>&1 || kubectl create namespace "$namespace"
    kubectl --namespace "$namespace" create secret generic "$name" --dry-run=client \
        --output yaml --from-file="$directory" |
        kubectl apply --filename - >/dev/null
    rm -r "$directory"
}

await_registered() {
    await "$seconds_max" "the registration of $guests_driver with the kubelet of $1" is_registered "$1"
}

# Installs the driver. Pods of the tests run on guests; the controller of a cloud runs alone on the
# first node. With CLOUD=local, pods run on the first node too.
deploy() {
    local images=$1 settings
    each import "$images/belay-node.tar"
    if is_nfs; then
        import_controllers "$images"
        settings=(--values "$here/guests_nfs.yaml")
    elif is_local; then
        each import "$images/belay-controller.tar"
        mapfile -t settings < <(local_flags)
    else
        inside ctr --namespace k8s.io images import "$images/belay-controller.tar" >/dev/null
        put_secret
        mapfile -t settings < <(chart_flags)
    fi
    helm upgrade --install belay "$here/../../../deploy/chart" --namespace "$namespace" --create-namespace \
        "${settings[@]}" --wait --timeout 5m >"$BASE/log/helm.log" 2>&1 || {
        cat "$BASE/log/helm.log" >&2
        give_up "helm could not install the chart for the guests"
    }
    each await_registered
    if is_local; then await_registered "$node"; else kubectl cordon "$node" >/dev/null; fi
}

# Copies the logs. For a guest that does not respond, there is only its console.
logs() {
    local name
    mkdir -p "$1"
    cp "$BASE"/tmp/belay-guest-*/console* "$1" 2>/dev/null || true
    ! is_openstack || cp -r "$openstack_state/log" "$1/openstack"
    ! is_nfs || run filer 60 <<<'dmesg | tail -n 200' >"$1/filer.log" 2>&1 || true
    ! is_twin || cp "$BASE/log/twin.log" "$1"
    for name in $(names); do
        run "$name" 60 >"$1/$name.log" 2>&1 <<'SH' || true
cd /node/log
tail -n 400 kubelet.log containerd.log
find pods -name '*.log' -exec tail -n 400 {} +
dmesg | tail -n 200
SH
    done
}

down() {
    local name
    kubectl uncordon "$node" >/dev/null
    for name in $(names); do
        cloud cut "$socket" "$name"
        kubectl delete node "$name" "$name-new" --ignore-not-found --timeout=60s >/dev/null
    done
    ! is_openstack || inside "$openstack/bed.py" --state "$openstack_state" remove
    ! is_nfs || cloud cut "$socket" filer
}

command=${1:-}
shift || true
case $command in
    up) up "${1:?the program belay-guest-cloud}" ;;
    deploy) deploy "${1:?the directory of the images}" ;;
    import) each import "$(readlink -f "${1:?an archive}")" ;;
    run) run "${1:?the name of a guest}" "${2:-60}" ;;
    cut) cloud cut "$socket" "${1:?the name of a guest}" ;;
    boot)
        boot "${1:?the name of a guest}" "${2:-$1}"
        [ "$1" = filer ] || await_ready "${2:-$1}"
        ;;
    logs) logs "${1:?a directory}" ;;
    down) down ;;
    *)
        sed -n '10,22s/^# *//p' "$0" >&2
        exit 64
        ;;
esac
