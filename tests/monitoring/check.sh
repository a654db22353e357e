#!/usr/bin/env bash
# Runs static checks of deploy/monitoring: promtool accepts the rules and they pass their tests;
# every alert has the required texts, and its section in the runbook; every test of a rule can fail;
# every metric and label in rules and dashboard is listed in docs/metrics.md.
#
#   tests/monitoring/check.sh
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
top=$here/../..
. "$top/tests/setup/env.sh"
rules=$top/deploy/monitoring/rules.yaml
dashboard=$top/deploy/monitoring/dashboard.json
tests=$here/rules_test.yaml
runbook=$top/docs/runbook.md
metrics=$top/docs/metrics.md
# The URL to which the alerts link, unless generate.sh gets another one.
runbook_url=$(sed -n "s/^default='\(.*\)'/\1/p" "$top/deploy/monitoring/generate.sh")
# Labels that a scrape adds to every metric, the label of histogram quantiles, and the rules' name
# for the pods of one Deployment.
target_labels=" namespace pod node container instance job le controller "

"$top/tests/setup/packages.sh" monitoring
"$top/tests/setup/prometheus.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

wrong() {
    printf 'monitoring: %s\n' "$*" >&2
    exit 1
}

# Prints the names of alerts. Some have two rules: a warning, and a critical one for many nodes.
alerts() {
    sed -n 's/^ *- alert: //p' "$rules" | sort -u
}

passes() {
    promtool test rules "$1" >"$work/said" 2>&1
}

# Checks that generate.sh adds the requested labels, by which Prometheus' operator selects rules,
# and changes nothing else.
expect_labels() {
    "$top/deploy/monitoring/generate.sh" "$runbook_url" release=mine team=ours \
        >"$work/labelled.yaml"
    diff "$top/deploy/monitoring/prometheus-rule.yaml" "$work/labelled.yaml" >"$work/said" || true
    [ "$(grep '^[<>]' "$work/said")" = $'>     release: "mine"\n>     team: "ours"' ] ||
        wrong "generate.sh gives other labels than requested: $(cat "$work/said")"
}

expect_base() {
    local elsewhere=https://elsewhere.example/book form
    for form in "" --plain; do
        # shellcheck disable=SC2086
        "$top/deploy/monitoring/generate.sh" $form "$elsewhere" >"$work/elsewhere.yaml"
        ! grep "runbook_url:" "$work/elsewhere.yaml" | grep -v "$elsewhere#belay" ||
            wrong "generate.sh $form leaves links to another runbook"
    done
    grep -q "runbook_url: $elsewhere#" "$work/elsewhere.yaml" || wrong "generate.sh sets no links"
}

# Prints the rule of an alert, counted from 1 in the whole file: all lines up to the next rule.
rule() {
    awk -v number="$1" '/^ *- (alert|name): / { mine = $2 == "alert:" && ++count == number } mine' \
        "$rules"
}

expect_complete() {
    local alert field number=0
    for alert in $(sed -n 's/^ *- alert: //p' "$rules"); do
        number=$((number + 1))
        for field in 'severity: \(critical\|warning\)}' 'summary: .*\$labels\.' \
            'description: .\{40\}' "runbook_url: $runbook_url#${alert,,}\$"; do
            # The alert without a target has no label to name.
            [ "$alert" != BelayMetricsAbsent ] || field=${field/%.\*\\\$labels\\./}
            rule "$number" | grep -q "$field" || wrong "$alert (rule $number) has no $field"
        done
        grep -q "^## $alert\$" "$runbook" || wrong "$alert has no section in docs/runbook.md"
    done
    diff <(alerts) <(sed -n 's/^## \(Belay\)/\1/p' "$runbook" | sort) ||
        wrong "alerts (<) and sections of docs/runbook.md (>) differ"
}

