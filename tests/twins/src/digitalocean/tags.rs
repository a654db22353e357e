//! Tags of volumes.

use super::{Answer, DigitalOcean, given, not_found, refused};
use crate::http::Response;
use serde_json::{Value, json};

const NAME_MAX: usize = 255;

impl DigitalOcean {
    pub(super) fn create_tag(&self, body: &Value) -> Answer {
        let is_tag = |tag: &&str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_:-".contains(&byte);
            tag.len() <= NAME_MAX && tag.bytes().all(plain)
        };
        let Some(tag) = given(body, "name").filter(is_tag) else {
            return refused(422, "name is not valid");
        };
        let name = self.state().change().tag(tag);
        Ok(Response::json(
            201,
            &json!({ "tag": { "name": name, "resources": { "count": 0 } } }),
        ))
    }

    pub(super) fn tag_resources(&self, tag: &str, body: &Value) -> Answer {
        let mut state = self.state();
        let Some(tag) = state.latest().tags.get(&tag.to_lowercase()).cloned() else {
            return not_found();
        };
        let resources = body["resources"].as_array().cloned().unwrap_or_default();
        let ids: Vec<_> = resources
            .iter()
            .filter(|resource| resource["resource_type"] == "volume")
            .filter_map(|resource| resource["resource_id"].as_str())
            .collect();
        let volumes = &state.latest().volumes;
        if ids.len() < resources.len() || ids.iter().any(|id| !volumes.contains_key(*id)) {
            return not_found();
        }
        let state = state.change();
        for id in ids {
            if let Some(volume) = state.volumes.get_mut(id)
                && !volume.tags.contains(&tag)
            {
                volume.tags.push(tag.clone());
            }
        }
        Ok(Response::json(204, &Value::Null))
    }
}
