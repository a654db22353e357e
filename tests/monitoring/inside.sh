#!/usr/bin/env bash
# The part of real.sh that is process 1 in separate namespaces.
#
#   inside.sh WORK BINDIR
set -euo pipefail
[ $$ = 1 ] || { echo "inside.sh: is started by real.sh only" >&2; exit 64; }
work=$1 bindir=$2
here=$(dirname "$(readlink -f "$0")")
. "$here/../volume.sh"
node_id=node-1
prometheus=http://127.0.0.1:9090

wrong() {
    printf 'monitoring: %s\n' "$*" >&2
    tail -n 10 "$work"/*.log >&2
    exit 1
}

controller() {
    "$bindir/belayctl" --endpoint "$work/controller.sock" controller "$@"
}

node() {
    "$bindir/belayctl" --endpoint "$work/node.sock" node "$@"
}

# Starts both programs on a tmpfs, which shares no blocks between files, so that there is something
# to copy.
start_programs() {
    mkdir -p "$work/state" "$work/plugins_registry"
    mount -t tmpfs -o size=32G tmpfs "$work/state"
    "$bindir/belay-controller" --state-dir "$work/state" --node-id "$node_id" \
        --endpoint "$work/controller.sock" --http-endpoint 127.0.0.1:9809 2>"$work/controller.log" &
    await controller capacity
    "$bindir/belay-node" --loop-dir "$work/state/volumes" --node-id "$node_id" \
        --endpoint "$work/node.sock" --http-endpoint 127.0.0.1:9808 \
        --registration-dir "$work/plugins_registry" \
        --kubelet-registration-path /csi/csi.sock 2>"$work/node.log" &
    await node info
    # Send the kubelet's replies.
    "$bindir/belayctl" --endpoint "$work"/plugins_registry/*-reg.sock \
        rpc NotifyRegistrationStatus '{"plugin_registered": true}' >/dev/null
}

# Prints a scrape configuration, with the labels that the operator adds to the targets of a
# PodMonitor.
scrape() {
    cat <<YAML
- job_name: belay-system/belay-$1
  static_configs:
    - targets: [127.0.0.1:$2]
      labels: {namespace: belay-system, pod: belay-$1-0, container: belay-$1, node: node-1}
YAML
}

# Starts Prometheus. It scrapes every two seconds, so that two values of a counter are soon
# available.
start_prometheus() {
    {
        printf 'global: {scrape_interval: 2s, evaluation_interval: 2s}\n'
        printf 'rule_files: [%s]\nscrape_configs:\n' "$work/rules.yaml"
        scrape node 9808
        scrape controller 9809
    } >"$work/prometheus.yml"
    # Conditions that must last for minutes must last only seconds here.
    sed 's/^\( *for: \)[0-9]*m$/\110s/' "$here/../../deploy/monitoring/rules.yaml" \
        >"$work/rules.yaml"
    prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" \
        --web.listen-address=127.0.0.1:9090 2>"$work/prometheus.log" &
    await curl --silent --fail "$prometheus/-/ready"
}

# live NAME FS [CREATE-FLAG...]: runs a volume's lifecycle without its end; prints the volume's ID.
live() {
    local id
    mkdir -p "$work/staging"
    id=$(up "$1" "$2" "$work/staging" "$work/pod" "${@:3}")
    node stats "$id" --path "$work/pod" >/dev/null
    printf '%s\n' "$1" >"$work/pod/name"
    down "$id" "$work/staging" "$work/pod"
    printf '%s\n' "$id"
}

# Creates a snapshot by copying, and a volume from it.
copy() {
    local snapshot
    snapshot=$(controller snapshot-create "snapshot-$1" "$2" | field snapshot_id)
    await sh -c "'$bindir/belayctl' --endpoint '$work/controller.sock' controller snapshot-get \
        '$snapshot' | grep -q 'ready_to_use *yes'"
    live "restored-$1" "$3" --from-snapshot "$snapshot" >/dev/null
}

# Creates a volume with unknown data, which an agent must refuse to format.
be_refused() {
    local id
    id=$(controller create "foreign-$1" --size 512MiB --fs-type ext4 | field volume_id)
    printf 'somebodys' | dd of="$work/state/volumes/$id" bs=1M seek=5 conv=notrunc status=none
    mkdir -p "$work/staging"
    ! node stage "$id" --staging "$work/staging" --fs-type ext4 >/dev/null 2>&1 ||
        wrong "a volume with foreign data was formatted"
    controller delete "$id" >/dev/null
}

round() {
    local fs id
    for fs in ext4 xfs btrfs; do
        id=$(live "$fs-$1" "$fs")
        [ "$fs" != xfs ] || copy "$1" "$id" xfs
    done
    be_refused "$1"
    be_refused "again-$1"
    sleep 5
}

seconds_since() {
    printf '%d\n' "$(($(date +%s) - $1))"
}

# urgent SINCE ALERT [SELECTOR]: checks that the alert fires within two minutes, as docs/runbook.md
# promises. The test scrapes more often than in production, but uses the real rules for these
# alerts.
urgent() {
    local since=$1 query="ALERTS{alertname=\"$2\", alertstate=\"firing\"${3:+, $3}}"
    until [ "$(curl --silent --fail --data-urlencode "query=$query" "$prometheus/api/v1/query" |
        jq '.data.result | length')" -gt 0 ]; do
        [ "$(seconds_since "$since")" -le 120 ] || wrong "$2 ($query) does not fire: $(firing)"
        sleep 0.5
    done
    printf 'monitoring: %s fired after %d s\n' "$2" "$(seconds_since "$since")"
}

# Takes a picture of the status page in a real browser, if BELAY_PICTURE names the file to write.
picture() {
    [ -n "${BELAY_PICTURE:-}" ] || return 0
    HOME=$work chromium --headless --no-sandbox --disable-gpu --window-size=1280,720 \
        --screenshot="$BELAY_PICTURE" http://127.0.0.1:9808/ 2>"$work/chromium.log" ||
        wrong "chromium shows no page"
}

# record_an_error ID: makes the kernel record an error of this mounted ext4, through
# fs/ext4/sysfs.c, which exists for tests. A separate worker counts the error.
record_an_error() {
    local device
    device=$(losetup --noheadings --output NAME --associated "$work/state/volumes/$1")
    printf 'a test' >"/sys/fs/ext4/${device##*/}/trigger_fs_error"
    await grep --quiet '[1-9]' "/sys/fs/ext4/${device##*/}/errors_count"
}

