#!/usr/bin/env bash
# Prints rules.yaml as a PrometheusRule for the Prometheus operator, or as it is.
#
#   deploy/monitoring/generate.sh [--plain] [RUNBOOK [KEY=VALUE...]]
#
# RUNBOOK is the URL of your copy of docs/runbook.md, without an anchor; the alerts link to it.
# KEY=VALUE is a label by which your Prometheus selects rules, often release=NAME.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
default='docs/runbook.md'
plain=
[ "${1:-}" != --plain ] || { plain=yes; shift; }
runbook=${1:-$default}

rules() {
    sed "s|\(runbook_url: \)$default#|\1$runbook#|" "$here/rules.yaml"
}

[ -z "$plain" ] || { rules; exit; }
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
rules | sed -n '/^groups:/,$p' | sed 's/^\(.\)/  \1/'
