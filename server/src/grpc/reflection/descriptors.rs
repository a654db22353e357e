//! Finds symbols in the encoded descriptors in the binary. Decoded, they would take most of a MiB,
//! for tools that are rarely used.
//!
//! The field numbers are those of `google/protobuf/descriptor.proto`.

use tonic_reflection::pb::{v1, v1alpha};

/// Encoded `FileDescriptorSet`s of all that may be served.
const SETS: [&[u8]; 4] = [
    belay_proto::FILE_DESCRIPTOR_SET,
    tonic_health::pb::FILE_DESCRIPTOR_SET,
    v1::FILE_DESCRIPTOR_SET,
    v1alpha::FILE_DESCRIPTOR_SET,
];

/// `FileDescriptorSet.file`.
const FILE: usize = 1;
/// `name` of all descriptors.
const NAME: usize = 1;
/// Of `FileDescriptorProto`.
const PACKAGE: usize = 2;
/// Of `FileDescriptorProto`; its elements are `FieldDescriptorProto`s.
const EXTENSION: usize = 7;
/// Of `FieldDescriptorProto`.
const EXTENDEE: usize = 2;
/// Of `FieldDescriptorProto`.
const NUMBER: usize = 3;

/// The encoded `FileDescriptorProto` of that name.
pub(super) fn file_named(name: &str) -> Option<&'static [u8]> {
    files().find(|file| text(file, NAME) == name)
}

/// The file that describes this full name: a service, method, message, field or enum.
pub(super) fn file_with(symbol: &str) -> Option<&'static [u8]> {
    files().find(|file| {
        let rest = symbol.strip_prefix(text(file, PACKAGE));
        let rest = rest.and_then(|rest| rest.strip_prefix('.'));
        rest.is_some_and(|rest| Kind::File.describes(file, rest))
    })
}

/// The file that extends this message by a field with this number.
pub(super) fn file_extending(message: &str, number: i32) -> Option<&'static [u8]> {
    let mut all = extensions();
    all.find(|it| it.extends(message) && it.number == number)
        .map(|it| it.file)
}

/// A field that a file adds to a message of another file.
pub(super) struct Extension {
    file: &'static [u8],
    /// The full name of the message, with a leading dot.
    extendee: &'static str,
    pub(super) number: i32,
}

impl Extension {
    /// Whether it extends the message with this full name.
    pub(super) fn extends(&self, message: &str) -> bool {
        self.extendee.strip_prefix('.') == Some(message)
    }
}

/// Every extension.
pub(super) fn extensions() -> impl Iterator<Item = Extension> {
    files().flat_map(|file| {
        parts(file, EXTENSION).map(move |field| Extension {
            file,
            extendee: text(field, EXTENDEE),
            number: number(field, NUMBER),
        })
    })
}

fn files() -> impl Iterator<Item = &'static [u8]> {
    SETS.into_iter().flat_map(|set| parts(set, FILE))
}

/// A descriptor that contains names.
#[derive(Clone, Copy)]
enum Kind {
    File,
    Message,
    Service,
    /// An enum, a field, a oneof or a method.
    Leaf,
}

impl Kind {
    /// The kind of the elements of this field, if they have names.
    fn of_part(self, field: usize) -> Option<Kind> {
        match (self, field) {
            (Kind::File, 4) | (Kind::Message, 3) => Some(Kind::Message),
            (Kind::File, 6) => Some(Kind::Service),
            (Kind::File, 5 | EXTENSION) | (Kind::Message, 2 | 4 | 6 | 8) | (Kind::Service, 2) => {
                Some(Kind::Leaf)
            }
            _ => None,
        }
    }

    /// Whether a descriptor of this name is inside.
    fn describes(self, descriptor: &'static [u8], name: &str) -> bool {
        fields(descriptor).any(|(field, value)| {
            let (Some(kind), Value::Bytes(part)) = (self.of_part(field), value) else {
                return false;
            };
            match name.strip_prefix(text(part, NAME)) {
                Some("") => true,
                Some(rest) => rest
                    .strip_prefix('.')
                    .is_some_and(|rest| kind.describes(part, rest)),
                None => false,
            }
        })
    }
}

