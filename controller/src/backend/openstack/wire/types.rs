//! Volume types.

use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
pub(in super::super) struct OneVolumeType {
    pub(in super::super) volume_type: VolumeType,
}

#[derive(Debug, Deserialize)]
pub(in super::super) struct VolumeTypes {
    pub(in super::super) volume_types: Vec<VolumeType>,
}

#[derive(Debug, Deserialize)]
pub(in super::super) struct VolumeType {
    id: String,
    pub(in super::super) name: String,
    /// Only those that users may see, of which `multiattach` is one since the release Xena; before,
    /// users see none of them, not even an empty list.
    #[serde(default)]
    extra_specs: Option<BTreeMap<String, Option<String>>>,
}

impl VolumeType {
    /// Whether it has that name or ID.
    pub(in super::super) fn is(&self, name: &str) -> bool {
        self.name == name || self.id == name
    }

    /// Whether its volumes can have several servers; none = the cloud does not show that.
    pub(in super::super) fn is_multiattach(&self) -> Option<bool> {
        let specs = self.extra_specs.as_ref()?;
        let value = specs.get("multiattach").and_then(Option::as_deref);
        // `<is> True`, in any case.
        Some(value.is_some_and(|value| value.to_ascii_lowercase().ends_with("true")))
    }
}
