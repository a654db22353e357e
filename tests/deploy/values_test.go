package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The whole of these is one value: their keys are Kubernetes' own.
var opaque = []string{"resources", "tolerations", "podAnnotations", "podLabels", "labels", "metricsFrom", "pullSecrets", "imagePullSecrets", "nodeSelector", "affinity", "env", "extraVolumes", "extraVolumeMounts", "relabelings", "metricRelabelings", "annotations", "clouds", "allowedTopologies"}

// entry is where the values of an entry of drivers are: those of other backends than `local` have
// their own defaults, and a separate table in the README.
func entry(backend string) string {
	if backend == "local" {
		return "drivers[]."
	}
	return backend + ": drivers[]."
}

// defaults is every value with its default as JSON.
func defaults(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	files := map[string]string{"values.yaml": ""}
	for _, backend := range backends(t) {
		files["backends/"+backend+".yaml"] = entry(backend)
	}
	for file, prefix := range files {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(read(t, chart+"/"+file)), &values); err != nil {
			t.Fatal(err)
		}
		walk(found, prefix, values)
	}
	// Its entries are those of the backend's file.
	delete(found, "drivers")
	found["drivers[].backend"] = `"local"`
	return found
}

func backends(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(chart + "/backends/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no backends in %s: %v", chart, err)
	}
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".yaml"))
	}
	return names
}

func walk(found map[string]string, prefix string, values map[string]any) {
	for key, value := range values {
		path := prefix + key
		inner, isMap := value.(map[string]any)
		entries, isList := value.([]any)
		switch {
		case isMap && !slices.Contains(opaque, key):
			walk(found, path+".", inner)
		case isList && (key == "disks" || key == "storageClasses"):
			walk(found, path+"[].", entries[0].(map[string]any))
		default:
			text, _ := json.Marshal(value)
			found[path] = string(text)
		}
	}
}

// A row of the README may be for a value with all that it contains, and a table for several backends.
// A backend's values that are as those of `local` are in one line.
func TestTheReadmeHasEveryValueWithItsDefault(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (?:`([^`]*)`)? \\| (.*) \\|$")
	quoted := regexp.MustCompile("`([^`]+)`")
	rows := map[string]string{}
	for _, section := range strings.Split(read(t, chart+"/README.md"), "\n### ") {
		title, _, _ := strings.Cut(section, "\n")
		prefixes := []string{""}
		if _, backends, isBackend := strings.Cut(title, "backend: "); isBackend {
			prefixes = nil
			for _, match := range quoted.FindAllStringSubmatch("`"+backends, -1) {
				prefixes = append(prefixes, match[1]+": ")
			}
		}
		for _, match := range row.FindAllStringSubmatch(section, -1) {
			for _, prefix := range prefixes {
				rows[prefix+match[1]] = match[2]
			}
			if match[3] == "" {
				t.Errorf("%s has no comment in values.yaml", prefixes[0]+match[1])
			}
		}
		_, shared, _ := strings.Cut(section, "\nAs for `local`: ")
		shared, _, _ = strings.Cut(shared, "\n")
		for _, match := range quoted.FindAllStringSubmatch(shared, -1) {
			rows[prefixes[0]+"drivers[]."+match[1]] = rows["drivers[]."+match[1]]
		}
	}
	values := defaults(t)
	for _, path := range sorted(values) {
		written, ok := rows[path]
		var value any
		if err := yaml.Unmarshal([]byte(written), &value); err != nil {
			t.Errorf("README.md: the default of %s: %v", path, err)
		}
		reported, _ := json.Marshal(value)
		switch {
		case !ok && !slices.ContainsFunc(ancestors(path), func(above string) bool { return rows[above] != "" }):
			t.Errorf("README.md has no row for %s (default %s)", path, values[path])
		case ok && string(reported) != values[path]:
			t.Errorf("README.md: the default of %s is %s, not %s", path, values[path], reported)
		}
	}
	for path := range rows {
		if !slices.ContainsFunc(sorted(values), func(value string) bool {
			return value == path || slices.Contains(ancestors(value), path)
		}) {
			t.Errorf("README.md lists %s, which is no value", path)
		}
	}
}

// ancestors is the maps that a value is in, by their paths.
func ancestors(path string) []string {
	var above []string
	for at := strings.LastIndex(path, "."); at > 0; at = strings.LastIndex(path[:at], ".") {
		above = append(above, path[:at])
	}
	return above
}

func TestTheReadmeIsMadeFromTheComments(t *testing.T) {
	fresh := t.TempDir()
	out, err := exec.Command(filepath.Join(chart, "generate.sh"), fresh).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(fresh, "*"))
	if err != nil || len(made) == 0 {
		t.Fatalf("deploy/chart/generate.sh makes nothing: %v", err)
	}
	for _, file := range made {
		name := filepath.Base(file)
		difference, err := exec.Command("diff", "-ru", filepath.Join(chart, name), file).CombinedOutput()
		if err != nil {
			t.Errorf("deploy/chart/%s is not what generate.sh makes; run `make manifests`\n%s", name, difference)
		}
	}
	shown, err := exec.Command("helm", "show", "readme", chart).Output()
	if err != nil || strings.TrimSpace(string(shown)) != strings.TrimSpace(read(t, chart+"/README.md")) {
		t.Errorf("helm show readme: %v\n%.200s", err, shown)
	}
}

