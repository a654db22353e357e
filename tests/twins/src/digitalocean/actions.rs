//! Actions of volumes: attach, detach, resize.

use super::state::{Change, State};
use super::{Answer, DigitalOcean, Refusal, not_found, refused, show};
use crate::http::{Request, Response};
use serde_json::{Value, json};

impl DigitalOcean {
    pub(super) fn act(&self, id: &str, body: &Value) -> Answer {
        let mut state = self.state();
        let Some(volume) = state.latest().volumes.get(id).cloned() else {
            return not_found();
        };
        let droplet = body["droplet_id"].as_u64().unwrap_or(0);
        let change = match body["type"].as_str() {
            Some("attach") => self.attach(state.latest(), id, droplet)?,
            Some("detach") => detach(state.latest(), id, droplet)?,
            Some("resize") => {
                let size = body["size_gigabytes"].as_u64().unwrap_or(0);
                if size <= volume.size || size > self.settings().size_max {
                    return refused(422, "error resizing volume: invalid size specified");
                }
                if state.latest().running(id).is_some() {
                    return refused(422, "volume already has a pending event");
                }
                self.has_room(state.latest(), size - volume.size, "error resizing volume")?;
                Change::Resize(size)
            }
            _ => return refused(422, "type is not valid"),
        };
        let state = state.change();
        let action = self.begin(state, id, &volume.region, change);
        match state.actions.get(&action) {
            Some(begun) => {
                self.perform(state, action, begun.clone());
                let shown = show::action(action, begun);
                Ok(Response::json(202, &json!({ "action": shown })))
            }
            None => not_found(),
        }
    }

    fn attach(&self, state: &State, id: &str, droplet: u64) -> Result<Change, Refusal> {
        let Some(on) = state.droplets.get(&droplet) else {
            return not_found();
        };
        let volume = state.volumes.get(id);
        let coming = state.running(id).is_some();
        if volume.is_some_and(|volume| volume.droplet.is_some()) || coming {
            return refused(422, "This volume is already attached");
        }
        if volume.is_some_and(|volume| volume.region != on.region) {
            return refused(422, "the volume and the Droplet are in different regions");
        }
        if state.is_pending(droplet) {
            return refused(422, "Droplet already has a pending event.");
        }
        if state.attached_to(droplet) >= self.settings().droplet_volumes {
            return refused(422, "cannot attach more volumes to the Droplet");
        }
        Ok(Change::Attach(droplet))
    }

    pub(super) fn action(&self, volume: &str, id: &str) -> Answer {
        let state = self.state();
        let found = id.parse().ok();
        let found = found.and_then(|id| Some((id, state.seen().actions.get(&id)?)));
        match found {
            Some((id, action)) if action.volume == volume => Ok(Response::json(
                200,
                &json!({ "action": show::action(id, action) }),
            )),
            _ => not_found(),
        }
    }

    pub(super) fn list_actions(&self, request: &Request, volume: &str) -> Answer {
        let state = self.state();
        if !state.seen().volumes.contains_key(volume) {
            return not_found();
        }
        let actions = state.seen().actions.iter().rev();
        let actions = actions.filter(|(_, action)| action.volume == volume);
        let shown = actions.map(|(id, action)| show::action(*id, action));
        Ok(show::page(request, "actions", shown.collect()))
    }
}

fn detach(state: &State, id: &str, droplet: u64) -> Result<Change, Refusal> {
    if state.is_pending(droplet) {
        return refused(422, "Droplet already has a pending event.");
    }
    let volume = state.volumes.get(id);
    match volume.is_some_and(|volume| volume.droplet == Some(droplet)) {
        true => Ok(Change::Detach(droplet)),
        false => refused(422, "Attachment not found"),
    }
}
