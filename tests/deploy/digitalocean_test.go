package deploy

import (
	"slices"
	"strings"
	"testing"
)

const digitalocean = chart + "/ci/digitalocean.yaml"

// Nodes need no token: they read their ID from the metadata service.
func TestTheTokenOfDigitalOceanIsInTheControllersContainerAlone(t *testing.T) {
	var mounted []string
	for _, one := range rendered(t, digitalocean) {
		kind := one.text("kind")
		if kind != "Deployment" && kind != "DaemonSet" {
			continue
		}
		pod := one.at("spec", "template", "spec")
		for _, container := range pod.list("containers") {
			for _, mount := range container.list("volumeMounts") {
				if mount.text("name") == "api-token" {
					mounted = append(mounted, container.text("name")+" "+mount.text("mountPath"))
				}
			}
			for _, argument := range container["args"].([]any) {
				if strings.HasPrefix(argument.(string), "--token=") {
					t.Errorf("%s: a token in an argument", container.text("name"))
				}
			}
		}
	}
	if want := []string{"belay-controller /etc/api-token"}; !slices.Equal(mounted, want) {
		t.Errorf("%q, want %q", mounted, want)
	}
}

// PersistentVolumeClaims of csi-digitalocean name these classes.
func TestTheClassesAreThoseOfCsiDigitalocean(t *testing.T) {
	all := named(rendered(t, digitalocean))
	for name, want := range map[string]string{
		"do-block-storage":            "ext4 Delete Immediate true",
		"do-block-storage-retain":     "ext4 Retain Immediate <nil>",
		"do-block-storage-xfs":        "xfs Delete Immediate <nil>",
		"do-block-storage-xfs-retain": "xfs Retain Immediate <nil>",
	} {
		class := all["StorageClass/"+name]
		if class == nil {
			t.Errorf("no class %s", name)
			continue
		}
		isDefault := "<nil>"
		if annotations := class.at("metadata")["annotations"]; annotations != nil {
			isDefault = annotations.(map[string]any)["storageclass.kubernetes.io/is-default-class"].(string)
		}
		found := strings.Join([]string{
			class.text("parameters", "csi.storage.k8s.io/fstype"), class.text("reclaimPolicy"),
			class.text("volumeBindingMode"), isDefault,
		}, " ")
		if found != want || class["allowVolumeExpansion"] != true {
			t.Errorf("%s: %s, want %s", name, found, want)
		}
	}
	if all["VolumeSnapshotClass/do-block-storage"] == nil {
		t.Error("no class of snapshots")
	}
}

// The controller always reports topology, for which external-provisioner lists the nodes.
func TestTheProvisionerOfDigitalOceanMayListNodes(t *testing.T) {
	for _, one := range rendered(t, digitalocean) {
		if one.text("kind") != "ClusterRole" {
			continue
		}
		for _, rule := range one.list("rules") {
			if slices.Contains(rule["resources"].([]any), any("nodes")) {
				return
			}
		}
	}
	t.Error("no rule for nodes")
}
