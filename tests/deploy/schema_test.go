package deploy

import (
	"slices"
	"strings"
	"testing"
)

// misspelled puts a key that does not exist into each map of the values, and returns the places, as
// Helm's message names them.
func misspelled(place string, value any) []string {
	var places []string
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			places = append(places, misspelled(place+"/"+key, inner)...)
		}
		value["misspeled"] = map[string]any{}
		places = append(places, place)
	case []any:
		if len(value) > 0 {
			places = append(places, misspelled(place+"/0", value[0])...)
		}
	}
	return places
}

// The keys of these maps are the user's, or an object of Kubernetes that its API server checks.
var free = []string{
	"podAnnotations", "podLabels", "labels", "annotations", "nodeSelector", "requests", "limits",
	"hostPath", "matchLabels", "namespaceSelector", "podSelector", "matchExpressions", "preferredDuringSchedulingIgnoredDuringExecution",
	"global", "extraVolumes",
}

func TestAMisspelledValueIsRefusedWithItsPathWhereverItIs(t *testing.T) {
	for _, backend := range backends(t) {
		refuseMisspelled(t, everyValue(t, backend))
	}
}

func refuseMisspelled(t *testing.T, values map[string]any) {
	var places []string
	for _, place := range misspelled("", values) {
		if !slices.ContainsFunc(strings.Split(place, "/"), func(key string) bool { return slices.Contains(free, key) }) {
			places = append(places, place)
		}
	}
	out, err := helm("template", "belay", chart, "--values", valuesFile(t, values))
	if err == nil || len(places) < 10 {
		t.Fatalf("%d places; %v\n%s", len(places), err, out)
	}
	slices.Sort(places)
	for _, place := range places {
		if want := "at '" + place + "': additional properties 'misspeled' not allowed"; !strings.Contains(out, want) {
			t.Errorf("a misspelled key in %q is taken:\n%s", place, out)
		}
	}
}

// An older chart's values, which `helm upgrade --reuse-values` keeps, lack what was added since.
func TestNewValuesMayBeMissing(t *testing.T) {
	added := map[string]any{
		"global": nil, "prometheusRule": nil, "dashboard": nil,
		"podMonitor": map[string]any{"enabled": true, "scrapeTimeout": nil, "relabelings": nil, "metricRelabelings": nil},
		"sidecars":   map[string]any{"metrics": nil, "env": nil, "provisioner": nil, "attacher": nil, "resizer": nil, "snapshotter": nil},
	}
	for _, component := range []string{"node", "controller"} {
		added[component] = map[string]any{"nodeSelector": nil, "affinity": nil, "env": nil, "extraVolumes": nil, "extraVolumeMounts": nil}
	}
	added["node"].(map[string]any)["httpAddress"] = nil
	added["node"].(map[string]any)["encryption"] = nil
	added["node"].(map[string]any)["udevRules"] = nil
	added["networkPolicy"] = map[string]any{"dnsPorts": nil}
	without := template(t, chart+"/ci/local.yaml", "--values", valuesFile(t, added))
	if with := template(t, chart+"/ci/local.yaml", "--set", "podMonitor.enabled=true"); with != without {
		t.Errorf("without the values that were added, the chart makes\n%s\nnot\n%s", without, with)
	}
}
