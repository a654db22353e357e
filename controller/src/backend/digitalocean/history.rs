//! The actions of a volume, which the cloud keeps for an undocumented time. The actions show
//! whether one of them is running, and whether the volume was attached before.

use super::client::{Client, PAGE_ENTRIES_MAX, path};
use super::wire::{self, Action, Listed, Status};
use belay_server::call::Failure;
use belay_server::request::VolumeId;
use http::StatusCode;

/// The latest and the earliest actions of a volume.
#[derive(Debug, Default)]
pub(super) struct History {
    actions: Vec<Action>,
    /// Whether the cloud has further actions of the volume, between the latest and the earliest
    /// actions that were read.
    is_partial: bool,
}

impl History {
    pub(super) fn is_running(&self) -> bool {
        let mut all = self.actions.iter();
        all.any(|action| action.status() == Status::Running)
    }

    pub(super) fn action(&self, id: u64) -> Option<&Action> {
        self.actions.iter().find(|action| action.id == id)
    }

    /// Whether this action is the only action that may have attached the volume. The actions of all
    /// programs are considered, including actions with the status `errored`, since a failed action
    /// may have attached the volume, too.
    pub(super) fn is_only_attach(&self, id: u64) -> bool {
        let mut others = self.actions.iter().filter(|action| action.id != id);
        !self.is_partial && self.action(id).is_some() && !others.any(Action::is_attach)
    }
}

impl Client {
    /// Returns the actions of a volume; empty if the volume does not exist. Reads the first and the
    /// last page, since the latest actions are on one of these pages.
    pub(super) async fn history(&self, id: &VolumeId) -> Result<History, Failure> {
        let first = self.actions(id, 1).await?;
        let (mut actions, mut is_partial) = (first.items, false);
        if let Some(last) = wire::last(first.links.as_ref()).filter(|last| *last > 1) {
            actions.extend(self.actions(id, last).await?.items);
            is_partial = last > 2;
        }
        Ok(History {
            actions,
            is_partial,
        })
    }

    async fn actions(&self, id: &VolumeId, page: usize) -> Result<Listed<Action>, Failure> {
        let none = Listed {
            items: Vec::new(),
            links: None,
        };
        let Some(path) = path("volume", id.as_str()) else {
            return Ok(none);
        };
        let path = format!("{path}/actions?page={page}&per_page={PAGE_ENTRIES_MAX}");
        let answer = self.get("list_actions", path).await?;
        match answer.status {
            StatusCode::OK => answer.json(),
            _ if wire::is_missing(&answer) => Ok(none),
            _ => Err(wire::refused(&answer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn history(actions: Value) -> History {
        History {
            actions: serde_json::from_value(actions).unwrap(),
            is_partial: false,
        }
    }

    fn action(id: u64, kind: &str, status: &str) -> Value {
        json!({ "id": id, "type": kind, "status": status })
    }

    #[test]
    fn an_attach_is_the_only_one_if_no_other_may_have_attached_the_volume() {
        let own = action(7, "attach_volume", "completed");
        let detached = action(9, "detach_volume", "completed");
        let resized = action(3, "resize_volume", "completed");
        let others = [
            action(4, "attach_volume", "errored"),
            action(5, "attach_volume", "completed"),
            action(6, "attach", "in-progress"),
            // An unknown type of action may be an attach.
            action(8, "", "completed"),
        ];
        let alone = history(json!([own, resized, detached]));
        assert!(alone.is_only_attach(7) && !alone.is_only_attach(5));
        for other in others {
            let all = history(json!([own, other]));
            assert!(!all.is_only_attach(7), "{all:?}");
        }
        let partial = History {
            is_partial: true,
            ..history(json!([own]))
        };
        assert!(!partial.is_only_attach(7));
    }
}
