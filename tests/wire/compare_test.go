package wire

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Each change breaks a copy of our definition at one point; the comparison must name it.
// Without this, a comparer that sees nothing would pass for proof of equality.
func TestWireEqualNoticesEveryKindOfChange(t *testing.T) {
	for _, change := range []struct {
		name  string
		apply func(*broken)
		begin string
	}{
		{
			"a field with another number",
			func(b *broken) { b.field("Volume", "volume_id").Number = proto.Int32(9) },
			"differs: field csi.v1.Volume.volume_id: official (2 ",
		},
		{
			"a field of another type",
			func(b *broken) {
				b.field("Volume", "capacity_bytes").Type =
					descriptorpb.FieldDescriptorProto_TYPE_UINT64.Enum()
			},
			"differs: field csi.v1.Volume.capacity_bytes: official (1 optional int64 ",
		},
		{
			"a field that became a list",
			func(b *broken) {
				b.field("Volume", "content_source").Label =
					descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
			},
			"differs: field csi.v1.Volume.content_source: ",
		},
		{
			"a field with another JSON name",
			func(b *broken) { b.field("Volume", "volume_id").JsonName = proto.String("id") },
			"differs: field csi.v1.Volume.volume_id: ",
		},
		{
			"a field outside its oneof",
			func(b *broken) { b.field("VolumeContentSource", "volume").OneofIndex = nil },
			"differs: field csi.v1.VolumeContentSource.volume: ",
		},
		{
			"a secret without its marker",
			func(b *broken) { b.field("DeleteVolumeRequest", "secrets").Options = nil },
			"differs: field csi.v1.DeleteVolumeRequest.secrets: ",
		},
		{
			"a field too many",
			func(b *broken) {
				empty := b.message("ProbeRequest")
				empty.Field = append(empty.Field, b.field("Volume", "volume_id"))
			},
			"added: field csi.v1.ProbeRequest.volume_id: ",
		},
		{
			"a field too few",
			func(b *broken) { b.message("Topology").Field = nil },
			"missing: field csi.v1.Topology.segments: ",
		},
		{
			"an alpha message without its marker",
			func(b *broken) { b.message("VolumeHealth").Options = nil },
			"differs: message csi.v1.VolumeHealth: ",
		},
		{
			"a message too many",
			func(b *broken) {
				extra := &descriptorpb.DescriptorProto{Name: proto.String("Extra")}
				b.file().MessageType = append(b.file().MessageType, extra)
			},
			"added: message csi.v1.Extra: ",
		},
		{
			"an enum value with another number",
			func(b *broken) { b.enum("VolumeHealthErrorType").Value[1].Number = proto.Int32(9) },
			"differs: value csi.v1.VolumeHealthErrorType.DEGRADED: official (1), ours (9)",
		},
		{
			"a method too few",
			func(b *broken) { b.service("Node").Method = b.service("Node").Method[1:] },
			"missing: method csi.v1.Node.NodeStageVolume: ",
		},
		{
			"an alpha method without its marker",
			func(b *broken) { b.method("Controller", "GetSnapshot").Options = nil },
			"differs: method csi.v1.Controller.GetSnapshot: ",
		},
		{
			"a stream that became one answer",
			func(b *broken) {
				b.method("SnapshotMetadata", "GetMetadataDelta").ServerStreaming = nil
			},
			"differs: method csi.v1.SnapshotMetadata.GetMetadataDelta: ",
		},
		{
			"a method with another answer",
			func(b *broken) {
				b.method("Identity", "Probe").OutputType = proto.String(".csi.v1.Volume")
			},
			"differs: method csi.v1.Identity.Probe: ",
		},
		{
			"a service too few",
			func(b *broken) { b.file().Service = b.file().Service[1:] },
			"missing: service csi.v1.Identity: ",
		},
		{
			"an alpha service without its marker",
			func(b *broken) { b.service("SnapshotMetadata").Options = nil },
			"differs: service csi.v1.SnapshotMetadata: ",
		},
		{
			"a marker with another number",
			func(b *broken) { b.extension("csi_secret").Number = proto.Int32(1061) },
			"differs: extension csi.v1.csi_secret: official (of google.protobuf.FieldOptions 1059 ",
		},
		{
			"a number that is reserved",
			func(b *broken) {
				b.message("Volume").ReservedRange = []*descriptorpb.DescriptorProto_ReservedRange{
					{Start: proto.Int32(90), End: proto.Int32(91)},
				}
			},
			"differs: message csi.v1.Volume: official (), ours (reserved[90..=90])",
		},
	} {
		t.Run(change.name, func(t *testing.T) {
			copied := proto.CloneOf(ourSet(t))
			change.apply(&broken{t, copied})
			facts := Describe(linked(t, copied, "csi.proto"))
			wrong, _ := Judge(Differences(Describe(officialCSI), facts), volumeCondition)
			if !slices.ContainsFunc(wrong, func(difference string) bool {
				return strings.HasPrefix(difference, change.begin)
			}) {
				t.Errorf("not noticed, only: %q", wrong)
			}
		})
	}
}

func TestWireEqualNoticesExceptionsThatAreNoLongerUsed(t *testing.T) {
	facts := Describe(officialCSI)
	wrong, unused := Judge(Differences(facts, facts), volumeCondition)
	if len(wrong) != 0 || len(unused) != len(volumeCondition) {
		t.Errorf("wrong: %q, unused: %d of %d", wrong, len(unused), len(volumeCondition))
	}
}

// broken finds the parts of csi.proto within a descriptor set, to be changed in place.
type broken struct {
	t   *testing.T
	set *descriptorpb.FileDescriptorSet
}

func (b *broken) file() *descriptorpb.FileDescriptorProto {
	return named(b.t, b.set.File, "csi.proto")
}

func (b *broken) message(name string) *descriptorpb.DescriptorProto {
	return named(b.t, b.file().MessageType, name)
}

func (b *broken) field(message, name string) *descriptorpb.FieldDescriptorProto {
	return named(b.t, b.message(message).Field, name)
}

func (b *broken) enum(name string) *descriptorpb.EnumDescriptorProto {
	return named(b.t, b.file().EnumType, name)
}

func (b *broken) service(name string) *descriptorpb.ServiceDescriptorProto {
	return named(b.t, b.file().Service, name)
}

func (b *broken) method(service, name string) *descriptorpb.MethodDescriptorProto {
	return named(b.t, b.service(service).Method, name)
}

func (b *broken) extension(name string) *descriptorpb.FieldDescriptorProto {
	return named(b.t, b.file().Extension, name)
}

func named[D interface{ GetName() string }](t *testing.T, list []D, name string) D {
	t.Helper()
	for _, entry := range list {
		if entry.GetName() == name {
			return entry
		}
	}
	t.Fatalf("%s is not in the descriptor set", name)
	panic("unreachable")
}