# Replaces the expressions of all alerts at once: the output of the failing tests must name each
# alert.
expect_noticed() {
    local alert
    mkdir -p "$work/changed"
    sed "/- alert: /,/for:\|labels:/s/^\( *expr: \)\(.*\)/\1$1/" "$rules" \
        >"$work/changed/rules.yaml"
    sed 's|^rule_files: .*|rule_files: [rules.yaml]|' "$tests" >"$work/changed/tests.yaml"
    ! passes "$work/changed/tests.yaml" || wrong "no test notices when all alerts are: $1"
    for alert in $(alerts); do
        grep -q "expr: .*alertname=.*\b$alert\b" "$work/said" || wrong "$alert: no test notices: $1"
    done
}

expect_tested() {
    passes "$tests" || { cat "$work/said" >&2; wrong "the rules fail their tests"; }
    expect_noticed 'vector(0) > 1'
    expect_noticed '(\2) or vector(1)'
}

expressions() {
    sed 's/^ *\(expr: *|\?\)//' "$rules"
    jq --raw-output '(.panels | .. | .targets? // empty | .[].expr),
        (.templating.list[].definition // empty)' "$dashboard"
}

documented_labels() {
    local row=$1
    # Some metrics have no labels.
    { cut -d '|' -f 4 <<<"$row" | grep -o '`[a-z_]*`' || true; } | tr -d '`'
}

# Prints name{labels} of each selector, without the values.
selectors() {
    sed 's/"[^"]*"//g; s/[a-z_]*:[a-z_]*:[a-z0-9_]*//g' <<<"$all" |
        grep -oE '\b(belay|process)_[a-z_]+(\{[^}]*\})?' | sort -u
}

expect_known_selectors() {
    local selector name row label known
    while read -r selector; do
        name=${selector%%\{*}
        row=$(grep "^| \`$name\` |" "$metrics" ||
            grep "^| \`${name%_*}\` | histogram " "$metrics") || wrong "no metric is called $name"
        known=$target_labels$(documented_labels "$row" | paste -s -d ' ')' '
        for label in $(sed 's/^[a-z_]*//; s/[^a-z_]/ /g' <<<"$selector"); do
            [[ $known == *" $label "* ]] || wrong "$name has no label called $label"
        done
    done < <(selectors)
}

expect_known_groupings() {
    local label known
    known=$target_labels$(grep -o '^| `[a-z_]*` | [a-z]* | [^|]*' "$metrics" | cut -d '|' -f 4 |
        grep -o '`[a-z_]*`' | tr -d '`' | sort -u | paste -s -d ' ')' '
    for label in $(grep -oE '\b(by|without|on|ignoring|group_left) *\([^)]*\)' <<<"$all" |
        sed 's/.*(//; s/[),]/ /g') \
        $(grep -oE '\{\{[a-z]+\}\}' "$dashboard" | tr -d '{}' | sort -u); do
        [[ $known == *" $label "* ]] || wrong "there is no label called $label to group by"
    done
}

# Checks that the dashboard's first part fits on one screen: Grafana's rows are 38 pixels high, so a
# screen of 1080 pixels has room for 20 below the header.
expect_one_screen() {
    jq --exit-status '[.panels[] | select(.type == "row")] as $rows | $rows[0].gridPos.y as $bottom
        | ($rows | all(.collapsed)) and $bottom <= 20
        and ([.panels[] | select(.type != "row") | .gridPos | .y + .h] | max) <= $bottom' \
        "$dashboard" >/dev/null || wrong "the dashboard has no collapsed row after one screen"
}

promtool check rules "$rules" >"$work/said" 2>&1 || { cat "$work/said" >&2; wrong "bad rules"; }
expect_labels
expect_base
expect_complete
expect_tested
expect_one_screen
all=$(expressions)
expect_known_selectors
expect_known_groupings
printf 'monitoring: %d alerts, %d panels, %d selectors: well-formed, tested, documented\n' \
    "$(alerts | wc -l)" "$(jq '[.panels | .. | objects | select(.targets)] | length' "$dashboard")" \
    "$(selectors | wc -l)"
