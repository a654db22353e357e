#!/usr/bin/env bash
# Tests the chart's PodMonitors and Belay's PrometheusRule on a real API server, with a real
# Prometheus that is configured from them as the operator would do: the pods and their sidecars are
# found and scraped, every query of the dashboard and every recording rule has data, and on a healthy
# cluster no alert fires.
#
#   monitoring.sh     needs a cluster with deploy.sh applied; leaves it unchanged
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/env.sh"

top=$here/../../..
export PATH=$BASE/bin:$PATH KUBECONFIG=$BASE/kubeconfig
namespace=belay-system
url=http://127.0.0.1:9090
work=$(mktemp -d)
prometheus=

inside() {
    "$here/cluster.sh" exec "$@"
}

clean() {
    trap - EXIT INT TERM
    # The PID is relative to the cluster's own process namespace.
    [ ! -e "$work/prometheus.pid" ] || inside kill "$(cat "$work/prometheus.pid")" || true
    [ -z "$prometheus" ] || wait "$prometheus" || true
    set_monitors false || true
    kubectl delete --ignore-not-found --filename "$crds" >/dev/null || true
    rm -rf "$work"
}

set_monitors() {
    helm upgrade belay "$top/deploy/chart" --namespace "$namespace" --reuse-values --wait \
        --set podMonitor.enabled="$1" --set podMonitor.interval=5s --set sidecars.metrics="$1" >/dev/null
}

install_objects() {
    kubectl apply --server-side --filename "$crds" >/dev/null
    kubectl wait --for=condition=Established --timeout=60s --filename "$crds" >/dev/null
    set_monitors true
    kubectl apply --namespace "$namespace" >/dev/null \
        --filename "$top/deploy/monitoring/prometheus-rule.yaml"
}

# Prints every port of every pod, with the labels that Prometheus' own discovery would add. Debian
# builds Prometheus without the discovery for Kubernetes.
targets() {
    kubectl get pods --namespace "$namespace" --output json | jq '
        [.items[] | . as $pod | .spec.containers[] | . as $container | .ports[]? | {
            targets: ["\($pod.status.podIP):\(.containerPort)"],
            labels: ({
                __meta_kubernetes_namespace: $pod.metadata.namespace,
                __meta_kubernetes_pod_name: $pod.metadata.name,
                __meta_kubernetes_pod_node_name: $pod.spec.nodeName,
                __meta_kubernetes_pod_container_name: $container.name,
                __meta_kubernetes_pod_container_port_name: .name
            } + ($pod.metadata.labels | with_entries(.key |=
                "__meta_kubernetes_pod_label_" + gsub("[^a-zA-Z0-9_]"; "_"))))
        }]'
}

# Converts PodMonitors as the operator does; JSON is also YAML.
scrape_configs() {
    kubectl get podmonitors --namespace "$namespace" --output json |
        jq --argjson targets "$(targets)" '
        def pod($name): {source_labels: ["__meta_kubernetes_pod_" + $name]};
        [.items[] | .metadata as $meta | .spec as $spec | $spec.podMetricsEndpoints[] | {
            job_name: "\($meta.namespace)/\($meta.name)",
            metrics_path: .path,
            scrape_interval: .interval,
            static_configs: $targets,
            relabel_configs: ([
                pod("container_port_name") + {regex: .port, action: "keep"},
                ($spec.selector.matchLabels | to_entries[] |
                    pod("label_" + (.key | gsub("[^a-zA-Z0-9_]"; "_"))) +
                        {regex: .value, action: "keep"}),
                {source_labels: ["__meta_kubernetes_namespace"], target_label: "namespace"},
                pod("container_name") + {target_label: "container"},
                pod("name") + {target_label: "pod"}
            ] + [.relabelings[]? | {source_labels: .sourceLabels, target_label: .targetLabel}])
        }]'
}

start_prometheus() {
    kubectl get prometheusrules --namespace "$namespace" --output json |
        jq '{groups: [.items[].spec.groups[]]}' >"$work/rules.json"
    jq --null-input --argjson scrape "$(scrape_configs)" --arg rules "$work/rules.json" \
        '{global: {evaluation_interval: "1s"}, rule_files: [$rules], scrape_configs: $scrape}' \
        >"$work/prometheus.yml"
    inside bash -c 'echo $$ >"$1/prometheus.pid" && exec prometheus \
        --config.file="$1/prometheus.yml" --storage.tsdb.path="$1/data" \
        --web.listen-address="$2"' bash "$work" "${url#http://}" >"$work/prometheus.log" 2>&1 &
    prometheus=$!
    await 60 "prometheus" has_begun
    kill -0 "$prometheus" 2>/dev/null || { tail -n 20 "$work/prometheus.log" >&2; exit 1; }
}

# Whether Prometheus is ready, or has ended.
has_begun() {
    ! kill -0 "$prometheus" 2>/dev/null || inside curl --silent --fail "$url/-/ready"
}

ask() {
    inside curl --silent --fail --get --data-urlencode "query=$1" "$url/api/v1/query" |
        jq --raw-output "$2"
}

# Whether all pods are scraped, each with the labels that alerts and dashboard use.
are_all_scraped() {
    local up
    up=$(ask 'up{node!="", namespace!="", pod!="", container!=""} == 1' \
        '.data.result[].metric.job' | sort -u | paste -s -d ' ')
    [ "$up" = "$namespace/belay-controller $namespace/belay-node $namespace/belay-sidecars $namespace/belay-store" ]
}

# Makes calls that fail, since the dashboard also shows failed calls.
call_in_vain() {
    kubectl exec --namespace "$namespace" daemonset/belay-node --container belay-node -- \
        belayctl --endpoint /csi/local/csi.sock node stats nothing --path /nothing \
        >/dev/null 2>&1 || true
}

crds=$("$top/tests/setup/monitoring_crds.sh")
"$top/tests/setup/packages.sh" monitoring
"$top/tests/setup/prometheus.sh"
trap clean EXIT
trap 'exit 130' INT TERM
install_objects
start_prometheus
await 60 "all programs and the sidecars scraped as PodMonitors have it" are_all_scraped
# Run the checks twice, seconds apart: a counter that is first seen with its last value has no rate.
for checks in data_outlives_its_pod ''; do
    call_in_vain
    # shellcheck disable=SC2086
    "$here/check.sh" $checks >"$work/check.log" || { cat "$work/check.log" >&2; exit 1; }
done
call_in_vain
inside "$top/tests/monitoring/queries.sh" "$url"
firing=$(ask 'ALERTS{alertstate="firing"}' '.data.result[].metric.alertname' | paste -s -d ' ')
[ -z "$firing" ] || give_up "alerts fire on a healthy cluster: $firing"
printf 'monitoring: all programs and the sidecars scraped through PodMonitors, no alert fires\n'
