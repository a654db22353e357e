//! A request to fill in: every field is there, and every message in it, as far as that ends.

use prost_reflect::{DynamicMessage, Kind, MessageDescriptor, Value};

/// Messages in messages; CSI has four levels.
const DEPTH: usize = 5;

/// An empty message, with empty messages in it; of alternatives, the last:
/// a mounted volume, a clone.
pub(super) fn of(descriptor: &MessageDescriptor) -> DynamicMessage {
    filled(descriptor, DEPTH)
}

fn filled(descriptor: &MessageDescriptor, depth: usize) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let Kind::Message(inner) = field.kind() else {
            continue;
        };
        let oneof = field.containing_oneof();
        let is_chosen = oneof.is_none_or(|oneof| oneof.fields().last().as_ref() == Some(&field));
        if field.is_map() || !is_chosen || depth == 0 {
            continue;
        }
        let inner = Value::Message(filled(&inner, depth - 1));
        let value = match field.is_list() {
            true => Value::List(vec![inner]),
            false => inner,
        };
        message.set_field(&field, value);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::super::pool;
    use super::*;

    #[test]
    fn a_template_has_the_messages_in_lists_and_of_alternatives_one() {
        let create = pool::method(&pool::own().unwrap(), "CreateVolume").unwrap();
        let text = of(&create.input()).to_string();
        for part in [
            "capacity_range",
            "volume_capabilities",
            "access_mode",
            "mount",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("block"), "{text}");
    }
}
