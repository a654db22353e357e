package deploy

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const (
	local = chart + "/ci/local.yaml"
	// store is the name of what carries out the orders on each node.
	store = "DaemonSet/belay-store"
	front = "Deployment/belay-controller-local"
)

func podOf(t *testing.T, all []object, name string) object {
	t.Helper()
	pod := named(all)[name].at("spec", "template", "spec")
	if len(pod) == 0 {
		t.Fatalf("no %s", name)
	}
	return pod
}

func TestWithoutValuesThereIsTheDriverLocal(t *testing.T) {
	out, err := helm("template", "belay", chart, "--namespace", "belay-system", "--set", "createNamespace=true,snapshots.enabled=true")
	if err != nil || out != template(t, local) {
		t.Errorf("without values, the chart does not make the objects of ci/local.yaml: %v\n%.500s", err, out)
	}
	kinds := map[string]int{}
	for _, one := range parsed(t, out) {
		kinds[one.text("kind")]++
	}
	for kind, want := range map[string]int{"CSIDriver": 1, "StorageClass": 1, "Deployment": 1, "DaemonSet": 2, "PodDisruptionBudget": 1, "NetworkPolicy": 3} {
		if kinds[kind] != want {
			t.Errorf("%d of the kind %s, want %d", kinds[kind], kind, want)
		}
	}
}

func TestTheChartMakesTheSameEachTime(t *testing.T) {
	if template(t, local) != template(t, local) {
		t.Error("two renderings differ")
	}
}

func TestTheControllerOfLocalHasNoNodeAndNoDirectory(t *testing.T) {
	all := rendered(t, local)
	spec, pod := named(all)[front].at("spec"), podOf(t, all, front)
	if spec["replicas"] != 2.0 || spec.text("strategy", "type") != "RollingUpdate" {
		t.Errorf("replicas %v, strategy %v", spec["replicas"], spec.at("strategy"))
	}
	if anti := pod.at("affinity", "podAntiAffinity").list("preferredDuringSchedulingIgnoredDuringExecution"); len(anti) != 1 {
		t.Errorf("replicas may share a node without need: %v", pod.at("affinity"))
	}
	// One that tolerated every taint would stay on a node that is unreachable.
	if tolerations := pod.list("tolerations"); len(tolerations) != 1 || tolerations[0].text("key") != "node-role.kubernetes.io/control-plane" {
		t.Errorf("tolerations %v", tolerations)
	}
	for _, volume := range pod.list("volumes") {
		if len(volume.at("hostPath")) > 0 {
			t.Errorf("it sees the node's %v", volume.at("hostPath"))
		}
	}
	controller := pod.list("containers")[0]
	want := []any{"--backend=local", "--driver-name=local.csi.belay.dev", "--endpoint=unix:///run/csi/csi.sock", "--endpoint-group=65532",
		"--max-volumes=0", "--nodes", "--http-endpoint=0.0.0.0:9809", "--log-level=info", "--log-format=text"}
	if !reflect.DeepEqual(controller["args"], want) {
		t.Errorf("arguments %v, want %v", controller["args"], want)
	}
	if security := controller.at("securityContext"); security["runAsNonRoot"] != true || security["runAsUser"] != 65532.0 {
		t.Errorf("it runs as %v", security)
	}
}

func TestTheSidecarsOfLocalLeaveTheNodeToTheDriver(t *testing.T) {
	for _, container := range podOf(t, rendered(t, local), front).list("containers")[1:] {
		arguments, _ := container["args"].([]any)
		isProvisioner := container.text("name") == "csi-provisioner"
		for flag, want := range map[string]bool{
			"--leader-election": true, "--strict-topology": false, "--extra-create-metadata": isProvisioner, "--enable-capacity": isProvisioner,
			"--capacity-ownerref-level=2": isProvisioner, "--kube-api-capacity-qps=20": isProvisioner, "--kube-api-capacity-burst=100": isProvisioner,
		} {
			if slices.Contains(arguments, any(flag)) != want {
				t.Errorf("%s: %s: %v in %v", container.text("name"), flag, !want, arguments)
			}
		}
	}
}

