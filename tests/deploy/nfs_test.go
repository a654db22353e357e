package deploy

import (
	"fmt"
	"maps"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const nfs = chart + "/ci/nfs.yaml"

const withoutController = chart + "/ci/nfs-without-controller.yaml"

// hasController returns whether the drivers of a values file have one.
func hasController(values string) bool {
	return values != withoutController
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
	without := named(rendered(t, nfs, "--set", "drivers[0].csiDriver.create=false,drivers[0].controller.create=true"))
	delete(with, "CSIDriver/nfs.csi.k8s.io")
	if !reflect.DeepEqual(with, without) {
		t.Errorf("more than the object is left out: %v", without)
	}
}

// A mount has the network of the process that made it, so the agent's must outlive its pod.
func TestTheAgentOfNfsHasTheHostsNetworkAndResolvesServices(t *testing.T) {
	for values, more := range map[string][]string{
		nfs:                      nil,
		chart + "/ci/local.yaml": {"--set", "drivers[1].backend=nfs"},
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

const controller = "belay-controller-nfs"

func TestNfsHasAnAgentAndOneController(t *testing.T) {
	objects := rendered(t, nfs, "--set", "podMonitor.enabled=true,node.httpAddress=0.0.0.0,drivers[0].controller.httpAddress=0.0.0.0,snapshots.enabled=true")
	var names []string
	for _, one := range objects {
		names = append(names, one.name())
	}
	slices.Sort(names)
	want := []string{
		"CSIDriver/nfs.csi.k8s.io", "ClusterRole/" + controller + "-provisioner", "ClusterRole/" + controller + "-resizer", "ClusterRole/" + controller + "-snapshotter",
		"ClusterRoleBinding/" + controller + "-provisioner", "ClusterRoleBinding/" + controller + "-resizer", "ClusterRoleBinding/" + controller + "-snapshotter",
		"DaemonSet/belay-node", "Deployment/" + controller, "Namespace/belay-system", "PodMonitor/belay-controller", "PodMonitor/belay-node",
		"Role/" + controller + "-leader", "RoleBinding/" + controller + "-leader", "ServiceAccount/" + controller, "ServiceAccount/belay-node", "VolumeSnapshotClass/belay-nfs",
	}
	if !slices.Equal(names, want) {
		t.Errorf("%q, not %q", names, want)
	}
	deployment := named(objects)["Deployment/"+controller]
	spec := deployment.at("spec")
	if spec["replicas"] != float64(1) || deployment.text("spec", "strategy", "type") != "Recreate" {
		t.Errorf("replicas %v, strategy %v", spec["replicas"], spec["strategy"])
	}
	pod := deployment.at("spec", "template", "spec")
	if pod["hostNetwork"] != true || pod["dnsPolicy"] != "ClusterFirstWithHostNet" {
		t.Errorf("hostNetwork %v, dnsPolicy %v", pod["hostNetwork"], pod["dnsPolicy"])
	}
	var containers []string
	for _, container := range pod.list("containers") {
		containers = append(containers, container.text("name"))
	}
	if want := []string{"belay-controller", "csi-provisioner", "csi-resizer", "csi-snapshotter"}; !slices.Equal(containers, want) {
		t.Errorf("containers %q, not %q", containers, want)
	}
	provisioner := pod.list("containers")[1]["args"].([]any)
	for _, flag := range []any{"--extra-create-metadata", "--leader-election"} {
		if !slices.Contains(provisioner, flag) {
			t.Errorf("csi-provisioner has no %v: %v", flag, provisioner)
		}
	}
}

// On the node's own address any host could read them.
func TestThePagesOfTheControllerOfNfsAreOnLoopbackUnlessTheValuesSayOtherwise(t *testing.T) {
	for setting, want := range map[string]string{
		"drivers[0].shortName=": "127.0.0.1:29809", "httpAddress=0.0.0.0": "127.0.0.1:29809",
		"drivers[0].controller.httpAddress=0.0.0.0": "0.0.0.0:29809", "controller.httpPort=9000": "127.0.0.1:29809",
	} {
		container := named(rendered(t, nfs, "--set", setting))["Deployment/"+controller].at("spec", "template", "spec").list("containers")[0]
		if address := argument(container, "--http-endpoint"); address != want {
			t.Errorf("%s: the pages are on %s, not %s", setting, address, want)
		}
		host := container.text("livenessProbe", "httpGet", "host")
		if loopback := strings.HasPrefix(want, "127."); loopback != (host == "127.0.0.1") {
			t.Errorf("%s: the kubelet asks %q", setting, host)
		}
	}
}

// The controller of csi-driver-nfs keeps running next to it.
func TestWithoutItsControllerNfsHasTheAgentAlone(t *testing.T) {
	var names []string
	for _, one := range rendered(t, withoutController, "--set", "podMonitor.enabled=true,node.httpAddress=0.0.0.0,snapshots.enabled=true") {
		names = append(names, one.name())
	}
	slices.Sort(names)
	want := []string{"DaemonSet/belay-node", "Namespace/belay-system", "PodMonitor/belay-node", "ServiceAccount/belay-node"}
	if !slices.Equal(names, want) {
		t.Errorf("%q, not %q", names, want)
	}
}

// Its deletion policy, and all that the controller needs to create and to delete a snapshot.
func TestTheSnapshotClassOfNfsNamesShareOptionsAndSecret(t *testing.T) {
	class := named(rendered(t, chart+"/ci/nfs-every-value.yaml", "--set", "snapshots.enabled=true"))["VolumeSnapshotClass/filer-archives"]
	want := object{"share": "/archives", "mountOptions": "nfsvers=4.1,nconnect=2", "csi.storage.k8s.io/snapshotter-secret-name": "filer-options", "csi.storage.k8s.io/snapshotter-secret-namespace": "belay-system"}
	if found := class.at("parameters"); !reflect.DeepEqual(found, want) || class["deletionPolicy"] != "Retain" {
		t.Errorf("%v, not %v", class, want)
	}
	plain := named(rendered(t, nfs, "--set", "snapshots.enabled=true"))["VolumeSnapshotClass/belay-nfs"]
	if plain["parameters"] != nil {
		t.Errorf("parameters without a value: %v", plain["parameters"])
	}
}

// The parameters of the class of the documentation, and the right to read the one Secret.
func TestTheClassesOfNfsNameServerAndSecret(t *testing.T) {
	all := named(rendered(t, chart+"/ci/nfs-every-value.yaml"))
	secret := object{}
	for _, call := range []string{"provisioner", "controller-expand"} {
		secret["csi.storage.k8s.io/"+call+"-secret-name"] = "filer-options"
		secret["csi.storage.k8s.io/"+call+"-secret-namespace"] = "belay-system"
	}
	for class, want := range map[string]object{
		"filer":   {"server": "filer.example.org", "share": "/exports", "subDir": "${pvc.metadata.namespace}/${pvc.metadata.name}/${pv.metadata.name}", "onDelete": "retain", "mountPermissions": "0750"},
		"another": {"server": "fd00::5", "share": "/srv/six"},
	} {
		maps.Copy(want, secret)
		if found := all["StorageClass/"+class].at("parameters"); !reflect.DeepEqual(found, want) {
			t.Errorf("%s: %v, not %v", class, found, want)
		}
	}
	if mode := all["StorageClass/another"].text("volumeBindingMode"); mode != "Immediate" {
		t.Errorf("the volume waits for a pod: %s", mode)
	}
	rules := all["Role/belay-controller-filer-mount-options"].list("rules")
	want := object{"apiGroups": []any{""}, "resources": []any{"secrets"}, "resourceNames": []any{"filer-options"}, "verbs": []any{"get"}}
	if len(rules) != 1 || !reflect.DeepEqual(rules[0], want) {
		t.Errorf("%v, not %v", rules, want)
	}
	for name := range named(rendered(t, nfs)) {
		if strings.HasPrefix(name, "StorageClass/") || strings.HasSuffix(name, "-mount-options") {
			t.Errorf("%s, but no server and no Secret is named", name)
		}
	}
}

func TestAnNfsEntryThatCannotWorkIsRefused(t *testing.T) {
	for _, c := range []struct{ settings, why string }{
		{"drivers[0].csiDriver.attachRequired=true", "drivers[0].csiDriver.attachRequired: with backend nfs it is false"},
		{"drivers[0].csiDriver.storageCapacity=true", "backend nfs does not enforce the size of a claim"},
		{"drivers[0].replicas=2", "backend nfs has no such value"},
		{"drivers[0].storageClasses[0].fsType=ext4", "drivers[0].storageClasses[0].fsType: backend nfs has no such value"},
		{"drivers[0].storageClasses[0].share=/srv", "drivers[0].storageClasses[0].server is empty"},
		{"drivers[0].storageClasses[0].server=filer", "drivers[0].storageClasses[0].share is empty"},
		{"drivers[0].storageClasses[0].server=filer:/srv,drivers[0].storageClasses[0].share=/srv", `drivers[0].storageClasses[0].server "filer:/srv": use the name or address of a server`},
		{"drivers[0].controller.create=false,drivers[0].storageClasses[0].server=filer,drivers[0].storageClasses[0].share=/srv", "no controller of this release creates their volumes"},
		{"drivers[0].csiDriver.create=false", "drivers[0].controller.create: csiDriver.create is false"},
		{"drivers[0].mountPermissions=0778", `drivers[0].mountPermissions "0778": use an octal mode`},
		{"drivers[0].onDelete=keep", "/drivers/0/onDelete"},
		{"drivers[0].controller.httpPort=29808", "the node agent has port 29808"},
		{"drivers[1].backend=nfs,drivers[1].name=second.example.org", `drivers[0].controller.httpPort and drivers[1].controller.httpPort are both "29809"`},
		{"sidecars.metrics=true,drivers[0].controller.httpPort=29805", "the node agent has port 29808"},
		{"sidecars.metrics=true,drivers[1].backend=nfs,drivers[1].name=second.example.org,drivers[1].controller.httpPort=29812", `drivers[0].controller.httpPort + 3 and drivers[1].controller.httpPort are both "29812"`},
		{"podMonitor.enabled=true,node.httpAddress=0.0.0.0", "set drivers[0].controller.httpAddress to 0.0.0.0, and restrict port 29809"},
		{"drivers[0].controller.create=false,drivers[0].snapshotClass.name=archives", "drivers[0].snapshotClass: controller.create is false"},
		{"podMonitor.enabled=true,drivers[0].controller.create=false", `with drivers[0].backend "nfs" the node agent uses the host's network`},
	} {
		out, err := helm("template", "belay", chart, "--values", nfs, "--set", c.settings)
		if err == nil || !strings.Contains(out, c.why) {
			t.Errorf("%s: %v: %s", c.settings, err, out)
		}
	}
}

// CSI's DeleteVolume passes no mountOptions, and mounts the share anyway.
func TestTheControllerOfNfsMountsWithTheOptionsThatAllClassesHave(t *testing.T) {
	const class = "drivers[0].storageClasses[%d].name=%s,drivers[0].storageClasses[%d].server=filer,drivers[0].storageClasses[%d].share=/a"
	classes := func(options ...string) string {
		var settings []string
		for n, option := range options {
			settings = append(settings, fmt.Sprintf(class, n, fmt.Sprintf("class%d", n), n, n))
			if option != "" {
				settings = append(settings, fmt.Sprintf("drivers[0].storageClasses[%d].mountOptions={%s}", n, option))
			}
		}
		return strings.Join(settings, ",")
	}
	for _, c := range []struct{ settings, want, warned string }{
		{classes(""), "", ""},
		{classes("nfsvers=3,nolock"), "nfsvers=3,nolock", ""},
		{classes("nfsvers=3", "nfsvers=3"), "nfsvers=3", ""},
		{classes("nfsvers=3", ""), "", "class0"},
		{classes("nfsvers=3", "nfsvers=4.1"), "", "class0 class1"},
		{classes("nfsvers=3", "nfsvers=4.1") + ",drivers[0].mountOptions={nfsvers=4.1}", "nfsvers=4.1", "class0"},
		{classes("nfsvers=3", "nfsvers=4.1") + ",drivers[0].mountOptionsSecret=options", "", ""},
	} {
		deployment := named(rendered(t, nfs, "--set", c.settings))["Deployment/"+controller]
		container := deployment.at("spec", "template", "spec").list("containers")[0]
		if found := argument(container, "--nfs-mount-options"); found != c.want {
			t.Errorf("%s: mounts with %q, not %q", c.settings, found, c.want)
		}
		out, err := exec.Command("helm", "install", "belay", chart, "--dry-run=client", "--values", nfs, "--set", c.settings).CombinedOutput()
		_, notes, _ := strings.Cut(string(out), "\nNOTES:\n")
		_, warning, isWarned := strings.Cut(notes, "WARNING: a deletion does not pass the mountOptions of its StorageClass. Those of ")
		if err != nil || isWarned != (c.warned != "") || !strings.HasPrefix(warning, c.warned) {
			t.Errorf("%s: %v: warned of %q: %s", c.settings, err, c.warned, notes)
		}
	}
}

func TestTheNotesOfNfsNameWhatIsThere(t *testing.T) {
	for _, c := range []struct {
		values      string
		has, hasNot []string
	}{
		{nfs, []string{"deployment/" + controller, "create a StorageClass that names a server", "docs/nfs.md"}, []string{"CLASS", "Then create a volume"}},
		{withoutController, []string{"for PersistentVolumes that exist (docs/nfs.md)"}, []string{"CLASS", "deployment/"}},
		{chart + "/ci/nfs-every-value.yaml", []string{"storageClassName: filer"}, []string{"names a server"}},
	} {
		out, err := exec.Command("helm", "install", "belay", chart, "--dry-run=client", "--values", c.values).CombinedOutput()
		_, notes, _ := strings.Cut(string(out), "\nNOTES:\n")
		missing := func(part string) bool { return !strings.Contains(notes, part) }
		if err != nil || slices.ContainsFunc(c.has, missing) || slices.ContainsFunc(c.hasNot, func(part string) bool { return !missing(part) }) {
			t.Errorf("%s: %v: %s", c.values, err, notes)
		}
	}
}
