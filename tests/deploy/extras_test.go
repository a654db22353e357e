package deploy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// The whole of a pod's additions, in addition to the chart's own.
func TestAdditionsLeaveTheChartsOwnPartsInPlace(t *testing.T) {
	for _, kind := range []string{"DaemonSet", "Deployment"} {
		plain, added := pod(t, kind, "local.yaml"), pod(t, kind, "every-value.yaml")
		for _, part := range []string{"env", "volumeMounts"} {
			before, after := plain.list("containers")[0].list(part), added.list("containers")[0].list(part)
			if len(after) != len(before)+1 {
				t.Errorf("%s: %s: %d, want one more than %d", kind, part, len(after), len(before))
			}
		}
		// The container that installs the udev rules has its own volume.
		before, want := plain.list("volumes"), 1+len(added.list("initContainers"))
		if after := added.list("volumes"); len(after) != len(before)+want {
			t.Errorf("%s: %d volumes, want %d more than %d", kind, len(after), want, len(before))
		}
	}
	for _, container := range pod(t, "Deployment", "every-value.yaml").list("containers")[1:] {
		if !slices.ContainsFunc(container.list("env"), func(one object) bool { return one.text("name") == "HTTPS_PROXY" }) {
			t.Errorf("%s has no variable of sidecars.env", container.text("name"))
		}
	}
}

func TestResourcesOfOneSidecarReplaceOnlyWhatTheyName(t *testing.T) {
	found := map[string]any{}
	for _, container := range pod(t, "Deployment", "every-value.yaml").list("containers")[1:] {
		resources := container.at("resources")
		found[container.text("name")] = []any{resources.at("requests")["cpu"], resources.at("requests")["memory"], resources.at("limits")["memory"]}
	}
	want := map[string]any{
		"csi-provisioner": []any{"20m", "32Mi", "301Mi"}, "csi-resizer": []any{"20m", "32Mi", "303Mi"},
		"csi-snapshotter": []any{"304m", "32Mi", "256Mi"},
	}
	if !reflect.DeepEqual(found, want) {
		t.Errorf("%v, want %v", found, want)
	}
}

// The limit of the store, which opens no volume, stays.
func TestEncryptionRaisesTheMemoryLimitOfTheAgent(t *testing.T) {
	requests := map[string]any{"cpu": "10m", "memory": "32Mi"}
	for limits, want := range map[string]map[string]any{
		`{"memory":"256Mi"}`:            {"memory": "320Mi"},
		`{"memory":"1Gi","cpu":"200m"}`: {"memory": "1088Mi", "cpu": "200m"},
		`{"memory":null,"cpu":2}`:       {"cpu": 2.0},
		`null`:                          nil,
	} {
		more := []string{"--set", "node.encryption.enabled=true", "--set-json", "node.resources.limits=" + limits}
		all := rendered(t, chart+"/ci/local.yaml", more...)
		found := podOf(t, all, "DaemonSet/belay-node").list("containers")[0].at("resources")
		if !reflect.DeepEqual(found.at("requests"), object(requests)) || !reflect.DeepEqual(found.at("limits"), object(want)) {
			t.Errorf("%s: %v, want %v", limits, found, want)
		}
		before := podOf(t, rendered(t, chart+"/ci/local.yaml"), store).list("containers")[0]["resources"]
		if after := podOf(t, all, store).list("containers")[0]["resources"]; !reflect.DeepEqual(after, before) {
			t.Errorf("%s: the store has %v, not %v", limits, after, before)
		}
	}
	if limit := pod(t, "DaemonSet", "local.yaml").list("containers")[0].at("resources", "limits")["memory"]; limit != "256Mi" {
		t.Errorf("without encryption: %v", limit)
	}
}

