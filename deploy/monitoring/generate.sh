#!/usr/bin/env bash
# Prints rules.yaml as a PrometheusRule for the Prometheus operator.
#
#   deploy/monitoring/generate.sh [RUNBOOK [KEY=VALUE...]] >deploy/monitoring/prometheus-rule.yaml
#
# RUNBOOK is where docs/runbook.md can be read in a browser; without it the alerts name the file.
# KEY=VALUE is a label that your Prometheus selects rules by, often release=NAME.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
runbook=${1:-docs/runbook.md}

cat <<'END'
# Made from rules.yaml by generate.sh; change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: belay
  labels:
    app.kubernetes.io/name: belay
END
for label in "${@:2}"; do
    printf '    %s: "%s"\n' "${label%%=*}" "${label#*=}"
done
printf 'spec:\n'
sed -n '/^groups:/,$p' "$here/rules.yaml" |
    sed "s|\(runbook_url: \)docs/runbook.md|\1$runbook|; s/^\(.\)/  \1/"
