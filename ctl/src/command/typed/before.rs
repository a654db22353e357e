//! The state of a volume or other object before a call that changes it. CSI calls are idempotent,
//! so the deletion of a volume that does not exist succeeds, as does an expansion to a smaller
//! size; belayctl reports both as errors.

use belay_contract::drivers::VOLUME_NAME;
use serde_json::{Value, json};
use tonic::Code;

use super::all_pages;
use super::view::list;
use crate::call::Connection;
use crate::failure::Failure;
use crate::size;

/// The flag that turns the error for an absent object into a success.
pub(super) const IGNORE: &str = "ignore-not-found";

/// The minimum difference, in bytes, by which a volume must exceed the required size to count as
/// larger. Clouds round sizes up to whole GiB, so a repeated expansion may find a volume that is
/// larger than the requested size.
const ROUNDING: u64 = 1 << 30;

/// The state of the object that a call refers to, as the driver reports it before the call.
pub(super) enum Before {
    /// The driver cannot report the state, or the state does not matter.
    Unknown,
    /// The object does not exist. Contains its kind, such as "volume", and the participle of the
    /// call, such as "deleted", for the message.
    Absent(&'static str, &'static str),
    /// The volume that the call expands, as a CSI Volume message in JSON.
    Volume(Value),
}

/// The calls that look up an object: the required capability, the method, and the field with the
/// ID.
const LOOKUPS: [(&str, &str, &str); 3] = [
    ("GET_VOLUME", "ControllerGetVolume", "volume_id"),
    ("LIST_VOLUMES", "ListVolumes", "volume_id"),
    ("LIST_SNAPSHOTS", "ListSnapshots", "snapshot_id"),
];

/// JSON pointers to the fields of requests that contain the ID of a volume.
const VOLUME_FIELDS: [&str; 3] = [
    "/volume_id",
    "/source_volume_id",
    "/volume_content_source/volume/volume_id",
];

impl Before {
    /// Looks up the object of a request, if the driver supports this. A failed lookup is ignored,
    /// since the call itself may return a better error.
    pub(super) async fn look_up(on: &Connection, method: &str, request: &Value) -> Self {
        let (object, done) = match method {
            "DeleteVolume" => ("volume", "deleted"),
            "ControllerUnpublishVolume" => ("volume", "detached"),
            "ControllerExpandVolume" => ("volume", "expanded"),
            "DeleteSnapshot" => ("snapshot", "deleted"),
            _ => return Self::Unknown,
        };
        match find(on, object, request).await {
            Ok(Some(volume)) if done == "expanded" => Self::Volume(volume),
            Ok(Some(Value::Null)) => Self::Absent(object, done),
            _ => Self::Unknown,
        }
    }

    /// Checks that the object existed before the call.
    ///
    /// # Errors
    /// Fails if the driver has reported that there is no such object.
    pub(super) fn refuse_absent(&self, request: &Value) -> Result<(), Failure> {
        let Self::Absent(object, done) = self else {
            return Ok(());
        };
        let id = request[format!("{object}_id")].as_str().unwrap_or_default();
        Err(Failure::Absent(format!(
            "no {object} {id}; nothing was {done}; `belayctl {object} list` shows the IDs"
        )))
    }

    /// Checks that an expansion does not request a smaller size than the volume has.
    ///
    /// # Errors
    /// Fails with both sizes if the volume is larger by 1 GiB or more.
    pub(super) fn refuse_shrinking(&self, request: &Value) -> Result<(), Failure> {
        let Self::Volume(volume) = self else {
            return Ok(());
        };
        let bytes = volume["capacity_bytes"].as_u64().unwrap_or_default();
        let required = request["capacity_range"]["required_bytes"].as_u64();
        match required.filter(|required| bytes.saturating_sub(*required) >= ROUNDING) {
            None => Ok(()),
            Some(required) => Err(Failure::Machine(format!(
                "the volume has {} ({bytes} bytes), and cannot shrink to {} ({required} bytes); \
                 nothing was changed",
                size::show(bytes),
                size::show(required)
            ))),
        }
    }
}

/// Looks up the object of a request. Returns `null` if the object does not exist, and `None` if the
/// driver cannot look it up.
async fn find(on: &Connection, object: &str, request: &Value) -> Result<Option<Value>, Failure> {
    let id = format!("{object}_id");
    for (capability, method, field) in LOOKUPS {
        if field != id || !on.has("ControllerGetCapabilities", capability).await? {
            continue;
        }
        let lookup = match method {
            "ListVolumes" => json!({}),
            "ListSnapshots" => json!({field: request[field], "secrets": request["secrets"]}),
            _ => json!({field: request[field]}),
        };
        let answer = match all_pages(on, method, lookup).await {
            Err(Failure::Status(status)) if status.code() == Code::NotFound => json!({}),
            answer => answer?,
        };
        let all = list(&answer, "/entries").iter().chain([&answer]);
        let mut all = all.filter_map(|entry| entry.get(object));
        let found = all.find(|found| found.get(field) == request.get(field));
        return Ok(Some(found.cloned().unwrap_or_default()));
    }
    Ok(None)
}

/// Replaces a volume name in the ID field of a request by the ID of the volume with that name.
/// Returns `None` if the request has no such field, or if the driver lists no volume with that
/// name.
///
/// # Errors
/// Fails if several volumes have the name.
pub(crate) async fn with_id(on: &Connection, request: &Value) -> Result<Option<Value>, Failure> {
    let mut request = request.clone();
    let mut fields = VOLUME_FIELDS.iter();
    let named = fields.find(|field| request.pointer(field).is_some());
    let Some(name) = named.and_then(|field| request.pointer_mut(field)) else {
        return Ok(None);
    };
    // A driver without ListVolumes cannot find a volume by its name.
    let Ok(answer) = all_pages(on, "ListVolumes", json!({})).await else {
        return Ok(None);
    };
    let volumes = list(&answer, "/entries").iter();
    let volumes = volumes.map(|entry| &entry["volume"]);
    // If the driver lists a volume with this ID, the ID was not a name.
    if volumes.clone().any(|volume| volume["volume_id"] == *name) {
        return Ok(None);
    }
    let ids = volumes.filter(|volume| volume["volume_context"][VOLUME_NAME] == *name);
    match ids
        .map(|volume| &volume["volume_id"])
        .collect::<Vec<_>>()
        .as_slice()
    {
        [] => Ok(None),
        [id] => {
            *name = Value::clone(id);
            Ok(Some(request))
        }
        several => {
            let ids: Vec<_> = several
                .iter()
                .map(|id| id.as_str().unwrap_or_default())
                .collect();
            Err(Failure::Usage(format!(
                "several volumes have the name {name}: {}; nothing was done; use an ID",
                ids.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expansion_is_refused_only_if_rounding_does_not_explain_the_larger_volume() {
        let refused = |bytes: u64, required: u64| {
            let request = json!({"capacity_range": {"required_bytes": required}});
            let before = Before::Volume(json!({"capacity_bytes": bytes}));
            before.refuse_shrinking(&request).is_err()
        };
        let gib = 1 << 30;
        assert!(!refused(2 * gib, gib * 3 / 2));
        assert!(!refused(2 * gib, gib + 1));
        assert!(!refused(gib, 2 * gib));
        assert!(refused(2 * gib, gib));
    }
}
