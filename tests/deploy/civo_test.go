package deploy

import (
	"slices"
	"strings"
	"testing"
)

const civo = chart + "/ci/civo.yaml"

// The objects of civo-csi: an upgrade to Belay must not change what claims and pods see.
func TestTheObjectsOfCivoCsiStayAsTheyAre(t *testing.T) {
	all := named(rendered(t, civo))
	driver := all["CSIDriver/csi.civo.com"]
	if driver == nil {
		t.Fatal("no CSIDriver")
	}
	// civo-csi sets podInfoOnMount alone; the others are the defaults of Kubernetes.
	want := map[string]any{
		"podInfoOnMount": true, "attachRequired": true, "fsGroupPolicy": "ReadWriteOnceWithFSType",
		"seLinuxMount": false, "storageCapacity": false,
	}
	spec := driver.at("spec")
	for key, value := range want {
		if spec[key] != value {
			t.Errorf("%s is %v, want %v", key, spec[key], value)
		}
	}
	if len(spec) != len(want)+1 || spec["volumeLifecycleModes"] == nil {
		t.Errorf("more fields: %v", spec)
	}
	class := all["StorageClass/civo-volume"]
	if class == nil {
		t.Fatal("no StorageClass")
	}
	if class["parameters"] != nil || class["reclaimPolicy"] != "Delete" || class["volumeBindingMode"] != "WaitForFirstConsumer" || class["allowVolumeExpansion"] != true {
		t.Errorf("the class differs: %v", class)
	}
	if class.text("metadata", "annotations", "storageclass.kubernetes.io/is-default-class") != "true" {
		t.Error("it is not the default class")
	}
	snapshots := named(rendered(t, civo, "--set", "snapshots.enabled=true"))
	if one := snapshots["VolumeSnapshotClass/civo-volume-snapshot"]; one == nil || one["driver"] != "csi.civo.com" || one["deletionPolicy"] != "Delete" {
		t.Errorf("the class of snapshots differs: %v", one)
	}
}

// The key of the API is for one container; no node has it.
func TestOnlyTheControllerOfCivoSeesTheKey(t *testing.T) {
	all := named(rendered(t, civo))
	pod := all["Deployment/belay-controller-civo"].at("spec", "template", "spec")
	var mounted []string
	for _, container := range pod.list("containers") {
		for _, mount := range container.list("volumeMounts") {
			if mount.text("name") == "civo-access" {
				mounted = append(mounted, container.text("name")+" "+mount.text("mountPath"))
			}
		}
	}
	if want := []string{"belay-controller /etc/civo"}; !slices.Equal(mounted, want) {
		t.Errorf("%q, want %q", mounted, want)
	}
	if flag := argument(pod.list("containers")[0], "--civo-access"); flag != "/etc/civo" {
		t.Errorf("--civo-access=%s", flag)
	}
	for _, container := range agent(t, rendered(t, civo)).list("containers") {
		for _, word := range container["args"].([]any) {
			if strings.Contains(word.(string), "civo-access") {
				t.Errorf("the node agent has %s", word)
			}
		}
	}
}

// With a file the agent needs no name, and without topology it needs no region.
func TestANodeOfCivoIsKnownByItsNameUnlessItsFileIsMounted(t *testing.T) {
	has := func(settings string) (bool, string, bool) {
		pod := agent(t, rendered(t, civo, "--set", settings))
		container := pod.list("containers")[0]
		mounts := slices.ContainsFunc(container.list("volumeMounts"), func(mount object) bool {
			return mount.text("mountPath") == "/etc/civostatsd"
		})
		return mounts, argument(container, "--node-zone"), slices.Contains(container["args"].([]any), any("--with-topology"))
	}
	for _, c := range []struct {
		settings           string
		mounts             bool
		region             string
		reportsTheTopology bool
	}{
		{"logLevel=info", false, "", false},
		{"drivers[0].instanceFile=true", true, "", false},
		{"drivers[0].instanceFile=true,drivers[0].topology=true", true, "", true},
		{"drivers[0].region=LON1,drivers[0].topology=true", false, "LON1", true},
	} {
		mounts, region, topology := has(c.settings)
		if mounts != c.mounts || region != c.region || topology != c.reportsTheTopology {
			t.Errorf("%s: %v %q %v", c.settings, mounts, region, topology)
		}
	}
}

func TestACivoEntryThatCannotWorkIsRefused(t *testing.T) {
	for _, c := range []struct{ settings, why string }{
		{"drivers[0].topology=true", "drivers[0].topology: set drivers[0].region"},
		{"drivers[0].csiDriver.storageCapacity=true", "backend civo knows only the quota"},
		{"drivers[0].cluster=x", "backend civo has no such value"},
	} {
		out, err := helm("template", "belay", chart, "--values", civo, "--set", c.settings)
		if err == nil || !strings.Contains(out, c.why) {
			t.Errorf("%s: %v: %s", c.settings, err, out)
		}
	}
}
