package deploy

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
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

// A separate job: alerts take targets of the controller's job for controllers. Of `local`, nothing has the
// attacher's port.
func TestSidecarsAreScrapedOnTheirOwnPortsAndUnderTheirOwnJob(t *testing.T) {
	for controller, want := range map[string][]any{
		"local": {9809.0, 9810.0, 9812.0, 9813.0}, "cinder": {9809.0, 9810.0, 9811.0, 9812.0, 9813.0},
	} {
		values := map[string]string{"local": chart + "/ci/local.yaml", "cinder": openstack}[controller]
		all := named(rendered(t, values, "--set", "sidecars.metrics=true,podMonitor.enabled=true,snapshots.enabled=true,node.httpAddress=0.0.0.0"))
		controller = "belay-controller-" + controller
		ports := func(monitor string) (names []string) {
			for _, endpoint := range all["PodMonitor/"+monitor].list("spec", "podMetricsEndpoints") {
				names = append(names, endpoint.text("port"))
			}
			return names
		}
		var names []string
		var numbers, admitted []any
		for _, container := range all["Deployment/"+controller].at("spec", "template", "spec").list("containers") {
			port := container.list("ports")[0]
			names, numbers = append(names, port.text("name")), append(numbers, port["containerPort"])
			if want := fmt.Sprint("0.0.0.0:", port["containerPort"]); argument(container, "--http-endpoint") != want {
				t.Errorf("%s listens on %q, not %s", container.text("name"), argument(container, "--http-endpoint"), want)
			}
		}
		for _, port := range all["NetworkPolicy/"+controller].list("spec", "ingress")[0].list("ports") {
			admitted = append(admitted, port["port"])
		}
		if !slices.Equal(numbers, want) || !slices.Equal(admitted, want) {
			t.Errorf("%s: ports %v, of which the policy admits %v", controller, numbers, admitted)
		}
		if own, sidecars := ports("belay-controller"), ports("belay-sidecars"); !slices.Equal(own, names[:1]) || !slices.Equal(sidecars, names[1:]) {
			t.Errorf("of the ports %q, %q and %q are scraped", names, own, sidecars)
		}
	}
	for name := range named(rendered(t, chart+"/ci/local.yaml", "--set", "podMonitor.enabled=true")) {
		if name == "PodMonitor/belay-sidecars" {
			t.Error("sidecars are scraped that serve no metrics")
		}
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