func TestTheUdevRulesAreInstalledOnRequest(t *testing.T) {
	const values, agent, directory = chart + "/ci/local.yaml", "DaemonSet/belay-node", "/etc/udev/rules.d"
	if pod := podOf(t, rendered(t, values), agent); len(pod.list("initContainers")) > 0 || strings.Contains(fmt.Sprint(pod), directory) {
		t.Errorf("by default: %v", pod)
	}
	pod := podOf(t, rendered(t, values, "--set", "node.udevRules.install=true"), agent)
	first := pod.list("initContainers")[0]
	if first["image"] != pod.list("containers")[0]["image"] || !reflect.DeepEqual(first["command"], []any{"belayctl", "udev-rules", directory}) {
		t.Errorf("%v", first)
	}
	security := object{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsUser": 0.0, "capabilities": map[string]any{"drop": []any{"ALL"}}}
	if found := first.at("securityContext"); !reflect.DeepEqual(found, security) {
		t.Errorf("%v, want %v", found, security)
	}
	if mounts := first.list("volumeMounts"); len(mounts) != 1 || mounts[0].text("mountPath") != directory {
		t.Errorf("%v", mounts)
	}
	hosts := 0
	for _, volume := range pod.list("volumes") {
		if volume.text("name") == "udev-rules" && volume.text("hostPath", "path") == directory {
			hosts++
		}
	}
	if hosts != 1 {
		t.Errorf("%d volumes", hosts)
	}
}

// pod is the first one of that kind.
func pod(t *testing.T, kind, values string) object {
	t.Helper()
	for _, one := range rendered(t, chart+"/ci/"+values, "--api-versions", "snapshot.storage.k8s.io/v1/VolumeSnapshotClass") {
		if one.text("kind") == kind {
			return one.at("spec", "template", "spec")
		}
	}
	t.Fatalf("%s: no %s", values, kind)
	return nil
}

func TestTheChartsOwnNamesAreRefused(t *testing.T) {
	for _, path := range []string{
		"node.env BELAY_NODE_NAME", "node.env CSI_ENDPOINT", "controller.env CSI_ENDPOINT", "sidecars.env POD_NAME",
		"node.extraVolumes dev", "node.extraVolumes socket-local", "node.extraVolumes disk-default",
		"controller.extraVolumes socket", "controller.extraVolumes token",
	} {
		list, name, _ := strings.Cut(path, " ")
		entry := `{"name":"` + name + `","value":"x"}`
		if strings.HasSuffix(list, "Volumes") {
			entry = `{"name":"` + name + `","emptyDir":{}}`
		}
		out, err := helm("template", "belay", chart, "--values", chart+"/ci/local.yaml", "--set-json", list+"=["+entry+"]")
		if want := list + "[0].name: " + name + " is the chart's own"; err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, no %q in\n%.300s", path, err, want, out)
		}
	}
	for path, key := range map[string]string{
		"node.podLabels": "app.kubernetes.io/name", "controller.podLabels": "belay.dev/driver",
		"node.podAnnotations": "kubectl.kubernetes.io/default-container", "controller.podAnnotations": "kubectl.kubernetes.io/default-container",
		"podMonitor.labels": "app.kubernetes.io/instance", "prometheusRule.labels": "app.kubernetes.io/version", "dashboard.labels": "app.kubernetes.io/name",
	} {
		arguments := []string{"template", "belay", chart, "--values", chart + "/ci/local.yaml", "--set-json", path + `={"` + key + `":"x"}`}
		if component, _, _ := strings.Cut(path, "."); component != "controller" {
			arguments = append(arguments, "--set", component+".enabled=true")
		}
		out, err := helm(arguments...)
		if want := path + ": " + key + " is the chart's own"; err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, no %q in\n%.300s", path, err, want, out)
		}
	}
}

func TestAnEmptyPriorityClassIsLeftOut(t *testing.T) {
	all := named(rendered(t, chart+"/ci/local.yaml", "--set", "node.priorityClassName=,controller.priorityClassName="))
	for _, name := range []string{"DaemonSet/belay-node", "Deployment/belay-controller-local"} {
		pod := all[name].at("spec", "template", "spec")
		if _, ok := pod["priorityClassName"]; ok || len(pod) == 0 {
			t.Errorf("%s: %v", name, pod["priorityClassName"])
		}
	}
}
