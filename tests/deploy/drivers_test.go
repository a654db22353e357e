package deploy

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const severalDisks = chart + "/ci/several-disks.yaml"

// drivers are the node agent's flags for each driver, by the driver's name.
func drivers(t *testing.T, all []object) map[string]object {
	t.Helper()
	found := map[string]object{}
	for _, part := range sections(agent(t, all).list("containers")[0]) {
		found[argument(part, "--driver-name")] = part
	}
	return found
}

func agent(t *testing.T, all []object) object {
	t.Helper()
	pod := named(all)["DaemonSet/belay-node"].at("spec", "template", "spec")
	if len(pod) == 0 {
		t.Fatal("no node agent")
	}
	return pod
}

func named(all []object) map[string]object {
	found := map[string]object{}
	for _, one := range all {
		found[one.name()] = one
	}
	return found
}

func TestNamesAreDistinct(t *testing.T) {
	for _, values := range valuesFiles(t) {
		all := rendered(t, values)
		seen := map[string]bool{}
		take := func(name string) {
			if seen[name] {
				t.Errorf("there are two of %s", name)
			}
			seen[name] = true
		}
		for _, one := range all {
			take(one.name())
			pod := one.at("spec", "template", "spec")
			for _, volume := range pod.list("volumes") {
				take(one.name() + ": volume " + volume.text("name"))
				if path := volume.text("hostPath", "path"); path != "" {
					take(one.name() + ": directory " + path)
				}
			}
			for _, container := range pod.list("containers") {
				take(one.name() + ": container " + container.text("name"))
				for _, mount := range container.list("volumeMounts") {
					take(one.name() + ": " + container.text("name") + " mounts at " + mount.text("mountPath"))
					if !seen[one.name()+": volume "+mount.text("name")] {
						t.Errorf("%s mounts %s, which is no volume", one.name(), mount.text("name"))
					}
				}
			}
		}
	}
}

// A Deployment that selected another's pods would take them for its own.
func TestSelectorsSelectTheirOwnPods(t *testing.T) {
	for _, values := range valuesFiles(t) {
		pods, selectors, want := map[string]object{}, map[string]object{}, map[string][]string{}
		onHost, ofJobs := map[string]bool{}, map[string]object{}
		for _, one := range rendered(t, values) {
			name := one.text("metadata", "name")
			switch one.text("kind") {
			case "Job":
				ofJobs[name] = one.at("spec", "template", "metadata", "labels")
			case "DaemonSet", "Deployment":
				pods[name] = one.at("spec", "template", "metadata", "labels")
				onHost[name] = one.at("spec", "template", "spec")["hostNetwork"] == true
				selectors[one.name()], want[one.name()] = one.at("spec", "selector", "matchLabels"), []string{name}
			case "NetworkPolicy":
				selectors[one.name()], want[one.name()] = one.at("spec", "podSelector", "matchLabels"), []string{name}
			case "PodDisruptionBudget":
				selectors[one.name()], want[one.name()] = one.at("spec", "selector", "matchLabels"), []string{name}
			case "PodMonitor":
				selectors[one.name()] = one.at("spec", "selector", "matchLabels")
			}
		}
		for _, pod := range slices.Sorted(maps.Keys(pods)) {
			// A policy has no effect on the host's network, so it must not seem to be there.
			if has := selectors["NetworkPolicy/"+pod] != nil; has == onHost[pod] {
				t.Errorf("%s: %s: network policy %v, host's network %v", values, pod, has, onHost[pod])
			}
			for monitor := range selectors {
				// The sidecars are in the controllers' pods.
				if kind, component, _ := strings.Cut(strings.Replace(monitor, "sidecars", "controller", 1), "/"); kind == "PodMonitor" && strings.HasPrefix(pod, component) {
					want[monitor] = append(want[monitor], pod)
				}
			}
		}
		// They serve nothing, so that they have a policy only where they may need one.
		maps.Copy(pods, ofJobs)
		for name, selector := range selectors {
			var found []string
			for _, pod := range slices.Sorted(maps.Keys(pods)) {
				if selects(selector, pods[pod]) {
					found = append(found, pod)
				}
			}
			if !slices.Equal(found, want[name]) {
				t.Errorf("%s: %s selects the pods of %q, not of %q", values, name, found, want[name])
			}
		}
	}
}

func selects(selector, labels object) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

