#!/usr/bin/env bash
# Sends a Prometheus that scrapes Belay every query of the dashboard and every recording rule: each
# must have a result with a number. Alerts must be valid, whatever their state.
#
#   tests/monitoring/queries.sh PROMETHEUS_URL
#
# Requires rules.yaml among its rule_files. Within the last 15 minutes, volumes must have been
# created, mounted and released, and calls must have failed, several times: a rate needs two values.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/../setup/env.sh"
dashboard=$here/../../deploy/monitoring/dashboard.json

[ "$#" = 1 ] || give_up "usage: queries.sh PROMETHEUS_URL"
url=$1
window=15m
missing=0

# Replaces Grafana's variables by the values that Grafana would use.
concrete() {
    sed "s/\\[\$__rate_interval\\]/[$window]/g; s/\\\$operation/stage/g
        s/\\\$\\(namespace\\|node\\|driver\\)/.*/g"
}

# Prints the count of numbers in the response, not including "NaN".
numbers() {
    curl --silent --show-error --fail-with-body --max-time 30 --data-urlencode "query=$1" \
        "$url/api/v1/query" | jq '[.data.result[].value[1] | select(. != "NaN")] | length'
}

# Retries a query a few times: on a busy machine a scrape may fail, and its series are missing until
# the next.
ask() {
    local count tries
    for ((tries = 0; tries < 10; tries++)); do
        count=$(numbers "$2") || give_up "$1: Prometheus does not take: $2"
        [ "$count" -gt 0 ] && return
        sleep 1
    done
    printf 'no data for %s: %s\n' "$1" "$2" >&2
    missing=$((missing + 1))
}

# Queries of the metrics of `local` on all nodes need its controller among the targets.
ask_dashboard() {
    local title query skipped='belay_controller_(disk|troubled)_'
    [ "$(numbers 'count(belay_controller_disk_bytes)')" = 0 ] || skipped='^$'
    while IFS=$'\t' read -r title query; do
        ask "panel \"$title\"" "$query"
        asked=$((asked + 1))
    done < <(jq --raw-output --arg skipped "$skipped" '.panels | .. | objects | select(.targets)
        | .title as $t | .targets[] | select(.expr | test($skipped) | not)
        | $t + "\t" + .expr' "$dashboard" | concrete)
}

ask_variables() {
    local query answer
    while read -r query; do
        answer=$(curl --silent --fail --get --max-time 30 --data-urlencode "match[]=${query%,*}" \
            "$url/api/v1/label/${query##*, }/values" | jq '.data | length')
        asked=$((asked + 1))
        [ "$answer" -gt 0 ] && continue
        printf 'no value for the variable %s\n' "$query" >&2
        missing=$((missing + 1))
    done < <(jq --raw-output '.templating.list[].definition // empty' "$dashboard" | concrete |
        sed 's/^label_values(\(.*\))$/\1/')
}

rules() {
    curl --silent --show-error --fail --max-time 30 "$url/api/v1/rules" |
        jq --raw-output ".data.groups[].rules[] | $1"
}

ask_rules() {
    local name unhealthy
    for name in $(rules 'select(.type == "recording") | .name' | sort -u); do
        ask "the recording rule" "max_over_time($name[30m])"
        asked=$((asked + 1))
    done
    [ "$(rules 'select(.type == "alerting") | .name' | wc -l)" -ge 15 ] ||
        give_up "this Prometheus has not read deploy/monitoring/rules.yaml"
    unhealthy=$(rules 'select(.health != "ok") | .name + ": " + .lastError')
    [ -z "$unhealthy" ] || { printf '%s\n' "$unhealthy" >&2; missing=$((missing + 1)); }
}

asked=0
ask_dashboard
ask_variables
ask_rules
[ "$missing" = 0 ] || give_up "monitoring: $missing of $asked without data"
printf 'monitoring: %d queries, variables and recorded series: all have data\n' "$asked"
