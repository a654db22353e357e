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
	allNodes = chart + "/ci/local-all-nodes.yaml"
	// store is the name of what carries out the orders on each node.
	store = "DaemonSet/belay-store"
	front = "Deployment/belay-controller-local"
)

// ofAllNodes is whether a container is the controller of the volumes of all nodes.
func ofAllNodes(container object) bool {
	arguments, _ := container["args"].([]any)
	return slices.Contains(arguments, "--nodes")
}

func podOf(t *testing.T, all []object, name string) object {
	t.Helper()
	pod := named(all)[name].at("spec", "template", "spec")
	if len(pod) == 0 {
		t.Fatalf("no %s", name)
	}
	return pod
}

func TestWithoutValuesOneDriverServesAllNodes(t *testing.T) {
	out, err := helm("template", "belay", chart, "--namespace", "belay-system", "--set", "createNamespace=true,snapshots.enabled=true")
	if err != nil || out != template(t, allNodes) {
		t.Errorf("without values, the chart does not make the objects of ci/local-all-nodes.yaml: %v\n%.500s", err, out)
	}
	// No name of a node can be in them, so that there are as many objects for any number of nodes.
	for _, one := range parsed(t, out) {
		if pod := one.at("spec", "template", "spec"); len(nodesOf(pod)) > 0 {
			t.Errorf("%s is for the nodes %v", one.name(), nodesOf(pod))
		}
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
	if template(t, allNodes) != template(t, allNodes) {
		t.Error("two renderings differ")
	}
}

func TestTheControllerOfAllNodesHasNoNodeAndNoDirectory(t *testing.T) {
	all := rendered(t, allNodes)
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

func TestTheSidecarsOfAllNodesLeaveTheNodeToTheDriver(t *testing.T) {
	for _, container := range podOf(t, rendered(t, allNodes), front).list("containers")[1:] {
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
	all := rendered(t, allNodes, "--set", "drivers[0].stateDir=/srv/belay,drivers[0].overcommit=2,controller.extraArgs={--grpc-health}")
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
	if want := map[string]string{"token": tokens + " true", "state": "/srv/belay <nil>"}; !maps.Equal(mounts, want) {
		t.Errorf("mounts %v, want %v", mounts, want)
	}
	want := []any{"store", "--disk=default=/srv/belay", "--overcommit=2", "--http-endpoint=0.0.0.0:9809", "--log-level=info", "--log-format=text"}
	if !reflect.DeepEqual(container["args"], want) {
		t.Errorf("arguments %v, want %v", container["args"], want)
	}
	for _, volume := range pod.list("volumes") {
		switch volume.text("name") {
		case "state":
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
	all := rendered(t, allNodes, settings...)
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
	if argument(part, "--loop-dir") != "/var/lib/belay/volumes" || !slices.Contains(arguments, "--with-topology") ||
		argument(part, "--node-id") != "" || argument(part, "--only-on-node") != "" {
		t.Errorf("the agent's arguments %v", arguments)
	}
}

func TestDefinitionsOfObjectsAreThereForAllNodesOnlyAndStay(t *testing.T) {
	files, err := filepath.Glob(chart + "/objects/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v: %v", files, err)
	}
	all := named(rendered(t, allNodes))
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
		if values == allNodes {
			continue
		}
		for _, one := range rendered(t, values) {
			if one.text("apiVersion") == "apiextensions.k8s.io/v1" || strings.Contains(one.name(), "belay-store") {
				t.Errorf("%s: there is %s", values, one.name())
			}
		}
	}
}

// What each may do with the objects. A store must neither create nor delete a volume.
func TestRightsToObjectsAreThoseThatTheProgramsUse(t *testing.T) {
	of := func(role string, more ...string) map[string]string {
		found := map[string]string{}
		for _, rule := range named(rendered(t, allNodes, more...))["ClusterRole/"+role].list("rules") {
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
	for _, one := range rendered(t, allNodes) {
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
	policy := named(rendered(t, allNodes, "--set", "networkPolicy.apiServerPorts={6443}"))["NetworkPolicy/belay-store"].at("spec")
	rules := policy.list("egress")
	if len(rules) != 1 || len(rules[0].list("ports")) != 1 || rules[0].list("ports")[0]["port"] != 6443.0 || !reflect.DeepEqual(policy["policyTypes"], []any{"Ingress", "Egress"}) {
		t.Errorf("%v", policy)
	}
}

func TestTheStoresAreMonitored(t *testing.T) {
	monitor := named(rendered(t, allNodes, "--set", "podMonitor.enabled=true"))["PodMonitor/belay-store"].at("spec")
	endpoints := monitor.list("podMetricsEndpoints")
	if monitor.text("selector", "matchLabels", "app.kubernetes.io/component") != "store" || len(endpoints) != 1 || endpoints[0].text("port") != "http" {
		t.Errorf("%v", monitor)
	}
}

// With an entry of one node in addition, the agent still starts each driver only where it belongs.
func TestAnEntryOfOneNodeMayBeNextToThatOfAllNodes(t *testing.T) {
	all := rendered(t, allNodes, second("node2", "/srv/fast")...)
	bound := map[string]string{}
	for name, part := range drivers(t, all) {
		bound[name] = argument(part, "--only-on-node")
	}
	if want := map[string]string{"local.csi.belay.dev": "", "fast.csi.belay.dev": "node2"}; !maps.Equal(bound, want) {
		t.Errorf("%v, want %v", bound, want)
	}
	if found := nodesOf(agent(t, all)); len(found) > 0 {
		t.Errorf("the agent runs only on %v", found)
	}
	if found := nodesOf(podOf(t, all, "Deployment/belay-controller-fast")); !slices.Equal(found, []string{"node2"}) {
		t.Errorf("the controller of node2 runs on %v", found)
	}
}

func TestTheNotesNameTheStore(t *testing.T) {
	for setting, want := range map[string][]string{
		"drivers[0].createStateDir=true":  {"files in /var/lib/belay on each node", "daemonset/belay-store deployment/belay-controller-local", "created on each node that lacks it"},
		"drivers[0].createStateDir=false": {"files in /var/lib/belay on each node", "must exist on each node"},
	} {
		out, err := exec.Command("helm", "install", "belay", chart, "--dry-run=client", "--values", allNodes, "--set", setting).CombinedOutput()
		_, notes, _ := strings.Cut(string(out), "\nNOTES:\n")
		for _, part := range want {
			if err != nil || !strings.Contains(strings.Join(strings.Fields(notes), " "), part) {
				t.Errorf("%s: %v, no %q in the notes:\n%s", setting, err, part, notes)
			}
		}
	}
}
