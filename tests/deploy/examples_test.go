package deploy

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const examples = "../../deploy/examples"

// The API versions of what the examples may contain. The Kubernetes bed has the API server validate their
// fields, and runs those for its drivers.
var versions = map[string]string{
	"PersistentVolumeClaim": "v1", "Pod": "v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1",
	"VolumeSnapshot": "snapshot.storage.k8s.io/v1", "Secret": "v1", "StorageClass": "storage.k8s.io/v1",
}

// classes is the names of the classes and other objects that the chart creates for all backends, by their kinds.
func classes(t *testing.T) map[string]bool {
	found := map[string]bool{}
	for _, backend := range backends(t) {
		more := []string{"--set", "snapshots.enabled=true"}
		if backend == "nfs" {
			more = append(more, "--set", "drivers[0].storageClasses[0].server=filer,drivers[0].storageClasses[0].share=/exports")
		}
		for name := range named(rendered(t, chart+"/ci/"+backend+".yaml", more...)) {
			found[name] = true
		}
	}
	return found
}

// They can all be applied at once; only expansion.yaml repeats an object.
func TestTheExamplesNameClassesAndObjectsThatExist(t *testing.T) {
	files, err := filepath.Glob(examples + "/*.yaml")
	if err != nil || len(files) < 11 {
		t.Fatalf("%v %q", err, files)
	}
	known := classes(t)
	for _, backend := range backends(t) {
		if !slices.Contains(files, filepath.Join(examples, backend+".yaml")) {
			t.Errorf("no example for backend %s", backend)
		}
	}
	needed, secrets := map[string][]string{}, map[string]bool{}
	for _, file := range files {
		text := read(t, file)
		comment, _, _ := strings.Cut(text, "\n")
		if !strings.HasPrefix(comment, "# ") || len(comment) > 120 {
			t.Errorf("%s: no comment of at most 120 letters: %q", file, comment)
		}
		need := func(name string) { needed[name] = append(needed[name], file) }
		needClass := func(kind, name string) {
			need(kind + "/" + name)
			if !strings.Contains(comment, name) {
				t.Errorf("%s: the comment does not name the class %q", file, name)
			}
		}
		for _, document := range strings.Split(text, "\n---\n") {
			var one object
			if err := yaml.UnmarshalStrict([]byte(document), &one); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if version := versions[one.text("kind")]; version == "" || one.text("apiVersion") != version {
				t.Errorf("%s: %s of %s", file, one.name(), one.text("apiVersion"))
			}
			if filepath.Base(file) != "expansion.yaml" {
				if known[one.name()] {
					t.Errorf("%s: %s is also in another file", file, one.name())
				}
				known[one.name()] = true
			}
			claims := one.list("spec", "volumeClaimTemplates")
			pod := one.at("spec", "template", "spec")
			switch one.text("kind") {
			case "PersistentVolumeClaim":
				claims = []object{one}
			case "Pod":
				pod = one.at("spec")
			case "VolumeSnapshot":
				needClass("VolumeSnapshotClass", one.text("spec", "volumeSnapshotClassName"))
				need("PersistentVolumeClaim/" + one.text("spec", "source", "persistentVolumeClaimName"))
			case "Secret":
				secrets[one.text("metadata", "namespace")+"/"+one.text("metadata", "name")] = true
			case "StorageClass":
				need("CSIDriver/" + one.text("provisioner"))
				const secret = "csi.storage.k8s.io/node-stage-secret-"
				if name := one.text("parameters", secret+"namespace") + "/" + one.text("parameters", secret+"name"); !secrets[name] {
					t.Errorf("%s: there is no Secret %s above the class", file, name)
				}
			}
			for _, claim := range claims {
				needClass("StorageClass", claim.text("spec", "storageClassName"))
				if source := claim.at("spec", "dataSource"); source != nil {
					need(source.text("kind") + "/" + source.text("name"))
				}
			}
			for _, volume := range pod.list("volumes") {
				need("PersistentVolumeClaim/" + volume.text("persistentVolumeClaim", "claimName"))
			}
			for _, container := range pod.list("containers") {
				// The bed replaces it by its own.
				if container.text("image") != "busybox" {
					t.Errorf("%s: image %s", file, container.text("image"))
				}
			}
		}
	}
	for name, files := range needed {
		if !known[name] {
			t.Errorf("%q: there is no %s", files, name)
		}
	}
}