func TestTheExamplesOfTheDocumentationAreTaken(t *testing.T) {
	block := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	for _, page := range []string{"../../docs/helm.md", "../../docs/digitalocean.md", "../../docs/nfs.md", "../../docs/openstack.md", "../../docs/operations.md", "../../deploy/images/README.md", "../../deploy/monitoring/README.md"} {
		found := 0
		for _, match := range block.FindAllStringSubmatch(read(t, page), -1) {
			// Prometheus' own configuration and objects of Kubernetes are none.
			if strings.HasPrefix(match[1], "scrape_configs:") || strings.HasPrefix(match[1], "apiVersion:") {
				continue
			}
			found++
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(match[1]), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := helm("template", "belay", chart, "--values", chart+"/ci/local.yaml", "--values", file); err != nil {
				t.Errorf("%s: %v\n%s\n%s", page, err, match[1], out)
			}
		}
		if found == 0 {
			t.Errorf("%s has no example", page)
		}
	}
}

// An unknown value is refused by the schema, so it must know each of them, and no other.
func TestTheSchemaKnowsEveryValue(t *testing.T) {
	var schema object
	if err := json.Unmarshal([]byte(read(t, chart+"/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	known := map[string]string{}
	walkSchema(known, "", schema, schema)
	values := defaults(t)
	used := map[string]bool{}
	for _, path := range sorted(values) {
		// One schema of an entry is for all backends.
		_, inEntry, isEntry := strings.Cut(path, ": ")
		if isEntry {
			path = inEntry
		}
		if _, ok := known[path]; !ok {
			t.Errorf("values.schema.json does not know %s", path)
		}
		used[path] = true
	}
	for path := range known {
		if !used[path] {
			t.Errorf("values.schema.json knows %s, which is no value", path)
		}
	}
}

func walkSchema(known map[string]string, prefix string, root, schema object) {
	for key := range schema.at("properties") {
		path, property := prefix+key, resolved(root, schema.at("properties", key))
		items := resolved(root, property.at("items"))
		switch {
		case slices.Contains(opaque, key):
			known[path] = ""
		case len(property.at("properties")) > 0:
			walkSchema(known, path+".", root, property)
		case len(items.at("properties")) > 0:
			walkSchema(known, path+"[].", root, items)
		default:
			known[path] = ""
		}
	}
}

func resolved(root, schema object) object {
	if name, ok := strings.CutPrefix(schema.text("$ref"), "#/definitions/"); ok {
		return resolved(root, root.at("definitions", name))
	}
	// The first part says what there is, the others restrict it.
	if parts := schema.list("allOf"); len(parts) > 0 {
		return resolved(root, parts[0])
	}
	return schema
}

// everyValue is the values file of a backend in which each value differs from its default.
func everyValue(t *testing.T, backend string) map[string]any {
	t.Helper()
	var values map[string]any
	if err := yaml.Unmarshal([]byte(read(t, chart+"/ci/"+everyValues[backend])), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

var everyValues = map[string]string{"local": "every-value.yaml", "openstack": "openstack-every-value.yaml", "digitalocean": "digitalocean-every-value.yaml", "civo": "civo-every-value.yaml", "nfs": "nfs-every-value.yaml"}

// There is one choice, or the other would leave out what ci/every-value.yaml is to show. The registry
// for all images, and digests, are in images_test.go.
var only = []string{
	"node.enabled", "drivers[].backend", "drivers[].csiDriver.attachRequired", "drivers[].csiDriver.volumeLifecycleModes", "networkPolicy.enabled",
	"global.imageRegistry", "images.node.digest", "images.controller.digest", "images.provisioner.digest", "images.attacher.digest", "images.resizer.digest", "images.snapshotter.digest",
	"openstack: drivers[].backend", "openstack: drivers[].csiDriver.create", "openstack: drivers[].csiDriver.attachRequired", "openstack: drivers[].csiDriver.storageCapacity", "openstack: drivers[].formatMark.create", "openstack: drivers[].clouds", "openstack: drivers[].csiDriver.volumeLifecycleModes",
	"digitalocean: drivers[].backend", "digitalocean: drivers[].csiDriver.create", "digitalocean: drivers[].csiDriver.attachRequired", "digitalocean: drivers[].csiDriver.storageCapacity", "digitalocean: drivers[].formatMark.create", "digitalocean: drivers[].csiDriver.volumeLifecycleModes", "digitalocean: drivers[].storageClasses[].default",
	"civo: drivers[].backend", "civo: drivers[].csiDriver.create", "civo: drivers[].csiDriver.attachRequired", "civo: drivers[].csiDriver.storageCapacity", "civo: drivers[].formatMark.create", "civo: drivers[].csiDriver.volumeLifecycleModes", "civo: drivers[].storageClasses[].default",
	"nfs: drivers[].backend", "nfs: drivers[].controller.create", "nfs: drivers[].csiDriver.create", "nfs: drivers[].csiDriver.attachRequired", "nfs: drivers[].csiDriver.storageCapacity", "nfs: drivers[].csiDriver.volumeLifecycleModes",
}

// Set in addition to the other name, it is refused.
var otherBundle = []string{"openstack: drivers[].caBundle.secretName", "digitalocean: drivers[].caBundle.secretName", "civo: drivers[].caBundle.secretName"}

// In one of these files each value differs from its default, so that each is seen to arrive.
func TestEveryValueIsTried(t *testing.T) {
	tried := map[string]string{}
	for _, backend := range backends(t) {
		values := everyValue(t, backend)
		drivers := values["drivers"].([]any)[0].(map[string]any)
		delete(values, "drivers")
		walk(tried, "", values)
		walk(tried, entry(backend), drivers)
		classes, _ := drivers["storageClasses"].([]any)
		for _, class := range classes {
			walk(tried, entry(backend)+"storageClasses[].", class.(map[string]any))
		}
	}
	all := defaults(t)
	for _, path := range sorted(all) {
		if reported, ok := tried[path]; !slices.Contains(otherBundle, path) && (!ok || reported == all[path] && !slices.Contains(only, path)) {
			t.Errorf("ci/every-value.yaml and those of the clouds leave %s at its default", path)
		}
	}
}

// A value that equals its default is caught: the objects rendered without it are the same.
func TestEveryValueHasAnEffect(t *testing.T) {
	for _, backend := range backends(t) {
		haveEffect(t, backend)
	}
}

func haveEffect(t *testing.T, backend string) {
	values := everyValue(t, backend)
	whole := made(t, values)
	defaults := template(t, chart+"/ci/"+backend+".yaml")
	var check func(path string, inner map[string]any)
	check = func(path string, inner map[string]any) {
		for key, value := range inner {
			path := path + key
			if entries, isList := value.([]any); isList && (key == "drivers" || key == "disks" || key == "storageClasses") {
				for _, entry := range entries {
					check(path+"[].", entry.(map[string]any))
				}
			} else if next, isMap := value.(map[string]any); isMap && !slices.Contains(opaque, key) {
				check(path+".", next)
			} else if !slices.Contains(only, strings.Replace(path, "drivers[].", entry(backend), 1)) && !arrives(value, whole, defaults) {
				delete(inner, key)
				if made(t, values) == whole {
					t.Errorf("the objects rendered from ci/%s are the same without %s", everyValues[backend], path)
				}
				inner[key] = value
			}
		}
	}
	check("", values)
}

// arrives returns a word that only this value can have brought there.
func arrives(value any, whole, defaults string) bool {
	word, isWord := value.(string)
	return isWord && strings.Contains(whole, word) && !strings.Contains(defaults, word)
}

// made is what helm makes of the values.
func made(t *testing.T, values map[string]any) string {
	t.Helper()
	return template(t, valuesFile(t, values))
}

// valuesFile writes the values where helm reads them.
func valuesFile(t *testing.T, values map[string]any) string {
	t.Helper()
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func sorted(values map[string]string) []string {
	var paths []string
	for path := range values {
		paths = append(paths, path)
	}
	sort.Strings(paths)
	return paths
}
