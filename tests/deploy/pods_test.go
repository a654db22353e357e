package deploy

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const tokens = "/var/run/secrets/kubernetes.io/serviceaccount"

// each runs the test on the pods of the node agent's DaemonSet, or of the Deployments, of every values
// file. The tests of the store are in nodes_test.go.
func each(t *testing.T, kind string, test func(t *testing.T, all []object, pod object)) {
	t.Helper()
	for _, values := range valuesFiles(t) {
		all := rendered(t, values)
		found := 0
		for _, one := range all {
			if one.text("kind") == kind && one.name() != store {
				found++
				test(t, all, one.at("spec", "template", "spec"))
			}
		}
		if found == 0 && (kind != "Deployment" || hasController(values)) {
			t.Errorf("%s: no %s", values, kind)
		}
	}
}

func TestTheNodeAgentHoldsNoCredentials(t *testing.T) {
	each(t, "DaemonSet", func(t *testing.T, all []object, pod object) {
		if pod["automountServiceAccountToken"] != false {
			t.Error("the node agent's pod mounts a token")
		}
		for _, volume := range pod.list("volumes") {
			if len(volume.at("hostPath")) == 0 {
				t.Errorf("volume %s is not a directory of the node: it may carry credentials", volume.text("name"))
			}
		}
		account := pod.text("serviceAccountName")
		for _, one := range all {
			for _, subject := range one.list("subjects") {
				if subject.text("name") == account {
					t.Errorf("%s gives rights to the node agent", one.name())
				}
			}
		}
	})
}

func TestOneContainerIsTheWholeNodeAgent(t *testing.T) {
	each(t, "DaemonSet", func(t *testing.T, _ []object, pod object) {
		if containers := pod.list("containers"); len(containers) != 1 {
			t.Errorf("%d containers", len(containers))
		}
		// Another container ends before it starts: that of the udev rules, on request.
		for _, first := range pod.list("initContainers") {
			if first.text("name") != "udev-rules" {
				t.Error("init container", first.text("name"))
			}
		}
		if pod["hostPID"] == true || pod["hostIPC"] == true {
			t.Error("the node agent needs neither the node's processes nor its shared memory")
		}
		asks := false
		for _, part := range sections(pod.list("containers")[0]) {
			asks = asks || strings.Contains(argument(part, "--metadata-search-order"), "metadataService")
			asks = asks || slices.Contains([]string{"digitalocean", "nfs"}, argument(part, "--driver-kind"))
		}
		if onHost := pod["hostNetwork"] == true; onHost != asks {
			t.Errorf("the host's network: %v, a metadata service or mounts of servers: %v", onHost, asks)
		}
	})
}

// And the controller that writes objects.
func TestOnlyTheSidecarsSeeTheToken(t *testing.T) {
	each(t, "Deployment", func(t *testing.T, _ []object, pod object) {
		if pod["automountServiceAccountToken"] != false {
			t.Error("every container gets a token")
		}
		for _, container := range pod.list("containers") {
			needs := container.text("name") != "belay-controller" || argument(container, "--backend") == "local"
			hasToken := slices.ContainsFunc(container.list("volumeMounts"), func(mount object) bool {
				return mount.text("mountPath") == tokens
			})
			if needs != hasToken {
				t.Errorf("%s: needs the token %v, has it %v", container.text("name"), needs, hasToken)
			}
		}
	})
}

func TestNothingOfTheControllersPodHasPrivileges(t *testing.T) {
	each(t, "Deployment", func(t *testing.T, _ []object, pod object) {
		if pod.text("securityContext", "seccompProfile", "type") != "RuntimeDefault" {
			t.Error("no seccomp profile")
		}
		for _, container := range pod.list("containers") {
			security := container.at("securityContext")
			capabilities := security.at("capabilities")
			dropped, _ := capabilities["drop"].([]any)
			added, _ := capabilities["add"].([]any)
			if security["privileged"] != nil || security["allowPrivilegeEscalation"] != false ||
				security["readOnlyRootFilesystem"] != true || !slices.Equal(added, mayHave(container)) ||
				!slices.Equal(dropped, []any{"ALL"}) {
				t.Errorf("%s: %v", container.text("name"), security)
			}
			// On its servers, `nfs` works as root.
			if argument(container, "--backend") != "nfs" && security["runAsNonRoot"] != true {
				t.Errorf("%s runs as root", container.text("name"))
			}
		}
	})
}