func TestTheStoreHasNothingButItsDirectoryAndItsToken(t *testing.T) {
	all := rendered(t, local, "--set", "drivers[0].disks[0].dir=/srv/belay,drivers[0].overcommit=2,controller.extraArgs={--grpc-health}")
	pod := podOf(t, all, store)
	containers := pod.list("containers")
	if len(containers) != 1 || len(pod.list("initContainers")) > 0 {
		t.Fatalf("containers %v", containers)
	}
	for _, key := range []string{"hostNetwork", "hostPID", "hostIPC"} {
		if _, ok := pod[key]; ok {
			t.Errorf("%s: %v", key, pod[key])
		}
	}
	if pod["automountServiceAccountToken"] != false || pod["serviceAccountName"] != "belay-store" || pod["enableServiceLinks"] != false ||
		pod.text("securityContext", "seccompProfile", "type") != "RuntimeDefault" {
		t.Errorf("%v", pod)
	}
	container := containers[0]
	security := object{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsUser": 0.0, "capabilities": map[string]any{"drop": []any{"ALL"}}}
	if !reflect.DeepEqual(container.at("securityContext"), security) {
		t.Errorf("%v, want %v", container.at("securityContext"), security)
	}
	mounts := map[string]string{}
	for _, mount := range container.list("volumeMounts") {
		mounts[mount.text("name")] = fmt.Sprint(mount.text("mountPath"), " ", mount["readOnly"])
	}
	if want := map[string]string{"token": tokens + " true", "disk-default": "/srv/belay <nil>"}; !maps.Equal(mounts, want) {
		t.Errorf("mounts %v, want %v", mounts, want)
	}
	want := []any{"store", "--disk=default=/srv/belay", "--overcommit=2", "--http-endpoint=0.0.0.0:9809", "--log-level=info", "--log-format=text"}
	if !reflect.DeepEqual(container["args"], want) {
		t.Errorf("arguments %v, want %v", container["args"], want)
	}
	for _, volume := range pod.list("volumes") {
		switch volume.text("name") {
		case "disk-default":
			if path := volume.at("hostPath"); path.text("path") != "/srv/belay" || path.text("type") != "DirectoryOrCreate" {
				t.Errorf("%v", path)
			}
		case "token":
			// Not 3607 s: the API server extends such a token to a year.
			if expires := volume.list("projected", "sources")[0].at("serviceAccountToken")["expirationSeconds"]; expires != 3600.0 {
				t.Errorf("its token expires after %v s", expires)
			}
		default:
			t.Errorf("volume %v", volume)
		}
	}
	probes := map[string]string{"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/healthz"}
	for probe, path := range probes {
		if found := container.text(probe, "httpGet", "path"); found != path {
			t.Errorf("%s uses %q, want %q", probe, found, path)
		}
	}
	env := container.list("env")
	if len(env) != 1 || env[0].text("name") != "BELAY_NODE_NAME" || env[0].text("valueFrom", "fieldRef", "fieldPath") != "spec.nodeName" {
		t.Errorf("variables %v", env)
	}
}

// A node has both or none: the agent mounts what the store makes.
func TestTheStoreIsWhereTheAgentIs(t *testing.T) {
	settings := []string{"--set-json", `node={"nodeSelector":{"disk":"yes"},"tolerations":[{"key":"a","operator":"Exists"}],"maxUnavailable":2,` +
		`"priorityClassName":"high","affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"b","operator":"Exists"}]}]}}}}`}
	all := rendered(t, local, settings...)
	agents, stores := podOf(t, all, "DaemonSet/belay-node"), podOf(t, all, store)
	for _, key := range []string{"nodeSelector", "affinity", "tolerations", "priorityClassName"} {
		if agents[key] == nil || !reflect.DeepEqual(agents[key], stores[key]) {
			t.Errorf("%s: of the agent %v, of the store %v", key, agents[key], stores[key])
		}
	}
	for _, name := range []string{"DaemonSet/belay-node", store} {
		update := named(all)[name].at("spec", "updateStrategy", "rollingUpdate")
		if update["maxUnavailable"] != 2.0 || update["maxSurge"] != 0.0 {
			t.Errorf("%s: %v", name, update)
		}
	}
	part := drivers(t, all)["local.csi.belay.dev"]
	arguments, _ := part["args"].([]any)
	if argument(part, "--loop-dir") != "default=/var/lib/belay/volumes" || !slices.Contains(arguments, "--with-topology") || argument(part, "--node-id") != "" {
		t.Errorf("the agent's arguments %v", arguments)
	}
}

func TestDefinitionsOfObjectsAreThereForLocalOnlyAndStay(t *testing.T) {
	files, err := filepath.Glob(chart + "/objects/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v: %v", files, err)
	}
	all := named(rendered(t, local))
	for _, file := range files {
		for _, want := range parsed(t, read(t, file)) {
			if !reflect.DeepEqual(all[want.name()], want) {
				t.Errorf("%s is not as in %s", want.name(), file)
			}
		}
	}
	definitions := 0
	for _, one := range all {
		if one.text("kind") == "CustomResourceDefinition" {
			definitions++
			if one.text("metadata", "annotations", "helm.sh/resource-policy") != "keep" {
				t.Errorf("an uninstall deletes %s", one.name())
			}
		}
	}
	if definitions != 3 {
		t.Errorf("%d definitions", definitions)
	}
	for _, values := range valuesFiles(t) {
		objects := rendered(t, values)
		isLocal := slices.ContainsFunc(sections(agent(t, objects).list("containers")[0]), func(part object) bool {
			return argument(part, "--driver-kind") == "local"
		})
		found := 0
		for _, one := range objects {
			if one.text("apiVersion") == "apiextensions.k8s.io/v1" || strings.Contains(one.name(), "belay-store") {
				found++
			}
		}
		if isLocal != (found > 0) {
			t.Errorf("%s: the driver local: %v, objects for it: %d", values, isLocal, found)
		}
	}
}

