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

// With several replicas and no leader two sidecars would act on one claim. `nfs` has one replica, and a
// lost node may run another.
func TestReplicasAndLeadersGoTogether(t *testing.T) {
	for _, values := range valuesFiles(t) {
		all := named(rendered(t, values))
		for name, one := range all {
			if one.text("kind") != "Deployment" {
				continue
			}
			pod := one.at("spec", "template", "spec")
			backend := argument(pod.list("containers")[0], "--backend")
			isOne := backend == "nfs"
			replicas := one.at("spec")["replicas"].(float64)
			if (replicas > 1) == isOne || (one.text("spec", "strategy", "type") == "Recreate") != isOne {
				t.Errorf("%s: %s: %v replicas", values, name, replicas)
			}
			for _, container := range pod.list("containers")[1:] {
				arguments := container["args"].([]any)
				if !slices.Contains(arguments, any("--leader-election")) {
					t.Errorf("%s: %s: %s elects no leader", values, name, container.text("name"))
				}
			}
			short := one.text("metadata", "name")
			for other, isMissing := range map[string]bool{"Role/" + short + "-leader": false, "RoleBinding/" + short + "-leader": false, "PodDisruptionBudget/" + short: isOne} {
				if _, ok := all[other]; ok == isMissing {
					t.Errorf("%s: %s: %v", values, other, ok)
				}
			}
		}
	}
}

// That of the driver which Belay replaces may stay.
func TestTheObjectOfACloudCanBeLeftToAnotherRelease(t *testing.T) {
	for values, name := range map[string]string{
		openstack:                       "cinder.csi.openstack.org",
		chart + "/ci/digitalocean.yaml": "dobs.csi.digitalocean.com",
		chart + "/ci/civo.yaml":         "csi.civo.com",
	} {
		with := named(rendered(t, values))
		without := named(rendered(t, values, "--set", "drivers[0].csiDriver.create=false"))
		if with["CSIDriver/"+name] == nil {
			t.Errorf("%s: no CSIDriver", values)
		}
		delete(with, "CSIDriver/"+name)
		if !reflect.DeepEqual(with, without) {
			t.Errorf("%s: more than the object is left out", values)
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

// keySecret is the Secret with the keys of format marks that the controller reads; "" for none.
func keySecret(t *testing.T, values string, more ...string) string {
	t.Helper()
	pod := cloudController(t, values, more...).at("template", "spec")
	container := pod.list("containers")[0]
	hasFlag := slices.Contains(container["args"].([]any), any("--mark-key-file=/etc/format-mark/keys"))
	isMounted := slices.ContainsFunc(container.list("volumeMounts"), func(mount object) bool {
		return mount.text("name") == "format-mark" && mount.text("mountPath") == "/etc/format-mark"
	})
	name := ""
	for _, volume := range pod.list("volumes") {
		if volume.text("name") == "format-mark" {
			name = volume.text("secret", "secretName")
		}
	}
	if hasFlag != isMounted || isMounted != (name != "") {
		t.Errorf("%v: flag %t, mounted %t, of the Secret %q", more, hasFlag, isMounted, name)
	}
	return name
}

func TestTheKeysOfFormatMarksAreWhereTheFlagSays(t *testing.T) {
	cases := []struct {
		settings, secret string
		isCreated        bool
	}{
		{"logLevel=info", "belay-format-mark-cinder", true},
		{"drivers[0].shortName=disks,drivers[0].formatMark.key=keys", "belay-format-mark-disks", true},
		{"drivers[0].formatMark.secretName=marks", "marks", false},
		{"drivers[0].formatMark.create=false,drivers[0].formatMark.secretName=marks", "marks", false},
		{"drivers[0].formatMark.create=false", "", false},
	}
	for _, c := range cases {
		all := rendered(t, openstack, "--set", c.settings)
		var jobs []string
		for _, one := range all {
			if one.text("kind") == "Job" {
				container := one.at("spec", "template", "spec").list("containers")[0]
				jobs = append(jobs, argument(container, "--secret")+" "+argument(container, "--key"))
			}
			if one.text("kind") == "Deployment" && c.settings != cases[1].settings {
				if found := keySecret(t, openstack, "--set", c.settings); found != c.secret {
					t.Errorf("%s: the controller reads %q, want %q", c.settings, found, c.secret)
				}
			}
		}
		var want []string
		if c.isCreated {
			want = []string{c.secret + " keys"}
		}
		if !slices.Equal(jobs, want) {
			t.Errorf("%s: creates %q, want %q", c.settings, jobs, want)
		}
	}
}

// A Secret of the release would have another key at each rendering, and end with an uninstall.
func TestAKeyIsNoObjectOfTheRelease(t *testing.T) {
	for _, values := range valuesFiles(t) {
		for _, one := range rendered(t, values) {
			if one.text("kind") == "Secret" {
				t.Errorf("%s: %s", values, one.name())
			}
		}
	}
}

// With more, a pod could read the credentials of the cloud, or replace a key.
func TestWhatCreatesAKeyCanOnlyCreate(t *testing.T) {
	const name = "belay-format-mark-cinder"
	for _, values := range []string{openstack, mixed} {
		all := named(rendered(t, values))
		role := all["Role/"+name]
		want := []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"secrets"}, "verbs": []any{"create"}}}
		if !reflect.DeepEqual(role["rules"], want) {
			t.Errorf("%s: %v, want %v", values, role["rules"], want)
		}
		for _, one := range all {
			for _, subject := range one.list("subjects") {
				isIts := one.name() == "RoleBinding/"+name
				if (subject.text("name") == name) != isIts {
					t.Errorf("%s: %s gives rights to %s", values, one.name(), subject.text("name"))
				}
			}
		}
		for _, kind := range []string{"ServiceAccount", "Role", "RoleBinding", "Job"} {
			one := all[kind+"/"+name]
			annotations := one.at("metadata", "annotations")
			if annotations["helm.sh/hook"] != "pre-install,pre-upgrade" || annotations["helm.sh/hook-delete-policy"] != "before-hook-creation,hook-succeeded" {
				t.Errorf("%s: %s stays after the hook: %v", values, kind, annotations)
			}
			if isJob := kind == "Job"; (annotations["helm.sh/hook-weight"] == "0") != isJob {
				t.Errorf("%s: %s may come too late: %v", values, kind, annotations)
			}
			if one.text("metadata", "namespace") != "belay-system" {
				t.Errorf("%s: %s is elsewhere", values, kind)
			}
		}
	}
}

