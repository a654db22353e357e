// Package deploy tests the chart without a cluster: its rendered objects, and its documentation.
package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	chart     = "../../deploy/chart"
	manifests = "../../deploy/manifests"
)

// A locally built helm assumes a very old cluster, unless the version is given.
var kube = []string{"--kube-version", "1.36.0"}

// object is one Kubernetes object, or a part of one.
type object map[string]any

// at follows the keys; a missing key is an empty object.
func (o object) at(keys ...string) object {
	for _, key := range keys {
		next, _ := o[key].(map[string]any)
		o = next
	}
	return o
}

func (o object) text(keys ...string) string {
	last := len(keys) - 1
	text, _ := o.at(keys[:last]...)[keys[last]].(string)
	return text
}

// list is the objects in a list.
func (o object) list(keys ...string) []object {
	last := len(keys) - 1
	found, _ := o.at(keys[:last]...)[keys[last]].([]any)
	var objects []object
	for _, one := range found {
		if one, ok := one.(map[string]any); ok {
			objects = append(objects, one)
		}
	}
	return objects
}

func (o object) name() string {
	return o.text("kind") + "/" + o.text("metadata", "name")
}

func valuesFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chart, "ci", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no values files in %s/ci: %v", chart, err)
	}
	return files
}

// helm runs helm, and returns its output and whether it succeeded.
func helm(arguments ...string) (string, error) {
	if !slices.Contains(arguments, kube[0]) {
		arguments = append(arguments, kube...)
	}
	command := exec.Command("helm", arguments...)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	return out.String(), err
}

// Helm takes half a second for each rendering, and most tests look at the same ones.
var renderings = map[string][]object{}

// rendered is what helm makes of a values file and more settings.
func rendered(t *testing.T, values string, more ...string) []object {
	t.Helper()
	key := strings.Join(append(more, values), " ")
	if known, ok := renderings[key]; ok {
		return known
	}
	renderings[key] = parsed(t, template(t, values, more...))
	return renderings[key]
}

// template is the same as text.
func template(t *testing.T, values string, more ...string) string {
	t.Helper()
	arguments := []string{"template", "belay", chart, "--namespace", "belay-system", "--values", values}
	out, err := helm(append(arguments, more...)...)
	if err != nil {
		t.Fatalf("helm template with %s: %v\n%s", values, err, out)
	}
	return out
}

func parsed(t *testing.T, text string) []object {
	t.Helper()
	var objects []object
	for _, document := range strings.Split("\n"+text, "\n---") {
		var one object
		if err := yaml.Unmarshal([]byte(document), &one); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if len(one) > 0 {
			objects = append(objects, one)
		}
	}
	return objects
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestTheChartPassesHelmsOwnJudgement(t *testing.T) {
	for _, values := range valuesFiles(t) {
		if out, err := helm("lint", "--strict", chart, "--values", values); err != nil {
			t.Errorf("%s: %v\n%s", values, err, out)
		}
	}
}

// For nodes where the agent is a service: the rest is what is installed next to the agent, too.
func TestWithoutTheAgentNothingOfItIsLeft(t *testing.T) {
	for _, values := range valuesFiles(t) {
		without := named(rendered(t, values, "--set", "node.enabled=false"))
		for _, one := range rendered(t, values) {
			isAgents := one.text("metadata", "name") == "belay-node"
			if left, ok := without[one.name()]; ok == isAgents || ok && !reflect.DeepEqual(one, left) {
				t.Errorf("%s: without the agent, %s: %v", values, one.name(), left)
			}
			delete(without, one.name())
		}
		for name := range without {
			t.Errorf("%s: only without the agent there is %s", values, name)
		}
	}
}

// As for `helm upgrade --reuse-values` from a chart that did not have the value.
func TestTheAgentIsThereUnlessItIsRefused(t *testing.T) {
	agent(t, rendered(t, chart+"/ci/local.yaml", "--set", "node.enabled=null"))
}

func TestTheNotesTellWhetherThereIsAnAgent(t *testing.T) {
	for setting, wanted := range map[string]string{"true": "daemonset/belay-node", "false": "as a service on each node,"} {
		out, err := exec.Command("helm", "install", "belay", chart, "--dry-run=client", "--values", chart+"/ci/local.yaml", "--set", "node.enabled="+setting).CombinedOutput()
		_, notes, _ := strings.Cut(string(out), "\nNOTES:\n")
		if err != nil || !strings.Contains(notes, wanted) {
			t.Errorf("node.enabled=%s: %v, no %q in the notes:\n%s", setting, err, wanted, notes)
		}
	}
}

func TestThePlainManifestsAreWhatTheChartMakes(t *testing.T) {
	fresh := t.TempDir()
	out, err := exec.Command(filepath.Join(manifests, "generate.sh"), fresh).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	committed, _ := filepath.Glob(filepath.Join(manifests, "*.yaml"))
	made, _ := filepath.Glob(filepath.Join(fresh, "*.yaml"))
	if len(committed) != len(made) {
		t.Errorf("%d manifests are committed, the chart makes %d: run `make manifests`, and remove those without a values file", len(committed), len(made))
	}
	for _, file := range made {
		name := filepath.Base(file)
		difference, err := exec.Command("diff", "-u", filepath.Join(manifests, name), file).CombinedOutput()
		if err != nil {
			t.Errorf("deploy/manifests/%s does not match the chart; run `make manifests` and check the difference\n%s", name, difference)
		}
	}
}
