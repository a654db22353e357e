package wire

import (
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

var (
	officialCSI          = csi.File_csi_proto
	officialRegistration = new(registration.PluginInfo).ProtoReflect().Descriptor().ParentFile()
)

func TestWireEqualCSI(t *testing.T) {
	differences := Differences(Describe(officialCSI), Describe(ourFile(t, "csi.proto")))
	wrong, unused := Judge(differences, volumeCondition)
	for _, difference := range wrong {
		t.Error(difference)
	}
	for _, exception := range unused {
		t.Errorf("exception without a difference, remove it: %s", exception)
	}
}

func TestWireEqualPluginRegistration(t *testing.T) {
	ours := Describe(ourFile(t, "pluginregistration.proto"))
	for _, difference := range Differences(Describe(officialRegistration), ours) {
		t.Error(difference)
	}
}

func ourFile(t *testing.T, name string) protoreflect.FileDescriptor {
	t.Helper()
	return linked(t, ourSet(t), name)
}

// ourSet reads Belay's descriptor set: from the file that BELAY_DESCRIPTOR_SET names, else from
// the example program of belay-proto.
func ourSet(t *testing.T) *descriptorpb.FileDescriptorSet {
	t.Helper()
	encoded, err := encodedSet()
	if err != nil {
		t.Fatalf("no descriptor set (BELAY_DESCRIPTOR_SET may name a file with one): %v", err)
	}
	set := new(descriptorpb.FileDescriptorSet)
	if err := proto.Unmarshal(encoded, set); err != nil {
		t.Fatalf("decode the descriptor set: %v", err)
	}
	return set
}

var encodedSet = sync.OnceValues(func() ([]byte, error) {
	if path := os.Getenv("BELAY_DESCRIPTOR_SET"); path != "" {
		return os.ReadFile(path)
	}
	cargo := exec.Command("cargo", "run", "-q", "-p", "belay-proto", "--example", "descriptor-set")
	cargo.Dir = "../.."
	cargo.Stderr = os.Stderr
	return cargo.Output()
})

// linked resolves the names within the set, and gives the file of that name.
func linked(
	t *testing.T, set *descriptorpb.FileDescriptorSet, name string,
) protoreflect.FileDescriptor {
	t.Helper()
	files, err := protodesc.NewFiles(set)
	if err != nil {
		t.Fatalf("link the descriptor set: %v", err)
	}
	file, err := files.FindFileByPath(name)
	if err != nil {
		t.Fatalf("find %s in the descriptor set: %v", name, err)
	}
	return file
}