// What each may do with the objects. A store must neither create nor delete a volume.
func TestRightsToObjectsAreThoseThatTheProgramsUse(t *testing.T) {
	of := func(role string, more ...string) map[string]string {
		found := map[string]string{}
		for _, rule := range named(rendered(t, local, more...))["ClusterRole/"+role].list("rules") {
			resources, _ := rule["resources"].([]any)
			if len(resources) != 1 {
				t.Errorf("%s: a rule for %v", role, resources)
			}
			verbs := strings.Trim(fmt.Sprint(rule["verbs"]), "[]")
			found[fmt.Sprint(resources[0])] = verbs
		}
		return found
	}
	objects := map[string]string{
		"localvolumes": "get list watch create patch delete", "localsnapshots": "get list watch create patch delete",
		"localdisks": "get list watch patch delete", "nodes": "get", "persistentvolumeclaims": "get", "persistentvolumes": "list", "volumesnapshotcontents": "list",
	}
	if found := of("belay-controller-local-objects"); !maps.Equal(found, objects) {
		t.Errorf("the controller may %v, want %v", found, objects)
	}
	if found := of("belay-controller-local-objects", "--set", "snapshots.enabled=false"); !maps.Equal(found, objects) {
		t.Errorf("without snapshots, the controller may %v, want %v", found, objects)
	}
	ofStore := map[string]string{
		"localvolumes": "list watch patch", "localsnapshots": "list watch patch", "localvolumes/status": "patch", "localsnapshots/status": "patch",
		"localdisks": "get list watch create", "localdisks/status": "patch",
	}
	if found := of("belay-store"); !maps.Equal(found, ofStore) {
		t.Errorf("the store may %v, want %v", found, ofStore)
	}
	bound := map[string][]string{}
	for _, one := range rendered(t, local) {
		for _, subject := range one.list("subjects") {
			bound[subject.text("name")] = append(bound[subject.text("name")], one.text("roleRef", "name"))
		}
	}
	if !slices.Equal(bound["belay-store"], []string{"belay-store"}) {
		t.Errorf("the store has the roles %v", bound["belay-store"])
	}
	for _, role := range []string{"belay-controller-local-objects", "belay-controller-local-leader"} {
		if !slices.Contains(bound["belay-controller-local"], role) {
			t.Errorf("the controller lacks %s", role)
		}
	}
}

