package deploy

import (
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const nfs = chart + "/ci/nfs.yaml"

// hasController returns whether the drivers of a values file have one.
func hasController(values string) bool {
	return !strings.Contains(values, "/ci/nfs")
}

// Without this object, or with `attachRequired`, Kubernetes would wait for an attachment.
func TestTheObjectOfCsiDriverNfsStaysAsItIs(t *testing.T) {
	driver := named(rendered(t, nfs))["CSIDriver/nfs.csi.k8s.io"]
	if driver == nil {
		t.Fatal("no CSIDriver")
	}
	want := object{
		"attachRequired": false, "podInfoOnMount": false, "fsGroupPolicy": "File", "seLinuxMount": false,
		"storageCapacity": false, "volumeLifecycleModes": []any{"Persistent"},
	}
	if spec := driver.at("spec"); !reflect.DeepEqual(spec, want) {
		t.Errorf("%v, not %v", spec, want)
	}
}

func TestTheObjectOfNfsCanBeLeftToAnotherRelease(t *testing.T) {
	with := named(rendered(t, nfs))
	without := named(rendered(t, nfs, "--set", "drivers[0].csiDriver.create=false"))
	delete(with, "CSIDriver/nfs.csi.k8s.io")
	if !reflect.DeepEqual(with, without) {
		t.Errorf("more than the object is left out: %v", without)
	}
}

// A mount has the network of the process that made it, so the agent's must outlive its pod.
func TestTheAgentOfNfsHasTheHostsNetworkAndResolvesServices(t *testing.T) {
	for values, more := range map[string][]string{
		nfs:                      nil,
		chart + "/ci/local.yaml": {"--set", "drivers[0].nodeName=node1,drivers[1].backend=nfs"},
	} {
		objects := rendered(t, values, more...)
		pod := agent(t, objects)
		if pod["hostNetwork"] != true || pod["dnsPolicy"] != "ClusterFirstWithHostNet" {
			t.Errorf("%s: hostNetwork %v, dnsPolicy %v", values, pod["hostNetwork"], pod["dnsPolicy"])
		}
		container := pod.list("containers")[0]
		if address := argument(container, "--http-endpoint"); address != "127.0.0.1:29808" {
			t.Errorf("%s: the pages are on %s", values, address)
		}
		if !slices.Contains(container["args"].([]any), any("--driver-kind=nfs")) {
			t.Errorf("%s: no driver of the kind", values)
		}
		if named(objects)["NetworkPolicy/belay-node"] != nil {
			t.Errorf("%s: a policy that has no effect", values)
		}
	}
	if pod := agent(t, rendered(t, chart+"/ci/local.yaml")); pod["hostNetwork"] != nil || pod["dnsPolicy"] != nil {
		t.Error("an agent without such a driver has the host's network")
	}
}

func TestNfsAloneHasTheAgentAndNoController(t *testing.T) {
	objects := rendered(t, nfs, "--set", "podMonitor.enabled=true,node.httpAddress=0.0.0.0,snapshots.enabled=true")
	var names []string
	for _, one := range objects {
		names = append(names, one.name())
	}
	slices.Sort(names)
	want := []string{"CSIDriver/nfs.csi.k8s.io", "DaemonSet/belay-node", "Namespace/belay-system", "PodMonitor/belay-node", "ServiceAccount/belay-node"}
	if !slices.Equal(names, want) {
		t.Errorf("%q, not %q", names, want)
	}
}

func TestAnNfsEntryThatCannotWorkIsRefused(t *testing.T) {
	for _, c := range []struct{ settings, why string }{
		{"drivers[0].csiDriver.attachRequired=true", "drivers[0].csiDriver.attachRequired: with backend nfs it is false"},
		{"drivers[0].csiDriver.storageCapacity=true", "backend nfs reports no capacity"},
		{"drivers[0].replicas=2", "backend nfs has no such value"},
		{"drivers[0].storageClasses[0].name=x", "backend nfs has no such value"},
		{"podMonitor.enabled=true", `with drivers[0].backend "nfs" the node agent uses the host's network`},
	} {
		out, err := helm("template", "belay", chart, "--values", nfs, "--set", c.settings)
		if err == nil || !strings.Contains(out, c.why) {
			t.Errorf("%s: %v: %s", c.settings, err, out)
		}
	}
}

func TestTheNotesOfNfsNameNoControllerAndNoClass(t *testing.T) {
	out, err := exec.Command("helm", "install", "belay", chart, "--dry-run=client", "--values", nfs).CombinedOutput()
	_, notes, _ := strings.Cut(string(out), "\nNOTES:\n")
	if err != nil || strings.Contains(notes, "deployment/") || strings.Contains(notes, "CLASS") || !strings.Contains(notes, "docs/nfs.md") {
		t.Errorf("%v: %s", err, notes)
	}
}
