package deploy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const (
	openstack = chart + "/ci/openstack.yaml"
	mixed     = chart + "/ci/two-backends.yaml"
)

// cloudController is the Deployment of the driver `cinder`.
func cloudController(t *testing.T, values string, more ...string) object {
	t.Helper()
	found := named(rendered(t, values, more...))["Deployment/belay-controller-cinder"]
	if found == nil {
		t.Fatalf("%s: no controller", values)
	}
	return found.at("spec")
}

// With several replicas and no leader two sidecars would act on one claim.
func TestReplicasAndLeadersGoTogether(t *testing.T) {
	for _, values := range valuesFiles(t) {
		all := named(rendered(t, values))
		for name, one := range all {
			if one.text("kind") != "Deployment" {
				continue
			}
			pod := one.at("spec", "template", "spec")
			isLocal := argument(pod.list("containers")[0], "--backend") == "local"
			replicas := one.at("spec")["replicas"].(float64)
			if (replicas > 1) == isLocal {
				t.Errorf("%s: %s: %v replicas", values, name, replicas)
			}
			for _, container := range pod.list("containers")[1:] {
				arguments := container["args"].([]any)
				if elects := slices.Contains(arguments, any("--leader-election")); elects == isLocal {
					t.Errorf("%s: %s: %s elects a leader: %v", values, name, container.text("name"), elects)
				}
			}
			short := one.text("metadata", "name")
			for _, other := range []string{"Role/" + short + "-leader", "RoleBinding/" + short + "-leader", "PodDisruptionBudget/" + short} {
				if _, ok := all[other]; ok == isLocal {
					t.Errorf("%s: %s: %v", values, other, ok)
				}
			}
		}
	}
}

func TestASingleReplicaHasNoDisruptionBudget(t *testing.T) {
	all := named(rendered(t, openstack, "--set", "drivers[0].replicas=1"))
	if all["PodDisruptionBudget/belay-controller-cinder"] != nil {
		t.Error("a drain would not be able to evict the only pod")
	}
	if all["Role/belay-controller-cinder-leader"] == nil {
		t.Error("during a rollout there are two pods, so there must be a leader")
	}
}

// Nothing of the node, and credentials for one container only; a file mounted by subPath would keep
// its first content.
func TestOnlyTheControllerSeesTheCredentials(t *testing.T) {
	for _, values := range []string{openstack, mixed} {
		pod := cloudController(t, values).at("template", "spec")
		for _, volume := range pod.list("volumes") {
			if volume["hostPath"] != nil {
				t.Errorf("%s: %s is a path of the node", values, volume.text("name"))
			}
		}
		var mounted []string
		for _, container := range pod.list("containers") {
			for _, mount := range container.list("volumeMounts") {
				if mount.text("name") == "cloud-config" {
					mounted = append(mounted, fmt.Sprintln(container.text("name"), mount["mountPath"], mount["readOnly"], mount["subPath"]))
				}
			}
		}
		if want := []string{"belay-controller /etc/config true <nil>\n"}; !slices.Equal(mounted, want) {
			t.Errorf("%s: %q, want %q", values, mounted, want)
		}
	}
}

func TestTheKeysOfFormatMarksAreWhereTheFlagSays(t *testing.T) {
	if container := cloudController(t, openstack).at("template", "spec").list("containers")[0]; strings.Contains(fmt.Sprint(container), "mark") {
		t.Errorf("a key without a Secret: %v", container)
	}
	pod := cloudController(t, openstack, "--set", "drivers[0].formatMark.secretName=marks").at("template", "spec")
	container := pod.list("containers")[0]
	if !slices.Contains(container["args"].([]any), any("--mark-key-file=/etc/format-mark/keys")) {
		t.Errorf("the flag is missing: %v", container["args"])
	}
	isMounted := slices.ContainsFunc(container.list("volumeMounts"), func(mount object) bool {
		return mount.text("name") == "format-mark" && mount.text("mountPath") == "/etc/format-mark"
	})
	isSecret := slices.ContainsFunc(pod.list("volumes"), func(volume object) bool {
		return volume.text("name") == "format-mark" && volume.at("secret").text("secretName") == "marks"
	})
	if !isMounted || !isSecret {
		t.Errorf("mounted %t, of the Secret %t", isMounted, isSecret)
	}
}

func TestTheBundleIsWhereTheControllerLooksForIt(t *testing.T) {
	for _, kind := range []string{"secret", "configMap"} {
		pod := cloudController(t, openstack, "--set", "drivers[0].caBundle."+kind+"Name=authorities").at("template", "spec")
		var found any
		for _, volume := range pod.list("volumes") {
			if volume.text("name") == "ca-bundle" {
				found = volume.at("projected")["sources"]
			}
		}
		want := []any{map[string]any{kind: map[string]any{"name": "authorities", "items": []any{map[string]any{"key": "ca.crt", "path": "ca-certificates.crt"}}}}}
		if !reflect.DeepEqual(found, want) {
			t.Errorf("%v, want %v", found, want)
		}
		isMounted := slices.ContainsFunc(pod.list("containers")[0].list("volumeMounts"), func(mount object) bool {
			return mount.text("name") == "ca-bundle" && mount.text("mountPath") == "/etc/ssl/certs"
		})
		if !isMounted {
			t.Errorf("the %s is not mounted", kind)
		}
	}
}

