// Package wire compares protocol definitions. It describes each as a flat list of facts, one for
// every message, field, value and method, so that a difference is located. It must not
// know any message of CSI.
package wire

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Facts maps the name of a thing ("field csi.v1.Volume.volume_id") to all that matters of it on
// the wire. Comments, the order in the file and the file's own name do not.
type Facts map[string]string

// Describe lists the facts of one file.
func Describe(file protoreflect.FileDescriptor) Facts {
	facts := Facts{}
	facts.add("file", file.Package(), file.Syntax(), list("imports", imports(file)),
		options(file.Options()))
	facts.addMessages(file.Messages())
	facts.addEnums(file.Enums())
	facts.addExtensions(file.Extensions())
	for i := range file.Services().Len() {
		facts.addService(file.Services().Get(i))
	}
	return facts
}

// add notes a fact: the parts that are not empty, in a line.
func (facts Facts) add(kind string, name protoreflect.FullName, parts ...any) {
	var words []string
	for _, part := range parts {
		if word := fmt.Sprint(part); word != "" {
			words = append(words, word)
		}
	}
	facts[kind+" "+string(name)] = strings.Join(words, " ")
}

func (facts Facts) addMessages(messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		message := messages.Get(i)
		facts.add("message", message.FullName(), reservedFields(message),
			list("extensions", fieldRanges(message.ExtensionRanges())), options(message.Options()))
		for j := range message.Fields().Len() {
			field := message.Fields().Get(j)
			facts.add("field", field.FullName(), fieldParts(field)...)
		}
		for j := range message.Oneofs().Len() {
			oneof := message.Oneofs().Get(j)
			facts.add("oneof", oneof.FullName(), options(oneof.Options()))
		}
		facts.addMessages(message.Messages())
		facts.addEnums(message.Enums())
		facts.addExtensions(message.Extensions())
	}
}

func (facts Facts) addEnums(enums protoreflect.EnumDescriptors) {
	for i := range enums.Len() {
		enum := enums.Get(i)
		facts.add("enum", enum.FullName(), reservedValues(enum), options(enum.Options()))
		for j := range enum.Values().Len() {
			value := enum.Values().Get(j)
			// A value's own full name leaves the enum out.
			name := enum.FullName().Append(value.Name())
			facts.add("value", name, value.Number(), options(value.Options()))
		}
	}
}

func (facts Facts) addExtensions(extensions protoreflect.ExtensionDescriptors) {
	for i := range extensions.Len() {
		extension := extensions.Get(i)
		parts := append([]any{"of", extension.ContainingMessage().FullName()},
			fieldParts(extension)...)
		facts.add("extension", extension.FullName(), parts...)
	}
}

func (facts Facts) addService(service protoreflect.ServiceDescriptor) {
	facts.add("service", service.FullName(), options(service.Options()))
	for i := range service.Methods().Len() {
		method := service.Methods().Get(i)
		facts.add("method", method.FullName(),
			flag("stream", method.IsStreamingClient()), method.Input().FullName(), "returns",
			flag("stream", method.IsStreamingServer()), method.Output().FullName(),
			options(method.Options()))
	}
}

func fieldParts(field protoreflect.FieldDescriptor) []any {
	var of, in any = "", ""
	switch {
	case field.Message() != nil:
		of = field.Message().FullName()
	case field.Enum() != nil:
		of = field.Enum().FullName()
	}
	if oneof := field.ContainingOneof(); oneof != nil {
		in = "oneof=" + oneof.Name()
	}
	byDefault := ""
	if field.HasDefault() {
		byDefault = fmt.Sprintf("default=%v", field.Default())
	}
	return []any{
		field.Number(), field.Cardinality(), field.Kind(), of, "json=" + field.JSONName(), in,
		flag("presence", field.HasPresence()), flag("packed", field.IsPacked()), byDefault,
		options(field.Options()),
	}
}

// options shows every option that is set, extensions by name, and the bytes of unknown ones.
func options(message proto.Message) string {
	var set []string
	reflected := message.ProtoReflect()
	reflected.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		set = append(set, fmt.Sprintf("%s=%v", field.FullName(), value))
		return true
	})
	if unknown := reflected.GetUnknown(); len(unknown) > 0 {
		set = append(set, fmt.Sprintf("unknown=%x", []byte(unknown)))
	}
	return list("options", set)
}

func imports(file protoreflect.FileDescriptor) []string {
	var paths []string
	for i := range file.Imports().Len() {
		paths = append(paths, file.Imports().Get(i).Path())
	}
	return paths
}

func reservedFields(message protoreflect.MessageDescriptor) string {
	return list("reserved", append(fieldRanges(message.ReservedRanges()),
		names(message.ReservedNames())...))
}

func reservedValues(enum protoreflect.EnumDescriptor) string {
	found := names(enum.ReservedNames())
	for i := range enum.ReservedRanges().Len() {
		// Closed here; those of fields are half open.
		span := enum.ReservedRanges().Get(i)
		found = append(found, fmt.Sprintf("%d..=%d", span[0], span[1]))
	}
	return list("reserved", found)
}

func fieldRanges(ranges protoreflect.FieldRanges) []string {
	var found []string
	for i := range ranges.Len() {
		span := ranges.Get(i)
		found = append(found, fmt.Sprintf("%d..=%d", span[0], span[1]-1))
	}
	return found
}

func names(reserved protoreflect.Names) []string {
	var found []string
	for i := range reserved.Len() {
		found = append(found, string(reserved.Get(i)))
	}
	return found
}

// list is "label[a b]" in sorted order, or nothing.
func list(label string, entries []string) string {
	if len(entries) == 0 {
		return ""
	}
	return label + "[" + strings.Join(slices.Sorted(slices.Values(entries)), " ") + "]"
}

// flag is the word itself, or nothing.
func flag(word string, set bool) string {
	if set {
		return word
	}
	return ""
}