# Damages two volumes that pods use: removes the backing file of one, and causes an error in the
# filesystem of the other. Both at once, because each alert takes a while.
harm_two_volumes() {
    local lost damaged since
    mkdir -p "$work/staging" "$work/staging-damaged"
    lost=$(up lost ext4 "$work/staging" "$work/pod")
    damaged=$(up damaged ext4 "$work/staging-damaged" "$work/pod-damaged")
    since=$(date +%s)
    rm "$work/state/volumes/$lost"
    record_an_error "$damaged"
    urgent "$since" BelayDataLoss 'reason="BackingFileMissing"'
    # The kubelet does this every minute.
    node stats "$lost" --path "$work/pod" >/dev/null
    node stats "$damaged" --path "$work/pod-damaged" >/dev/null
    urgent "$since" BelayDataLoss 'reason="BackingFileGone"'
    urgent "$since" BelayVolumesUnhealthy 'reason="FilesystemErrors"'
    picture
    # An empty file abandons the data of the volume that has lost its file. The next stage of the
    # other volume checks its filesystem.
    down "$lost" "$work/staging" "$work/pod"
    : >"$work/state/volumes/$lost"
    controller delete "$lost" >/dev/null
    down "$damaged" "$work/staging-damaged" "$work/pod-damaged"
    up damaged ext4 "$work/staging-damaged" "$work/pod-damaged" >/dev/null
    node stats "$damaged" --path "$work/pod-damaged" >/dev/null
    await is_firing "BelayFormatRefused"
    down "$damaged" "$work/staging-damaged" "$work/pod-damaged"
    controller delete "$damaged" >/dev/null
}

# Shrinks the filesystem so that it can be filled, and then writes files until none fits.
fill_the_disk() {
    local used since
    used=$(df --output=used --block-size=1M "$work/state" | tail -n 1)
    mount -o "remount,size=$((used + 64))M" "$work/state"
    since=$(date +%s)
    ! dd if=/dev/zero of="$work/state/full" bs=1M status=none 2>/dev/null ||
        wrong "the disk takes more than it has room for"
    urgent "$since" BelayStorageFull
    await is_firing "BelayFormatRefused BelayStorageFillsUp BelayStorageFull"
    rm "$work/state/full"
    mount -o remount,size=32G "$work/state"
    await is_firing "BelayFormatRefused"
}

firing() {
    curl --silent --fail "$prometheus/api/v1/alerts" |
        jq --raw-output '.data.alerts[] | select(.state == "firing") | .labels.alertname' |
        sort -u | paste -s -d ' '
}

is_firing() {
    [ "$(firing)" = "$1" ]
}

ip link set lo up
start_programs
start_prometheus
for n in 1 2 3; do
    round "$n"
done
"$here/queries.sh" "$prometheus" || wrong "see above"
await is_firing BelayFormatRefused
harm_two_volumes
fill_the_disk
kill %2 && wait %2 || wrong "the agent ended with $?"
await is_firing "BelayFormatRefused BelayNodeDown"
printf 'monitoring: alerts: %s\n' "$(firing)"