func TestRestrictedEgressReachesTheCloud(t *testing.T) {
	policies := named(rendered(t, mixed, "--set-json", "networkPolicy.dnsPorts=[5353]"))
	rules := policies["NetworkPolicy/belay-controller-cinder"].list("spec", "egress")
	var found []string
	for _, rule := range rules {
		text := ""
		for _, to := range rule.list("to") {
			text += to.text("ipBlock", "cidr") + " "
		}
		for _, port := range rule.list("ports") {
			text += fmt.Sprint(port.text("protocol"), port["port"], " ")
		}
		found = append(found, text)
	}
	want := []string{"6443 ", "UDP5353 5353 ", "0.0.0.0/0 ::/0 80 443 5000 8774 8776 "}
	if !slices.Equal(found, want) {
		t.Errorf("%q, want %q", found, want)
	}
	if rules := policies["NetworkPolicy/belay-controller-local"].list("spec", "egress"); len(rules) != 1 {
		t.Errorf("local: %v", rules)
	}
	if policies["NetworkPolicy/belay-node"] == nil {
		t.Error("without the host's network the node agent's policy is in force")
	}
}

func TestSnapshotsAreOfBackendsThatHaveThem(t *testing.T) {
	for _, one := range rendered(t, mixed) {
		if name := one.name(); strings.Contains(name, "nap") && strings.Contains(name, "cinder") {
			t.Errorf("there is %s", name)
		}
	}
	for _, container := range cloudController(t, mixed).at("template", "spec").list("containers") {
		if container.text("name") == "csi-snapshotter" {
			t.Error("a snapshotter for a backend without snapshots")
		}
	}
}

// There, 9808 is often another driver's, and every address is the node's.
func TestOnTheHostsNetworkThePagesAreOnLoopback(t *testing.T) {
	cases := []struct{ settings, address, host string }{
		{"logLevel=info", "127.0.0.1:29808", "127.0.0.1"},
		{"node.httpAddress=0.0.0.0,node.httpPort=9900", "0.0.0.0:9900", ""},
		{"node.httpAddress=[::1]", "[::1]:29808", "::1"},
		{"drivers[0].metadata.searchOrder=configDrive", "0.0.0.0:9808", ""},
	}
	for _, c := range cases {
		container := agent(t, rendered(t, openstack, "--set", c.settings)).list("containers")[0]
		if found := argument(container, "--http-endpoint"); found != c.address {
			t.Errorf("%s: %s, want %s", c.settings, found, c.address)
		}
		for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
			if found := container.text(probe, "httpGet", "host"); found != c.host {
				t.Errorf("%s: %s asks %q, want %q", c.settings, probe, found, c.host)
			}
		}
	}
}

func TestControllersOfACloudSpreadOverNodes(t *testing.T) {
	preferred := func(values string) []object {
		return named(rendered(t, values))["Deployment/belay-controller-c"+map[bool]string{true: "inder", false: "loud"}[values == openstack]].
			at("spec", "template", "spec", "affinity", "podAntiAffinity").list("preferredDuringSchedulingIgnoredDuringExecution")
	}
	if terms := preferred(openstack); len(terms) != 1 || terms[0].text("podAffinityTerm", "labelSelector", "matchLabels", "belay.dev/driver") != "cinder" {
		t.Errorf("%v", terms)
	}
	if terms := preferred(chart + "/ci/openstack-every-value.yaml"); len(terms) != 2 || terms[0].text("podAffinityTerm", "labelSelector", "matchLabels", "example.org/busy-controller") != "yes" {
		t.Errorf("the affinity of the values is not kept: %v", terms)
	}
}

// One that tolerated every taint would stay on a node that is unreachable.
func TestAControllerOfACloudLeavesAFailedNode(t *testing.T) {
	for values, want := range map[string]int{openstack: 1, chart + "/ci/local.yaml": 1} {
		for _, one := range rendered(t, values) {
			if one.text("kind") != "Deployment" {
				continue
			}
			found := one.at("spec", "template", "spec").list("tolerations")
			if len(found) != want || (found[0].text("key") == "") != (values != openstack) {
				t.Errorf("%s: %v", values, found)
			}
		}
	}
	for _, values := range []string{openstack, chart + "/ci/local.yaml"} {
		for _, one := range rendered(t, values, "--set-json", "controller.tolerations=[]") {
			if found := one.at("spec", "template", "spec").list("tolerations"); one.text("kind") == "Deployment" && len(found) > 0 {
				t.Errorf("%s: %v", values, found)
			}
		}
	}
}

func TestAClassOfCinderHasItsTypeAndZone(t *testing.T) {
	all := named(rendered(t, mixed))
	want := map[string]any{"csi.storage.k8s.io/fstype": "ext4", "type": "ssd", "availability": "az-a"}
	if found := all["StorageClass/cinder-ssd-az-a"]["parameters"]; !reflect.DeepEqual(found, want) {
		t.Errorf("%v, want %v", found, want)
	}
	if found := all["StorageClass/belay-cinder"].at("parameters"); len(found) != 1 {
		t.Errorf("%v", found)
	}
}