// mayHave is the capabilities of a container: those of docs/nfs.md for one that mounts.
func mayHave(container object) []any {
	if argument(container, "--backend") == "nfs" {
		return []any{"SYS_ADMIN", "FOWNER"}
	}
	return nil
}

// A failing /healthz may have reasons that no restart mends; see docs/configuration.md.
func TestNoProbeOfHealthzEndsAProgram(t *testing.T) {
	for _, kind := range []string{"DaemonSet", "Deployment"} {
		each(t, kind, func(t *testing.T, _ []object, pod object) {
			container := pod.list("containers")[0]
			want := map[string]string{"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/healthz"}
			for probe, path := range want {
				if found := container.text(probe, "httpGet", "path"); found != path {
					t.Errorf("%s: %s uses %q, want %q", kind, probe, found, path)
				}
			}
		})
	}
}

// All programs of a driver must name the same kind, disks and limit.
func TestTheProgramsOfADriverAgree(t *testing.T) {
	for _, values := range valuesFiles(t) {
		agents, controllers := map[string]string{}, map[string]string{}
		all := rendered(t, values)
		for _, one := range all {
			pod := one.at("spec", "template", "spec")
			if len(pod) == 0 || one.text("kind") == "Job" || one.name() == store {
				continue
			}
			container := pod.list("containers")[0]
			var ids []object
			for _, variable := range container.list("env") {
				if strings.HasPrefix(variable.text("name"), "BELAY_NODE_") {
					ids = append(ids, variable)
				}
			}
			// A controller is on no particular node.
			if one.text("kind") == "Deployment" {
				if len(ids) > 0 {
					t.Errorf("%s: %s has %v", values, one.name(), ids)
				}
				disks := ""
				if argument(container, "--backend") == "local" {
					for _, disk := range argumentsOf(podOf(t, all, store).list("containers")[0], "--disk") {
						disks += disk + "/volumes "
					}
				}
				controllers[argument(container, "--driver-name")] = argument(container, "--backend") + " " + disks + argument(container, "--max-volumes")
				continue
			}
			if len(ids) != 1 || ids[0].text("name") != "BELAY_NODE_NAME" || ids[0].text("valueFrom", "fieldRef", "fieldPath") != "spec.nodeName" {
				t.Errorf("%s: %s: node id from %v", values, one.name(), ids)
			}
			for _, driver := range sections(container) {
				disks := ""
				for _, disk := range argumentsOf(driver, "--loop-dir") {
					disks += disk + " "
				}
				agents[argument(driver, "--driver-name")] = argument(driver, "--driver-kind") + " " + disks + argument(driver, "--max-volumes")
			}
		}
		if len(agents) == 0 || hasController(values) && !maps.Equal(agents, controllers) {
			t.Errorf("%s: the agent has %q, the controllers %q", values, agents, controllers)
		}
	}
}

// belayctl in a container finds its socket by this variable; the programs themselves go by flags.
func TestBelayctlFindsTheFirstDriver(t *testing.T) {
	for _, kind := range []string{"DaemonSet", "Deployment"} {
		each(t, kind, func(t *testing.T, _ []object, pod object) {
			container := pod.list("containers")[0]
			var endpoints []string
			for _, variable := range container.list("env") {
				if variable.text("name") == "CSI_ENDPOINT" {
					endpoints = append(endpoints, variable.text("value"))
				}
			}
			if want := argument(sections(container)[0], "--endpoint"); want == "" || !slices.Equal(endpoints, []string{want}) {
				t.Errorf("%s: CSI_ENDPOINT %q, want %q", kind, endpoints, want)
			}
		})
	}
}

// sections is the arguments of a node agent, one part for each driver; the first has the common ones.
func sections(container object) []object {
	var parts []object
	var part []any
	arguments, _ := container["args"].([]any)
	for _, one := range append(arguments[:len(arguments):len(arguments)], "--next-driver") {
		if one == "--next-driver" {
			parts = append(parts, object{"args": part})
			part = nil
		} else {
			part = append(part, one)
		}
	}
	return parts
}

