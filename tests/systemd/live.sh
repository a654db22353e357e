# Runs under the systemd that check.sh has booted, together with ../volume.sh: performs an
# administrator's tasks with the packages.
set -euo pipefail
packages=/packages
declare -A ids

wrong() {
    printf 'systemd: %s\n' "$*" >&2
    exit 1
}

controller() {
    belayctl --endpoint /run/belay/controller.sock controller "$@"
}

node_socket=/run/belay/node.sock
node() {
    belayctl --endpoint "$node_socket" node "$@"
}

pid_of() {
    systemctl show --property MainPID --value "$1"
}

use() {
    local fs=$1 id
    mkdir -p "/srv/staging-$fs"
    id=$(up "data-$fs" "$fs" "/srv/staging-$fs" "/srv/pod-$fs")
    ids[$fs]=$id
    mountpoint --quiet "/srv/pod-$fs" || wrong "the $fs is not mounted where the machine sees it"
    printf 'kept\n' >"/srv/pod-$fs/file"
    # A pod with an fsGroup and a careful database does this: no other user may read the files.
    chown 1000:1000 "/srv/pod-$fs" && chmod 700 "/srv/pod-$fs"
    node health "$id" >/dev/null || wrong "the $fs is not well"
}

grow() {
    controller expand "${ids[$1]}" --size 1GiB >/dev/null
    node expand "${ids[$1]}" --path "/srv/pod-$1" --staging "/srv/staging-$1" --size 1GiB >/dev/null
}

expect_kept() {
    local fs
    for fs in "${!ids[@]}"; do
        [ "$(cat "/srv/pod-$fs/file")" = kept ] || wrong "the $fs was lost: $1"
    done
    printf 'systemd: volumes in use: %s\n' "$1"
}

give_back() {
    down "${ids[$1]}" "/srv/staging-$1" "/srv/pod-$1"
    controller delete "${ids[$1]}" >/dev/null
}

expect_new_process() {
    await systemctl is-active --quiet belay-node
    await node info
    [ "$(pid_of belay-node)" != "$before" ] || wrong "it is still the same process: $1"
    expect_kept "$1"
    before=$(pid_of belay-node)
}

# Uses the example's lines for a node of Kubernetes.
as_on_a_node_of_kubernetes() {
    local kubelet=/var/lib/kubelet id
    local registration=$kubelet/plugins_registry/local.csi.belay.dev-reg.sock
    mkdir -p "$kubelet/plugins_registry" "$kubelet/staging"
    install -d -m 750 "$kubelet/plugins/local.csi.belay.dev"
    sed -i 's/^#\(CSI_ENDPOINT\|BELAY_KUBELET\|BELAY_REGISTRATION\|BELAY_WITH\)/\1/' \
        /etc/default/belay-node
    systemctl restart belay-node
    await test -S "$registration"
    belayctl --endpoint "$registration" rpc Registration/GetInfo | grep -q "$kubelet/plugins/" ||
        wrong "the kubelet would not find the socket"
    node_socket=$kubelet/plugins/local.csi.belay.dev/csi.sock
    id=$(up in-kubelet ext4 "$kubelet/staging" "$kubelet/pod")
    mountpoint --quiet "$kubelet/pod" || wrong "the kubelet would not see the mount"
    down "$id" "$kubelet/staging" "$kubelet/pod"
    printf 'systemd: as on a node of Kubernetes: registered, mounted for the kubelet\n'
}

! systemctl is-enabled --quiet belay-node 2>/dev/null || wrong "installing has enabled it"
[ "$(pid_of belay-node)" = 0 ] || wrong "installing has started it"
[ -e /usr/lib/udev/rules.d/60-belay.rules ] || wrong "the udev rules are not where udev looks"
systemctl --quiet enable --now belay-controller belay-node
await node info
await controller capacity
for fs in ext4 xfs btrfs; do
    use "$fs"
done
grow xfs
grow btrfs
before=$(pid_of belay-node)
expect_kept "mounted for the whole machine, grown"

systemctl restart belay-node
expect_new_process "service restarted"
kill -KILL "$before"
expect_new_process "agent killed, started again"
dpkg --install "$packages"/*.deb >/dev/null
expect_new_process "packages installed again, agent restarted"

printf 'BELAY_LOG_LEVEL=nonsense\n' >>/etc/default/belay-node
systemctl restart belay-node || true
await systemctl is-failed --quiet belay-node
[ "$(systemctl show --property ExecMainStatus --value belay-node)" = 64 ] ||
    wrong "bad settings do not end it with 64"
[ "$(systemctl show --property SubState --value belay-node)" = failed ] ||
    wrong "bad settings start it again and again"
sed -i '$d' /etc/default/belay-node
systemctl restart belay-node
expect_new_process "bad settings put right"

dpkg --remove belay-node >/dev/null 2>&1
[ "$(systemctl show --property ActiveState --value belay-node)" != active ] ||
    wrong "it runs on after its package was removed"
expect_kept "package of the agent removed"
dpkg --install "$packages"/belay-node_*.deb >/dev/null
systemctl --quiet enable --now belay-node
await node info
for fs in "${!ids[@]}"; do
    give_back "$fs"
done
as_on_a_node_of_kubernetes
touch /var/lib/belay/mine
dpkg --purge belay-node belay-controller belayctl >/dev/null 2>&1
[ -e /var/lib/belay/mine ] || wrong "purge has removed /var/lib/belay"
[ ! -e /etc/default/belay-node ] || wrong "purge has left the settings"
printf 'systemd: purged: /var/lib/belay stays\n'
