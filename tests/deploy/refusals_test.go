package deploy

import (
	"strings"
	"testing"
)

// What cannot work is refused before anything is installed, and the message names the value.
func TestBadValuesAreRefusedWithTheReason(t *testing.T) {
	node := "drivers[0].nodeName=node1"
	long := "drivers[0].nodeName=" + strings.Repeat("n", 64)
	cases := []struct {
		settings []string
		says     []string
	}{
		{nil, []string{"drivers[0].nodeName is empty", "kubectl get nodes"}},
		{[]string{"drivers=null"}, []string{"drivers: 0 entries"}},
		{[]string{node, "drivers[1].nodeName=node2"}, []string{"drivers: 2 entries", "exactly one"}},
		{[]string{"drivers[0].backend=floppy"}, []string{`no backend "floppy"`, "use one of: local"}},
		{[]string{long}, []string{"nodeName", "63 characters"}},
		{[]string{node, "drivers[0].storageClasses[0].name=a", "drivers[0].storageClasses[0].default=true", "drivers[0].storageClasses[1].name=b", "drivers[0].storageClasses[1].default=true"}, []string{"2 of them are the default"}},
		{[]string{node, "drivers[0].nodname=x"}, []string{"/drivers/0", "nodname"}},
		{[]string{node, "drivers[0].stateDir=var/belay"}, []string{"/drivers/0/stateDir"}},
		{[]string{node, "drivers[0].stateDir=/"}, []string{"/drivers/0/stateDir"}},
		{[]string{node, "drivers[0].overcommit=0"}, []string{"/drivers/0/overcommit"}},
		{[]string{node, "drivers[0].csiDriver.attachRequired=false"}, []string{"attachRequired"}},
		{[]string{node, "drivers[0].csiDriver.nodeAllocatableUpdatePeriodSeconds=5"}, []string{"nodeAllocatableUpdatePeriodSeconds"}},
		{[]string{node, "drivers[0].storageClasses[0].name=A"}, []string{"/drivers/0/storageClasses/0", "name"}},
		{[]string{node, "drivers[0].storageClasses[0].name=a", "drivers[0].storageClasses[0].fsType=ntfs"}, []string{"fsType", "btrfs"}},
		{[]string{node, "logLevel=loud"}, []string{"/logLevel", "debug"}},
		{[]string{node, "httpAddress=localhost"}, []string{"/httpAddress"}},
		{[]string{node, "node.httpPort=80"}, []string{"/node/httpPort", "minimum"}},
		{[]string{node, "node.maxUnavailable=0"}, []string{"/node/maxUnavailable"}},
		{[]string{node, "sidecars.timeout=2m"}, []string{"/sidecars/timeout"}},
		{[]string{node, "sidecars.timeout=100s"}, []string{"sidecars.timeout", "100 s"}},
		{[]string{node, "snapshots.enabled=maybe"}, []string{"/snapshots/enabled"}},
		{[]string{node, "replicas=2"}, []string{"replicas"}},
	}
	for _, c := range cases {
		arguments := []string{"template", "belay", chart}
		for _, setting := range c.settings {
			arguments = append(arguments, "--set", setting)
		}
		out, err := helm(arguments...)
		if err == nil {
			t.Errorf("%v was taken", c.settings)
			continue
		}
		for _, part := range c.says {
			if !strings.Contains(out, part) {
				t.Errorf("%v: %q is not in the message:\n%s", c.settings, part, out)
			}
		}
	}
}
