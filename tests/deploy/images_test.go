package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// The keys of `images`, each with the container that it is for. Each is there with `openstack`.
var containers = map[string]string{
	"node": "belay-node", "controller": "belay-controller", "provisioner": "csi-provisioner",
	"attacher": "csi-attacher", "resizer": "csi-resizer", "snapshotter": "csi-snapshotter",
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// images is the reference of each container by its name, without the Job, which has the controller's.
func images(t *testing.T, all []object) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, one := range all {
		if one.text("kind") == "Job" {
			continue
		}
		pod := one.at("spec", "template", "spec")
		for _, container := range append(pod.list("initContainers"), pod.list("containers")...) {
			found[container.text("name")] = container.text("image")
		}
	}
	if len(found) != len(containers) {
		t.Errorf("%d containers, want %d: %v", len(found), len(containers), found)
	}
	return found
}

func TestTheGlobalRegistryIsThatOfEachImage(t *testing.T) {
	before := images(t, rendered(t, openstack))
	registry := "mirror.example.org:5000/belay"
	after := images(t, rendered(t, openstack, "--set", "global.imageRegistry="+registry))
	for name, image := range before {
		_, path, _ := strings.Cut(image, "/")
		if want := registry + "/" + path; after[name] != want {
			t.Errorf("%s: %s, want %s", name, after[name], want)
		}
	}
}

func TestADigestReplacesTheTag(t *testing.T) {
	before := images(t, rendered(t, openstack))
	var settings []string
	for key := range containers {
		settings = append(settings, "images."+key+".digest="+digest)
	}
	slices.Sort(settings)
	after := images(t, rendered(t, openstack, "--set", strings.Join(settings, ",")))
	for name, image := range before {
		if want := image[:strings.LastIndex(image, ":")] + "@" + digest; after[name] != want {
			t.Errorf("%s: %s, want %s", name, after[name], want)
		}
	}
}

// As releases have it that were installed before a reference had parts.
func TestAWholeReferenceIsUsedAsItIs(t *testing.T) {
	before := images(t, rendered(t, openstack))
	settings := []string{"global.imageRegistry=mirror.example.org", "images.node=", "images.controller="}
	for _, sidecar := range []string{"provisioner", "attacher", "resizer", "snapshotter"} {
		settings = append(settings, "images."+sidecar+"=example.org/"+sidecar+"@"+digest)
	}
	command := exec.Command("helm", append([]string{"template", "belay", chart, "--values", openstack,
		"--set", strings.Join(settings, ",")}, kube...)...)
	// Helm warns that a text replaces a map.
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, err.(*exec.ExitError).Stderr)
	}
	after := images(t, parsed(t, string(out)))
	for key, name := range containers {
		want := "example.org/" + key + "@" + digest
		if key == "node" || key == "controller" {
			want = before[name]
		}
		if after[name] != want {
			t.Errorf("%s: %s, want %s", name, after[name], want)
		}
	}
}

func TestEveryPodHasThePullSecretsOfBothLists(t *testing.T) {
	settings := `global.imagePullSecrets=["one",{"name":"two"}],images.pullSecrets=[{"name":"three"},"four"]`
	var want []any
	for _, name := range []string{"one", "two", "three", "four"} {
		want = append(want, map[string]any{"name": name})
	}
	for _, one := range rendered(t, chart+"/ci/local.yaml", "--set-json", settings) {
		pod := one.at("spec", "template", "spec")
		if found := pod["imagePullSecrets"]; len(pod) > 0 && !reflect.DeepEqual(found, want) {
			t.Errorf("%s: %v, want %v", one.name(), found, want)
		}
	}
}

// Other parts of such a chart have values in `global` too.
func TestAChartMayContainThisOne(t *testing.T) {
	parent := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(parent, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("Chart.yaml", "{apiVersion: v2, name: parent, version: 1.0.0}")
	write("values.yaml", "{global: {imageRegistry: mirror.example.org, domain: example.org}, belay: {drivers: [{backend: local}]}}")
	if err := os.CopyFS(filepath.Join(parent, "charts", "belay"), os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	out, err := helm("template", "belay", parent)
	if err != nil || strings.Count(out, "image: mirror.example.org/") != 5 {
		t.Errorf("%v\n%s", err, out)
	}
}
