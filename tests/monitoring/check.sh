#!/usr/bin/env bash
# Static checks of deploy/monitoring: promtool accepts the rules and they pass their tests; every
# alert has the required texts, and its page in the runbook; every test of one can fail;
# every metric and label in rules and dashboard is one that docs/metrics.md has.
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
# Where the alerts link to, unless generate.sh is given another base.
runbook_url=$(sed -n "s/^default='\(.*\)'/\1/p" "$top/deploy/monitoring/generate.sh")
# What a scrape adds to every metric, what the quantiles of a histogram go by, and what the rules
# call the pods of one Deployment.
target_labels=" namespace pod node container instance job le controller "

"$top/tests/setup/packages.sh" monitoring
"$top/tests/setup/prometheus.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

wrong() {
    printf 'monitoring: %s\n' "$*" >&2
    exit 1
}

# Some have two rules: a warning, and a critical one for many nodes.
alerts() {
    sed -n 's/^ *- alert: //p' "$rules" | sort -u
}

passes() {
    promtool test rules "$1" >"$work/said" 2>&1
}

# Prometheus' operator goes by labels; the rest is the same. The runbook's base is in one place.
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

# The rule of an alert, counted from 1 in the whole file: all lines up to the next one.
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
            # The one that has no target has no label to name.
            [ "$alert" != BelayMetricsAbsent ] || field=${field/%.\*\\\$labels\\./}
            rule "$number" | grep -q "$field" || wrong "$alert (rule $number) has no $field"
        done
        grep -q "^## $alert\$" "$runbook" || wrong "$alert has no section in docs/runbook.md"
    done
    diff <(alerts) <(sed -n 's/^## \(Belay\)/\1/p' "$runbook" | sort) ||
        wrong "alerts (<) and sections of docs/runbook.md (>) differ"
}

# Puts other expressions into all alerts at once: each must be missed by name in what fails.
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
    # Some have none.
    { cut -d '|' -f 4 <<<"$row" | grep -o '`[a-z_]*`' || true; } | tr -d '`'
}

# name{labels}, without the values.
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

# Grafana's rows are 38 pixels high: a screen of 1080 pixels has room for 20 below the header.
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
