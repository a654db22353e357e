package deploy

import (
	"strings"
	"testing"
)

// Helm would print the regular expression, so templates/_forms.tpl has the forms, with words. A key of an
// annotation or label is not a value's.
func TestNoFormOfAValueIsARegularExpressionToTheUser(t *testing.T) {
	if strings.Contains(read(t, chart+"/values.schema.json"), `"pattern":`) {
		t.Error("values.schema.json has a pattern: move it to templates/_forms.tpl")
	}
	rendered(t, chart+"/ci/local.yaml", "--set", "node.podLabels.digest=none,controller.podAnnotations.secretName=A")
}

// What cannot work is refused before anything is installed, and the message names the value.
func TestBadValuesAreRefusedWithTheReason(t *testing.T) {
	const node = "drivers[0].backend=local"
	// Two disks, complete but for the error of a case.
	withDisks := func(settings ...string) []string {
		return append([]string{node, "drivers[0].disks[0].name=default", "drivers[0].disks[1].name=fast", "drivers[0].disks[1].dir=/srv/fast/state"}, settings...)
	}
	// Two entries, complete but for the error of a case.
	withSecond := func(settings ...string) []string {
		return append([]string{node, "drivers[1].backend=openstack"}, settings...)
	}
	cloud := func(settings ...string) []string {
		return append([]string{"drivers[0].backend=openstack"}, settings...)
	}
	cases := []struct {
		settings []string
		says     []string
	}{
		{[]string{"drivers=null"}, []string{"drivers: there is no entry", "--set 'drivers[0].backend=local'"}},
		{withSecond("drivers[1].backend=local", "drivers[1].name=fast.csi.belay.dev"), []string{`drivers[0].backend and drivers[1].backend are both "local"`, "there can be only one entry", "several disks"}},
		{withSecond("drivers[1].name=local.csi.belay.dev"), []string{`drivers[0].name and drivers[1].name are both "local.csi.belay.dev"`, "give each its own"}},
		{withSecond("drivers[1].name=local.example.org"), []string{`drivers[0].shortName and drivers[1].shortName are both "local"`, "set one for each"}},
		{withSecond("drivers[1].storageClasses[0].name=belay-local"), []string{`drivers[0].storageClasses[0].name and drivers[1].storageClasses[0].name are both "belay-local"`, "its own name"}},
		{withSecond("drivers[1].storageClasses[0].fsType=xfs", "drivers[1].storageClasses[1].fsType=ext4"), []string{`drivers[1].storageClasses[0].name and drivers[1].storageClasses[1].name are both "belay-cinder"`}},
		{withSecond("drivers[1].snapshotClass.name=belay-local"), []string{`drivers[0].snapshotClass.name and drivers[1].snapshotClass.name are both "belay-local"`, "give each its own"}},
		{withSecond("drivers[0].storageClasses[0].default=true", "drivers[1].storageClasses[0].default=true"), []string{"drivers[0].storageClasses[0].default and drivers[1].storageClasses[0].default are both", "leave it with one"}},
		{[]string{node, "drivers[0].disks=null"}, []string{"/drivers/0/disks", "array"}},
		{[]string{"drivers[0].nodeName=node1"}, []string{"/drivers/0", "nodeName"}},
		{withDisks("drivers[0].disks[1].name=default"), []string{`drivers[0].disks[0].name and drivers[0].disks[1].name are both "default"`, "give each its own"}},
		{withDisks("drivers[0].disks[1].dir=/var/lib/belay"), []string{`drivers[0].disks[0].dir and drivers[0].disks[1].dir are both "/var/lib/belay"`, "its own directory"}},
		{withDisks("drivers[0].disks[1].dir=/var/lib/belay/fast"), []string{`drivers[0].disks[1].dir "/var/lib/belay/fast" is within drivers[0].disks[0].dir "/var/lib/belay"`, "choose separate directories"}},
		{withDisks("drivers[0].disks[0].dir=/srv/fast/state/slow"), []string{`drivers[0].disks[0].dir "/srv/fast/state/slow" is within drivers[0].disks[1].dir "/srv/fast/state"`}},
		{withDisks("drivers[0].disks[0].dir=/srv/fast/slow", "drivers[0].disks[1].create=false"), []string{`drivers[0].disks[0].dir "/srv/fast/slow" and drivers[0].disks[1].dir "/srv/fast/state"`, "here /srv/fast", "separate parents"}},
		{withDisks("drivers[0].disks[1].dir=/fast", "drivers[0].disks[1].create=false"), []string{`drivers[0].disks[1].dir "/fast"`, "its parent, which must not be /"}},
		{[]string{"drivers[0].disks[0].create=false"}, []string{`drivers[0].disks[0].dir "/var/lib/belay"`, "would mount /var/lib, which contains kubeletDir /var/lib/kubelet", "such as /srv/belay/state"}},
		{withDisks("drivers[0].disks[1].name=Fast"), []string{`drivers[0].disks[1].name "Fast": use lowercase letters`}},
		{withDisks("drivers[0].disks[1].name=" + strings.Repeat("n", 59)), []string{"/drivers/0/disks/1/name", "maxLength"}},
		{withDisks("drivers[0].storageClasses[0].disk=slow"), []string{`drivers[0].storageClasses[0].disk: there is no disk "slow"`, "use one of: default, fast"}},
		{withDisks("drivers[0].disks[0].name=slow"), []string{`drivers[0].storageClasses[0].disk: there is no disk "default"`, "use one of: slow, fast"}},
		{[]string{node, "drivers[0].name=" + strings.Repeat("n", 64)}, []string{"/drivers/0/name", "maxLength"}},
		{[]string{node, "kubeletDir=/var/lib/k0s/kubelet", "drivers[0].name=" + strings.Repeat("n", 63)}, []string{"drivers[0].name", "3 characters too long", "/var/lib/k0s/kubelet/plugins_registry/nnn", "107"}},
		{[]string{"drivers[0].backend=floppy"}, []string{`no backend "floppy"`, "use one of: civo, digitalocean, local, nfs, openstack"}},
		{[]string{"drivers[0].backend=digitalocean"}, []string{"drivers[0].region is empty", "--set 'drivers[0].region=SLUG'"}},
		{cloud("drivers[0].disks[0].dir=/srv"), []string{"drivers[0].disks: backend openstack has no such value"}},
		{cloud("drivers[0].overcommit=2"), []string{"drivers[0].overcommit: backend openstack has no such value"}},
		{[]string{node, "drivers[0].replicas=2"}, []string{"drivers[0].replicas: backend local has no such value"}},
		{cloud("drivers[0].storageClasses[0].allowedTopologies[0].key=zone"), []string{"/drivers/0/storageClasses/0/allowedTopologies/0", "matchLabelExpressions"}},
		{cloud("drivers[0].storageClasses[0].allowedTopologies[0].matchLabelExpressions[0].key=zone"), []string{"/allowedTopologies/0/matchLabelExpressions/0", "values"}},
		{[]string{"drivers[0].backend=nfs", "drivers[0].storageClasses[0].allowedTopologies[0].matchLabelExpressions[0].key=a", "drivers[0].storageClasses[0].allowedTopologies[0].matchLabelExpressions[0].values[0]=b"}, []string{"drivers[0].storageClasses[0].allowedTopologies: backend nfs has no such value"}},
		{[]string{node, "drivers[0].storageClasses[0].type=ssd"}, []string{"drivers[0].storageClasses[0].type: backend local has no such value"}},
		{cloud("drivers[0].caBundle.secretName=a,drivers[0].caBundle.configMapName=b"), []string{"drivers[0].caBundle: secretName and configMapName are both set"}},
		{cloud("drivers[0].csiDriver.storageCapacity=true"), []string{"drivers[0].csiDriver.storageCapacity", "knows only the quota of the project"}},
		{cloud("podMonitor.enabled=true"), []string{"podMonitor.enabled", "127.0.0.1", "set node.httpAddress to 0.0.0.0", "port 29808"}},
		{cloud("drivers[0].metadata.searchOrder=configdrive"), []string{"/drivers/0/metadata/searchOrder", "configDrive"}},
		{cloud("drivers[0].metadata.address=metadata:80"), []string{`drivers[0].metadata.address "metadata:80": use an IPv4 address`}},
		{cloud("drivers[0].replicas=0"), []string{"/drivers/0/replicas", "minimum"}},
		{cloud("drivers[0].egress.cidrs[0]=10.0.0.1"), []string{`drivers[0].egress.cidrs[0] "10.0.0.1": use a network`}},
		{[]string{node, "drivers[0].storageClasses[0].name=a", "drivers[0].storageClasses[0].default=true", "drivers[0].storageClasses[1].name=b", "drivers[0].storageClasses[1].default=true"}, []string{"drivers[0].storageClasses[0].default and drivers[0].storageClasses[1].default are both", "leave it with one"}},
		{[]string{node, "drivers[0].nodname=x"}, []string{"/drivers/0", "nodname"}},
		{[]string{node, "drivers[0].disks[0].dir=var/belay"}, []string{`drivers[0].disks[0].dir "var/belay": use an absolute path`}},
		{[]string{node, "drivers[0].disks[0].dir=/"}, []string{`drivers[0].disks[0].dir "/": use`}},
		{[]string{node, "drivers[0].disks[0].name=a,drivers[0].disks[0].dir="}, []string{"/drivers/0/disks/0/dir", "minLength"}},
		{[]string{node, "drivers[0].disks[0].dir="}, []string{"/drivers/0/disks", "minItems"}},
		{[]string{node, "drivers[0].overcommit=0"}, []string{"/drivers/0/overcommit"}},
		{[]string{node, "drivers[0].csiDriver.attachRequired=true"}, []string{"drivers[0].csiDriver.attachRequired: with backend local it is false"}},
		{[]string{node, "drivers[0].csiDriver.nodeAllocatableUpdatePeriodSeconds=5"}, []string{"nodeAllocatableUpdatePeriodSeconds"}},
		{[]string{node, "drivers[0].storageClasses[0].name=A"}, []string{`drivers[0].storageClasses[0].name "A": use lowercase letters`}},
		{[]string{node, "drivers[0].storageClasses[0].name=a", "drivers[0].storageClasses[0].fsType=ntfs"}, []string{"fsType", "btrfs"}},
		{[]string{node, "logLevel=loud"}, []string{"/logLevel", "debug"}},
		{[]string{node, "logFormat=xml"}, []string{"/logFormat", "json"}},
		{[]string{node, "httpAddress=localhost"}, []string{`httpAddress "localhost": use an IPv4 address`}},
		{[]string{node, "node.httpPort=80"}, []string{"/node/httpPort", "minimum"}},
		{[]string{node, "node.maxUnavailable=0"}, []string{"/node/maxUnavailable"}},
		{[]string{node, "sidecars.timeout=2m"}, []string{"sidecars.timeout 2m", "set 120s or more"}},
		{[]string{node, "podMonitor.interval=1m"}, []string{`podMonitor.interval "1m": use a number of seconds`}},
		{[]string{node, "node.resources.limits.memory=64MB"}, []string{`node.resources.limits.memory "64MB": use a quantity`}},
		{[]string{node, "node.encryption.enabled=true", "node.resources.limits.memory=256M"}, []string{`node.resources.limits.memory "256M": node.encryption.enabled adds 64Mi`, "whole number of Mi or Gi"}},
		{[]string{node, "node.encryption.enabled=true", "node.resources.limits.memory=1.5Gi"}, []string{`node.resources.limits.memory "1.5Gi"`, "whole number of Mi or Gi"}},
		{[]string{node, "node.encryption.enabled=yes"}, []string{"/node/encryption/enabled", "boolean"}},
		{[]string{node, "node.udevRules.install=yes"}, []string{"/node/udevRules/install", "boolean"}},
		{[]string{node, "images.pullSecrets[0].name=A"}, []string{`images.pullSecrets[0].name "A": use lowercase letters`}},
		{[]string{node, "controller.priorityClassName=A"}, []string{`controller.priorityClassName "A": use lowercase letters`}},
		{[]string{node, "sidecars.timeout=100s"}, []string{"sidecars.timeout", "100 s"}},
		{[]string{node, "snapshots.enabled=maybe"}, []string{"/snapshots/enabled"}},
		{[]string{node, "replicas=2"}, []string{"replicas"}},
		{[]string{node, "images.node.repositry=x"}, []string{"/images/node", "repositry"}},
		{[]string{node, "images.node=a b"}, []string{`images.node "a b": use the reference of an image`}},
		{[]string{node, "images.attacher.tag="}, []string{"/images/attacher/tag"}},
		{[]string{node, "images.resizer="}, []string{"/images/resizer"}},
		{[]string{node, "images.node.digest=sha256:abc"}, []string{`images.node.digest "sha256:abc": use sha256: and`}},
		{[]string{node, "images.pullSecrets[0].nam=x"}, []string{"/images/pullSecrets/0", "nam"}},
		{[]string{node, "global.imageRegistri=x"}, []string{"global.imageRegistri: no such value", "imageRegistry"}},
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