func TestTheStoreTalksOnlyToTheAPIServer(t *testing.T) {
	policy := named(rendered(t, local, "--set", "networkPolicy.apiServerPorts={6443}"))["NetworkPolicy/belay-store"].at("spec")
	rules := policy.list("egress")
	if len(rules) != 1 || len(rules[0].list("ports")) != 1 || rules[0].list("ports")[0]["port"] != 6443.0 || !reflect.DeepEqual(policy["policyTypes"], []any{"Ingress", "Egress"}) {
		t.Errorf("%v", policy)
	}
}

func TestTheStoresAreMonitored(t *testing.T) {
	monitor := named(rendered(t, local, "--set", "podMonitor.enabled=true"))["PodMonitor/belay-store"].at("spec")
	endpoints := monitor.list("podMetricsEndpoints")
	if monitor.text("selector", "matchLabels", "app.kubernetes.io/component") != "store" || len(endpoints) != 1 || endpoints[0].text("port") != "http" {
		t.Errorf("%v", monitor)
	}
}

// Pods mount the parent of a directory that a node may lack, so that they start without it, and see a
// filesystem that is mounted later.
func TestADiskThatANodeMayLackDoesNotKeepPodsFromStarting(t *testing.T) {
	all := rendered(t, severalDisks, "--set", "drivers[0].disks[0].create=true")
	want := map[string]map[string]string{
		store:                  {"disk-default": "/srv/belay/state <nil>", "disk-fast": "/srv/fast HostToContainer"},
		"DaemonSet/belay-node": {"disk-default": "/srv/belay/state/volumes <nil>", "disk-fast": "/srv/fast HostToContainer"},
	}
	for name, disks := range want {
		pod, mounts := podOf(t, all, name), map[string]string{}
		for _, mount := range pod.list("containers")[0].list("volumeMounts") {
			if strings.HasPrefix(mount.text("name"), "disk-") {
				mounts[mount.text("name")] = fmt.Sprint(mount.text("mountPath"), " ", mount["mountPropagation"])
				if mount["readOnly"] == true {
					t.Errorf("%s: %s is read-only", name, mount.text("name"))
				}
			}
		}
		if !maps.Equal(mounts, disks) {
			t.Errorf("%s mounts %v, want %v", name, mounts, disks)
		}
		for _, volume := range pod.list("volumes") {
			path, _, _ := strings.Cut(disks[volume.text("name")], " ")
			if path != "" && (volume.text("hostPath", "path") != path || volume.text("hostPath", "type") != "DirectoryOrCreate") {
				t.Errorf("%s: %v", name, volume)
			}
		}
	}
	arguments := argumentsOf(podOf(t, all, store).list("containers")[0], "--disk")
	if want := []string{"default=/srv/belay/state", "fast=/srv/fast/state"}; !slices.Equal(arguments, want) {
		t.Errorf("the store has the disks %q, want %q", arguments, want)
	}
}

func TestAClassNamesItsDisk(t *testing.T) {
	all := named(rendered(t, severalDisks))
	for class, want := range map[string]string{"belay-local": "", "belay-fast": "fast"} {
		if disk := all["StorageClass/"+class].text("parameters", "disk"); disk != want {
			t.Errorf("%s: disk %q, want %q", class, disk, want)
		}
	}
}

func TestTheNotesNameTheStore(t *testing.T) {
	for setting, want := range map[string][]string{
		"drivers[0].disks[0].create=true": {"files in /var/lib/belay on each node", "daemonset/belay-store deployment/belay-controller-local", "/var/lib/belay: created on each node that lacks it", "kubectl get localdisks"},
		"drivers[0].disks[0].dir=/srv/belay/state,drivers[0].disks[0].create=false,drivers[0].disks[1].name=fast,drivers[0].disks[1].dir=/srv/fast": {
			"files in /srv/belay/state, /srv/fast on each node", "/srv/fast: created on each node that lacks it"},
	} {
		out, err := exec.Command("helm", "install", "belay", chart, "--dry-run=client", "--values", local, "--set", setting).CombinedOutput()
		_, notes, _ := strings.Cut(string(out), "\nNOTES:\n")
		for _, part := range want {
			if err != nil || !strings.Contains(strings.Join(strings.Fields(notes), " "), part) {
				t.Errorf("%s: %v, no %q in the notes:\n%s", setting, err, part, notes)
			}
		}
	}
}