func TestCommonFlagsComeBeforeTheFirstDriver(t *testing.T) {
	for _, values := range valuesFiles(t) {
		all := rendered(t, values, "--set", "node.extraArgs={--grpc-health,--grpc-reflection}")
		common := regexp.MustCompile(`^--(kubelet-dir|registration-dir|http-endpoint|log-level|log-format|grpc-reflection|grpc-health)\b`)
		for at, part := range sections(agent(t, all).list("containers")[0]) {
			var before, after int
			isDrivers := false
			for _, one := range part["args"].([]any) {
				isDrivers = isDrivers || strings.HasPrefix(one.(string), "--driver-name=")
				switch {
				case isDrivers && common.MatchString(one.(string)):
					t.Errorf("%s: %s comes after a driver", values, one)
				case isDrivers:
					after++
				case common.MatchString(one.(string)):
					before++
				default:
					t.Errorf("%s: %s comes before the driver's name", values, one)
				}
			}
			if at == 0 && before != 7 || at > 0 && before != 0 || after == 0 {
				t.Errorf("%s: driver %d: %d common flags, %d specific flags", values, at, before, after)
			}
		}
	}
}

// Its name in CSI gives all others.
func TestASecondDriverOfABackendNeedsOnlyAName(t *testing.T) {
	alone := rendered(t, chart+"/ci/openstack.yaml")
	both := named(rendered(t, chart+"/ci/openstack.yaml", "--set", "drivers[1].backend=openstack,drivers[1].name=fast.csi.openstack.org"))
	for _, one := range alone {
		if one.text("kind") != "DaemonSet" && !reflect.DeepEqual(one, both[one.name()]) {
			t.Errorf("%s changes with a second driver", one.name())
		}
		twin := strings.ReplaceAll(one.name(), "cinder", "fast")
		if _, ok := both[twin]; !ok {
			t.Errorf("there is no %s", twin)
		}
		delete(both, twin)
		delete(both, one.name())
	}
	for name := range both {
		t.Errorf("there is also %s", name)
	}
}

func TestALongNameGivesAShorterOneToObjects(t *testing.T) {
	name := strings.Repeat("n", 29) + "-and-more.csi.belay.dev"
	all := named(rendered(t, chart+"/ci/local.yaml", "--set", "drivers[0].name="+name))
	for _, want := range []string{"CSIDriver/" + name, "Deployment/belay-controller-" + strings.Repeat("n", 29)} {
		if all[want] == nil {
			t.Errorf("there is no %s in %q", want, slices.Sorted(maps.Keys(all)))
		}
	}
}

// Nothing of one driver names another one, or acts with another's rights.
func TestObjectsBelongToTheirDriver(t *testing.T) {
	classes := map[string]string{}
	for _, one := range rendered(t, chart+"/ci/two-backends.yaml") {
		name := one.text("metadata", "name")
		switch one.text("kind") {
		case "StorageClass":
			classes["storage "+name] = one.text("provisioner")
		case "VolumeSnapshotClass":
			classes["snapshot "+name] = one.text("driver")
		case "ClusterRoleBinding", "RoleBinding":
			subjects := one.list("subjects")
			if one.text("roleRef", "name") != name || len(subjects) != 1 || !strings.HasPrefix(name+"-", subjects[0].text("name")+"-") {
				t.Errorf("%s gives %s to %v", one.name(), one.text("roleRef", "name"), subjects)
			}
		case "Deployment":
			if account := one.text("spec", "template", "spec", "serviceAccountName"); account != name {
				t.Errorf("%s runs as %s", one.name(), account)
			}
		}
	}
	want := map[string]string{
		"storage belay-local": "local.csi.belay.dev", "snapshot belay-local": "local.csi.belay.dev",
		"storage belay-cinder": "cinder.csi.openstack.org", "snapshot belay-cinder": "cinder.csi.openstack.org",
		"storage cinder-ssd-az-a": "cinder.csi.openstack.org",
	}
	if !maps.Equal(classes, want) {
		t.Errorf("classes of drivers: %v, want %v", classes, want)
	}
}

// As for `nfs`, whose agent cannot be replaced while a server does not respond.
func TestTwoReleasesShareNothing(t *testing.T) {
	of := func(release, namespace, backend string) map[string]bool {
		out, err := helm("template", release, chart, "--namespace", namespace, "--set", "drivers[0].backend="+backend)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		names := map[string]bool{}
		for _, one := range parsed(t, out) {
			names[one.name()+" in "+one.text("metadata", "namespace")] = true
		}
		return names
	}
	first := of("near", "belay-near", "local")
	for name := range of("far", "belay-far", "nfs") {
		if first[name] {
			t.Errorf("both have %s", name)
		}
	}
}

func TestTheDocumentedDisksAreTried(t *testing.T) {
	_, example, _ := strings.Cut(read(t, severalDisks), "\ndrivers:\n")
	example, _, _ = strings.Cut(example, "\nsnapshots:")
	if example == "" || !strings.Contains(read(t, "../../docs/helm.md"), "\ndrivers:\n"+example+"\n") {
		t.Errorf("docs/helm.md has not the disks of %s:\n%s", severalDisks, example)
	}
}