func TestThePodThatCreatesAKeyHasNothingElse(t *testing.T) {
	all := named(rendered(t, openstack))
	pod := all["Job/belay-format-mark-cinder"].at("spec", "template", "spec")
	controller := all["Deployment/belay-controller-cinder"].at("spec", "template", "spec")
	container := pod.list("containers")[0]
	if len(pod.list("containers")) != 1 || container["image"] != controller.list("containers")[0]["image"] {
		t.Errorf("not only the controller's image: %v", pod["containers"])
	}
	if pod["automountServiceAccountToken"] != false || pod["hostNetwork"] != nil || pod["enableServiceLinks"] != false {
		t.Errorf("%v", pod)
	}
	security, ofPod := container.at("securityContext"), pod.at("securityContext")
	dropped, _ := security.at("capabilities")["drop"].([]any)
	if security["allowPrivilegeEscalation"] != false || security["readOnlyRootFilesystem"] != true || !slices.Equal(dropped, []any{"ALL"}) ||
		ofPod["runAsNonRoot"] != true || ofPod.text("seccompProfile", "type") != "RuntimeDefault" {
		t.Errorf("%v, %v", security, ofPod)
	}
	if !reflect.DeepEqual(pod["tolerations"], controller["tolerations"]) {
		t.Errorf("where no node takes this pod, no controller starts: %v", pod["tolerations"])
	}
	volumes, mounts := pod.list("volumes"), container.list("volumeMounts")
	if len(volumes) != 1 || len(mounts) != 1 || mounts[0].text("mountPath") != tokens || mounts[0]["readOnly"] != true {
		t.Errorf("%v, %v", volumes, mounts)
	}
	labels := all["Job/belay-format-mark-cinder"].at("spec", "template", "metadata", "labels")
	for _, one := range all {
		selector := one.at("spec", "selector", "matchLabels")
		if one.text("kind") == "NetworkPolicy" {
			selector = one.at("spec", "podSelector", "matchLabels")
		}
		isSelected := len(selector) > 0
		for key, value := range selector {
			isSelected = isSelected && labels[key] == value
		}
		if isSelected {
			t.Errorf("%s takes the pod for of the driver", one.name())
		}
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

// The sidecars read VolumeAttributesClasses, or have neither the feature nor the right.
func TestVolumeAttributesClassesAreReadByTheSidecarsThatMay(t *testing.T) {
	for _, c := range []struct{ setting, kubernetes, read string }{
		{"true", "1.33.0", "true"},
		{"false", "1.34.0", "false"},
		{"auto", "1.34.0", "true"},
		{"auto", "1.33.9", "false"},
	} {
		setting := "drivers[0].volumeAttributesClasses=" + c.setting
		all := named(rendered(t, openstack, "--kube-version", c.kubernetes, "--set", setting))
		containers := all["Deployment/belay-controller-cinder"].at("spec", "template", "spec").list("containers")
		for _, sidecar := range []string{"provisioner", "resizer"} {
			var arguments string
			for _, container := range containers {
				if container.text("name") == "csi-"+sidecar {
					arguments = fmt.Sprint(container["args"])
				}
			}
			if !strings.Contains(arguments, "--feature-gates=VolumeAttributesClass="+c.read) {
				t.Errorf("%v: %s: %s", c, sidecar, arguments)
			}
			rules := fmt.Sprint(all["ClusterRole/belay-controller-cinder-"+sidecar].list("rules"))
			if strings.Contains(rules, "volumeattributesclasses") != (c.read == "true") {
				t.Errorf("%v: %s: %s", c, sidecar, rules)
			}
		}
	}
}

// Both programs have topology or neither, and only with it does the provisioner read the nodes' zones.
func TestTopologyIsOfBothProgramsAndOfTheProvisionersRights(t *testing.T) {
	for _, c := range []struct {
		topology string
		want     bool
	}{{"true", true}, {"false", false}} {
		all := named(rendered(t, openstack, "--set", "drivers[0].topology="+c.topology))
		for _, program := range []string{"DaemonSet/belay-node", "Deployment/belay-controller-cinder"} {
			args := fmt.Sprint(all[program].at("spec", "template", "spec").list("containers"))
			if strings.Contains(args, "--with-topology") != c.want {
				t.Errorf("topology=%s: %s: %s", c.topology, program, args)
			}
		}
		rules := fmt.Sprint(all["ClusterRole/belay-controller-cinder-provisioner"].list("rules"))
		if strings.Contains(rules, "csinodes") != c.want {
			t.Errorf("topology=%s: %s", c.topology, rules)
		}
	}
}

// Any replica may cut a snapshot, so one snapshotter of all acts.
func TestTheCloudsSnapshotsHaveAClassAndOneSnapshotterThatActs(t *testing.T) {
	classes := map[string]string{}
	for _, one := range rendered(t, mixed) {
		if one.text("kind") == "VolumeSnapshotClass" {
			classes[one.text("metadata", "name")] = one.text("driver")
		}
	}
	want := map[string]string{"belay-local": "local.csi.belay.dev", "belay-cinder": "cinder.csi.openstack.org"}
	if !maps.Equal(classes, want) {
		t.Errorf("classes of drivers: %v, want %v", classes, want)
	}
	for _, container := range cloudController(t, mixed).at("template", "spec").list("containers") {
		if container.text("name") != "csi-snapshotter" {
			continue
		}
		args := fmt.Sprint(container["args"])
		for _, flag := range []string{"--leader-election", "--extra-create-metadata"} {
			if !strings.Contains(args, flag) {
				t.Errorf("the snapshotter has no %s: %s", flag, args)
			}
		}
		return
	}
	t.Error("there is no snapshotter")
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
func TestAControllerLeavesAFailedNode(t *testing.T) {
	for _, values := range []string{openstack, chart + "/ci/local.yaml"} {
		for _, one := range rendered(t, values) {
			if one.text("kind") != "Deployment" {
				continue
			}
			found := one.at("spec", "template", "spec").list("tolerations")
			if len(found) != 1 || found[0].text("key") != "node-role.kubernetes.io/control-plane" {
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

// With several clouds, the scheduler knows by them which nodes can attach a volume of the class.
func TestAClassHasTheTopologiesOfItsValues(t *testing.T) {
	const zone = "topology.cinder.csi.openstack.org/zone"
	topologies := []any{map[string]any{"matchLabelExpressions": []any{
		map[string]any{"key": zone, "values": []any{"az-a", "az-b"}},
		map[string]any{"key": "topology.kubernetes.io/region", "values": []any{"one"}},
	}}}
	classes := []any{map[string]any{"name": "near", "allowedTopologies": topologies}, map[string]any{"name": "anywhere"}}
	drivers := []any{map[string]any{"backend": "openstack", "storageClasses": classes}}
	all := named(rendered(t, valuesFile(t, map[string]any{"drivers": drivers})))
	if found := all["StorageClass/near"]["allowedTopologies"]; !reflect.DeepEqual(found, any(topologies)) {
		t.Errorf("%v, want %v", found, topologies)
	}
	if found, has := all["StorageClass/anywhere"]["allowedTopologies"]; has {
		t.Errorf("%v", found)
	}
}

// The volumes of a node share its bus with disks of others, so their limit changes. An API server
// that does not know the field refuses the object, or warns.
func TestTheKubeletReadsTheLimitOfDisksAgainWhereKubernetesCan(t *testing.T) {
	period := func(version string, more ...string) map[string]any {
		arguments := []string{"template", "belay", chart, "--namespace", "belay-system", "--values", mixed, "--kube-version", version}
		out, err := exec.Command("helm", append(arguments, more...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		found := map[string]any{}
		for _, one := range parsed(t, string(out)) {
			if one.text("kind") == "CSIDriver" {
				found[one.text("metadata", "name")] = one.at("spec")["nodeAllocatableUpdatePeriodSeconds"]
			}
		}
		return found
	}
	const local, cloud = "local.csi.belay.dev", "cinder.csi.openstack.org"
	unset := map[string]any{local: nil, cloud: nil}
	for version, want := range map[string]map[string]any{
		"1.33.9":       unset,
		"1.34.0":       {local: nil, cloud: 60.0},
		"1.36.1-eks.3": {local: nil, cloud: 60.0},
	} {
		if found := period(version); !reflect.DeepEqual(found, want) {
			t.Errorf("Kubernetes %s: %v instead of %v", version, found, want)
		}
	}
	const off = "drivers[1].csiDriver.nodeAllocatableUpdatePeriodSeconds=null"
	if found := period("1.36.0", "--set", off); !reflect.DeepEqual(found, unset) {
		t.Errorf("%s: %v", off, found)
	}
}

// An API server that does not know the field refuses the object, or warns.
func TestPodsWaitForTheAgentOnRequestWhereKubernetesCan(t *testing.T) {
	const value = "drivers[0].csiDriver.preventPodSchedulingIfMissing=true"
	for version, want := range map[string]any{"1.35.9": nil, "1.36.0": true, "1.37.1-eks.3": true} {
		all := named(rendered(t, mixed, "--kube-version", version, "--set", value))
		for name, want := range map[string]any{"local.csi.belay.dev": want, "cinder.csi.openstack.org": nil} {
			if found := all["CSIDriver/"+name].at("spec")["preventPodSchedulingIfMissing"]; found != want {
				t.Errorf("Kubernetes %s: %s: %v instead of %v", version, name, found, want)
			}
		}
	}
}

// The sidecars read the Secret with each call, and a class without one would have its volumes in another
// cloud.
func TestTheClassesNameTheSecretsOfTheirClouds(t *testing.T) {
	values := chart + "/ci/openstack-every-value.yaml"
	all := named(rendered(t, values))
	container := all["Deployment/belay-controller-cloud"].at("spec", "template", "spec").list("containers")[0]
	if names := argument(container, "--cloud-name"); names != ",region-two" {
		t.Errorf("--cloud-name=%s", names)
	}
	const secret, namespace = "openstack-config-region-two", "kube-system"
	parameters := func(calls ...string) map[string]any {
		want := map[string]any{}
		for _, call := range calls {
			want["csi.storage.k8s.io/"+call+"-secret-name"] = secret
			want["csi.storage.k8s.io/"+call+"-secret-namespace"] = namespace
		}
		return want
	}
	found := maps.Clone(all["StorageClass/fast"].at("parameters"))
	maps.DeleteFunc(found, func(key string, _ any) bool { return !strings.Contains(key, "-secret-") })
	if want := object(parameters("provisioner", "controller-publish", "controller-expand")); !reflect.DeepEqual(found, want) {
		t.Errorf("%v, want %v", found, want)
	}
	want := object(parameters("snapshotter", "snapshotter-list"))
	if found := all["VolumeSnapshotClass/cloud-keep"].at("parameters"); !reflect.DeepEqual(found, want) {
		t.Errorf("%v, want %v", found, want)
	}
	for key := range all["StorageClass/copies"].at("parameters") {
		if strings.Contains(key, "secret") {
			t.Errorf("copies is in [Global], and has %s", key)
		}
	}
	role := all["Role/belay-controller-cloud-cloud-1"]
	rules := []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"secrets"}, "resourceNames": []any{secret}, "verbs": []any{"get"}}}
	if !reflect.DeepEqual(role["rules"], rules) || role.text("metadata", "namespace") != namespace {
		t.Errorf("%v", role)
	}
	if all["Role/belay-controller-cloud-cloud-0"] != nil {
		t.Error("[Global] has no Secret")
	}
}
