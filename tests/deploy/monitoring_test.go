package deploy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const monitoring = "../../deploy/monitoring"

func TestTheRulesAreThoseOfTheMonitoringDirectory(t *testing.T) {
	var rules object
	if err := yaml.Unmarshal([]byte(read(t, monitoring+"/rules.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	all := named(rendered(t, chart+"/ci/local.yaml", "--set", "prometheusRule.enabled=true"))
	made := all["PrometheusRule/belay"].at("spec")
	if len(made.list("groups")) == 0 || !reflect.DeepEqual(made["groups"], rules["groups"]) {
		t.Errorf("groups %v, want %v", made["groups"], rules["groups"])
	}
}

// Its sections are named in the alerts, so they stay.
func TestEveryAlertLinksToTheRunbookOfTheValues(t *testing.T) {
	url := "https://wiki.example.org/$1/runbook"
	all := named(rendered(t, chart+"/ci/local.yaml", "--set", "prometheusRule.enabled=true,prometheusRule.runbookUrl="+url))
	alerts := 0
	for _, group := range all["PrometheusRule/belay"].list("spec", "groups") {
		for _, rule := range group.list("rules") {
			if rule.text("alert") == "" {
				continue
			}
			alerts++
			if found, want := rule.text("annotations", "runbook_url"), url+"#"+strings.ToLower(rule.text("alert")); found != want {
				t.Errorf("%s: %s, want %s", rule.text("alert"), found, want)
			}
		}
	}
	if alerts == 0 {
		t.Error("no alert")
	}
}

// The alert would fire forever where no program is scraped as a controller.
func TestOnlyAReleaseWithAControllerAlertsThatNoneIsScraped(t *testing.T) {
	for values, want := range map[string]string{
		"nfs-without-controller": `absent(up{job=~"(.+/)?belay-node"})`,
		"nfs":                    `absent(up{job=~"(.+/)?belay-node"}) or absent(up{job=~"(.+/)?belay-controller"})`,
	} {
		all := named(rendered(t, chart+"/ci/"+values+".yaml", "--set", "prometheusRule.enabled=true"))
		found := ""
		for _, group := range all["PrometheusRule/belay"].list("spec", "groups") {
			for _, rule := range group.list("rules") {
				if rule.text("alert") == "BelayMetricsAbsent" {
					found = rule.text("expr")
				}
			}
		}
		if found != want {
			t.Errorf("%s: %s, want %s", values, found, want)
		}
	}
}

func TestTheDashboardIsThatOfTheMonitoringDirectory(t *testing.T) {
	all := named(rendered(t, chart+"/ci/local.yaml", "--set", "dashboard.enabled=true"))
	config := all["ConfigMap/belay-dashboard"]
	var made, want any
	if err := json.Unmarshal([]byte(config.text("data", "belay.json")), &made); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(read(t, monitoring+"/dashboard.json")), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(made, want) {
		t.Error("the dashboard is another one")
	}
	if label := config.text("metadata", "labels", "grafana_dashboard"); label != "1" {
		t.Errorf("Grafana's sidecar looks for the label grafana_dashboard: \"1\", not %q", label)
	}
}

func TestMonitoringObjectsAreOffByDefault(t *testing.T) {
	for _, one := range rendered(t, chart+"/ci/local.yaml") {
		switch one.text("kind") {
		case "PodMonitor", "PrometheusRule", "ConfigMap":
			t.Errorf("there is %s, whose CRD or reader may be missing", one.name())
		}
	}
}