// argument is the first value of a flag.
func argument(container object, flag string) string {
	for _, value := range argumentsOf(container, flag) {
		return value
	}
	return ""
}

// argumentsOf is the values of a flag that may be given several times.
func argumentsOf(container object, flag string) []string {
	var values []string
	arguments, _ := container["args"].([]any)
	for _, one := range arguments {
		if value, ok := strings.CutPrefix(one.(string), flag+"="); ok {
			values = append(values, value)
		}
	}
	return values
}

func TestTheFlagsOfBothProgramsAreDocumented(t *testing.T) {
	documentation := read(t, "../../docs/configuration.md")
	flag := regexp.MustCompile(`^--[a-z-]+`)
	for _, kind := range []string{"DaemonSet", "Deployment"} {
		each(t, kind, func(t *testing.T, _ []object, pod object) {
			container := pod.list("containers")[0]
			arguments := container["args"].([]any)
			for _, one := range arguments {
				name := flag.FindString(one.(string))
				if name == "" || !strings.Contains(documentation, "| `"+name+"` |") {
					t.Errorf("%s: docs/configuration.md has no flag %s", kind, one)
				}
			}
			for _, variable := range container.list("env") {
				// The page names a variable only if it is not called like its flag.
				name := variable.text("name")
				flag := "--" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "BELAY_"), "_", "-"))
				if !strings.Contains(documentation, "| `"+flag+"` |") && !strings.Contains(documentation, "`"+name+"`") {
					t.Errorf("%s: docs/configuration.md has no variable %s", kind, name)
				}
			}
		})
	}
}

func TestSnapshotsAreOnWhereTheClusterHasThem(t *testing.T) {
	api := "snapshot.storage.k8s.io/v1/VolumeSnapshotClass"
	cases := []struct {
		enabled string
		more    []string
		want    bool
	}{
		{"auto", nil, false},
		{"auto", []string{"--api-versions", api}, true},
		{"true", nil, true},
		{"false", []string{"--api-versions", api}, false},
	}
	for _, c := range cases {
		more := append(c.more, "--set", "snapshots.enabled="+c.enabled)
		all := rendered(t, chart+"/ci/local.yaml", more...)
		text := ""
		for _, one := range all {
			text += one.name() + " "
			for _, container := range one.at("spec", "template", "spec").list("containers") {
				text += container.text("name") + " "
			}
		}
		parts := []string{"VolumeSnapshotClass/belay-local", "csi-snapshotter", "ClusterRole/belay-controller-local-snapshotter"}
		for _, part := range parts {
			if strings.Contains(text, part) != c.want {
				t.Errorf("enabled %s, %v: %s: %v", c.enabled, c.more, part, !c.want)
			}
		}
	}
}

// Without csi-attacher, a CSIDriver object with `attachRequired` would have pods wait forever.
func TestOnlyCloudsHaveTheAttacher(t *testing.T) {
	for _, backend := range backends(t) {
		attaches := backend != "local" && backend != "nfs"
		text := template(t, chart+"/ci/"+backend+".yaml")
		for _, part := range []string{"attachRequired: true", "name: csi-attacher", "-attacher\n", "volumeattachments"} {
			if strings.Contains(text, part) != attaches {
				t.Errorf("%s: %q: %v", backend, part, !attaches)
			}
		}
	}
}

// A rule without `from` lets in every pod of the cluster.
func TestNoPolicyLetsEverybodyIn(t *testing.T) {
	for _, values := range valuesFiles(t) {
		for _, more := range [][]string{nil, {"--set-json", "networkPolicy.metricsFrom=[]"}} {
			policies := 0
			for _, one := range rendered(t, values, more...) {
				if one.text("kind") != "NetworkPolicy" {
					continue
				}
				policies++
				rules := one.list("spec", "ingress")
				if len(more) > 0 && len(rules) > 0 {
					t.Errorf("%s: %s admits traffic", values, one.name())
				}
				for _, rule := range rules {
					if len(rule.list("from")) == 0 || len(rule.list("ports")) == 0 {
						t.Errorf("%s: %s lets everybody in, or to every port", values, one.name())
					}
				}
			}
			// None of `nfs` has an effect: both programs use the host's network.
			if policies == 0 && !strings.Contains(values, "/ci/nfs") {
				t.Errorf("%s: no policy", values)
			}
		}
	}
}