/// A value in an encoded message; descriptors need only these wire types.
enum Value {
    Bytes(&'static [u8]),
    Number(usize),
}

/// The fields of an encoded message, each with its number. Ends at malformed bytes.
fn fields(mut left: &'static [u8]) -> impl Iterator<Item = (usize, Value)> {
    std::iter::from_fn(move || {
        let mut number = || prost::decode_length_delimiter(&mut left).ok();
        let key = number()?;
        let value = number()?;
        // The wire type: 0 is a number, 2 has a length.
        let value = match key & 7 {
            0 => Value::Number(value),
            2 => {
                let (bytes, rest) = left.split_at_checked(value)?;
                left = rest;
                Value::Bytes(bytes)
            }
            _ => return None,
        };
        Some((key >> 3, value))
    })
}

fn parts(message: &'static [u8], field: usize) -> impl Iterator<Item = &'static [u8]> {
    fields(message).filter_map(move |found| match found {
        (number, Value::Bytes(bytes)) if number == field => Some(bytes),
        _ => None,
    })
}

/// A string; empty if absent.
fn text(message: &'static [u8], field: usize) -> &'static str {
    let bytes = parts(message, field).next().unwrap_or_default();
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// A number; 0 if absent.
fn number(message: &'static [u8], field: usize) -> i32 {
    let found = fields(message).find_map(|found| match found {
        (number, Value::Number(value)) if number == field => Some(value),
        _ => None,
    });
    found.and_then(|value| value.try_into().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

    fn decoded() -> Vec<FileDescriptorProto> {
        let set = |set: &[u8]| FileDescriptorSet::decode(set).unwrap().file;
        SETS.into_iter().flat_map(set).collect()
    }

    /// The full names of all symbols, without the package.
    fn names(file: &FileDescriptorProto) -> Vec<String> {
        let mut names = Vec::new();
        for service in &file.service {
            names.push(service.name().to_owned());
            let methods = service.method.iter();
            names.extend(methods.map(|it| format!("{}.{}", service.name(), it.name())));
        }
        names.extend(file.enum_type.iter().map(|it| it.name().to_owned()));
        names.extend(file.extension.iter().map(|it| it.name().to_owned()));
        for message in &file.message_type {
            add_names(&mut names, "", message);
        }
        names
    }

    fn add_names(names: &mut Vec<String>, outer: &str, message: &DescriptorProto) {
        let own = format!("{outer}{}", message.name());
        names.extend(
            message
                .field
                .iter()
                .map(|it| format!("{own}.{}", it.name())),
        );
        names.extend(
            message
                .enum_type
                .iter()
                .map(|it| format!("{own}.{}", it.name())),
        );
        names.extend(
            message
                .oneof_decl
                .iter()
                .map(|it| format!("{own}.{}", it.name())),
        );
        for nested in &message.nested_type {
            add_names(names, &format!("{own}."), nested);
        }
        names.push(own);
    }

    #[test]
    fn every_file_is_found_by_its_name_and_by_every_name_in_it() {
        let files = decoded();
        assert_eq!(files.len(), files_and_imports().len());
        let mut asked = 0;
        for file in &files {
            let found = file_named(file.name()).unwrap();
            assert_eq!(
                FileDescriptorProto::decode(found).unwrap().name(),
                file.name()
            );
            for name in names(file) {
                let symbol = format!("{}.{name}", file.package());
                let found = file_with(&symbol).unwrap_or_else(|| panic!("{symbol}"));
                assert_eq!(text(found, NAME), file.name(), "{symbol}");
                asked += 1;
            }
        }
        assert!(asked > 500, "{asked}");
    }

    fn files_and_imports() -> Vec<&'static str> {
        files().map(|file| text(file, NAME)).collect()
    }

    #[test]
    fn a_name_that_no_file_describes_is_not_found() {
        for symbol in [
            "",
            "csi",
            "csi.v1",
            "csi.v1.",
            "csi.v1.Nod",
            "csi.v1.NodeX",
            "csi.v1.Node.",
            "csi.v1.Node.NodeStageVolum",
            "csi.v1.Volume.volume_id.x",
            "Node",
        ] {
            assert!(file_with(symbol).is_none(), "{symbol:?}");
        }
        assert!(file_named("csi").is_none());
        assert!(file_extending("google.protobuf.FieldOptions", 1).is_none());
    }

    #[test]
    fn extensions_are_found_by_the_message_they_extend() {
        let options = "google.protobuf.FieldOptions";
        let found = extensions().filter(|it| it.extends(options));
        let mut numbers: Vec<_> = found.map(|it| it.number).collect();
        numbers.sort_unstable();
        // alpha_field and csi_secret of csi.proto.
        assert!(numbers.contains(&1059) && numbers.len() > 1, "{numbers:?}");
        for number in numbers {
            let file = file_extending(options, number).unwrap();
            assert_eq!(text(file, NAME), "csi.proto");
        }
    }
}
