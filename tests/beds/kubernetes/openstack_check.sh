#!/usr/bin/env bash
# Follows the pages about the driver `openstack`, with their commands exactly as printed, on a
# cluster whose guests run with CLOUD=openstack and have the driver (guests.sh). Ends without the
# driver.
#
#   openstack_check.sh [CHECK...]
set -Eeuo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"
. "$here/guests_cloud.sh"

# The pages name no namespace for their claims and pods.
namespace=belay-page
. "$here/checks.sh"
. "$here/page.sh"

is_openstack || give_up "the guests have another cloud; please start them with CLOUD=openstack"

# data NAMESPACE: prints the data of the Secret in the namespace.
data() {
    kubectl --namespace "$1" get secret cloud-config --output jsonpath='{.data}'
}

# Copies the Secret from the namespace of cinder-csi-plugin, with a second key.
check_the_secret_of_the_plugin_is_copied() {
    local page=switching/cinder-csi.md section='Switch to Belay'
    remove_driver
    kubectl --namespace kube-system create secret generic cloud-config \
        --from-file="$BASE/run/clone/cloud.conf" --from-literal=ca.crt=none >/dev/null
    follow 4 >/dev/null
    follow 5 >/dev/null
    [ "$(data "$driver_namespace")" = "$(data kube-system)" ]
    kubectl --namespace kube-system delete secret cloud-config >/dev/null
}

# each_node_has_its_server SAID: checks the page's output about each node.
each_node_has_its_server() {
    local name
    # shellcheck disable=SC2012
    for name in $(ls "$BASE/guests"); do
        grep -q "^$name *$(cat "$BASE/guests/$name/server")$" "$1" || return 1
    done
}

has_servers() {
    follow 3 >"$BASE/run/said" && each_node_has_its_server "$BASE/run/said"
}

# Runs the page from the Secret to a pod that has written to a volume, and then to the removal.
check_the_page_works_as_it_stands() {
    local page=openstack.md section='Install with the chart'
    remove_driver
    follow 1 >/dev/null
    follow 2 >/dev/null
    await 60 "the servers of the nodes" has_servers
    grep -q '^belay-cinder ' "$BASE/run/said"
    follow 4 >"$BASE/run/said"
    tail -n 1 "$BASE/run/said" | grep -q '20[0-9][0-9]$'
    volumes '[(x["size"], len(x["servers"])) for x in v] == [(1, 1)]'
    follow 5 >/dev/null
    volumes 'v == []'
    [ -z "$(kubectl get namespace "$driver_namespace" --ignore-not-found --output name)" ]
    [ -z "$(kubectl get csidriver,storageclass --output name | grep -i cinder || true)" ]
}

checks=("$@")
[ $# -gt 0 ] || checks=(the_secret_of_the_plugin_is_copied the_page_works_as_it_stands)
mkdir -p "$BASE/run/clone"
credentials "$BASE/run/clone"
run_checks page "${checks[@]}"
