//! JSON representations of the API's objects, and pages of lists.

use super::state::{Action, Change, Droplet, Snapshot, State, Status, Volume};
use crate::http::{Request, Response};
use serde_json::{Value, json};

const PER_PAGE: usize = 20;
const PER_PAGE_MAX: usize = 200;

pub(super) fn region(slug: &str) -> Value {
    json!({
        "slug": slug, "name": slug.to_uppercase(), "sizes": ["s-1vcpu-1gb"],
        "features": ["storage"], "available": true,
    })
}

impl State {
    /// Returns the JSON of a volume. If `at_accept` is set, the JSON contains the droplet while the
    /// volume is still being attached.
    pub(super) fn volume(&self, id: &str, volume: &Volume, at_accept: bool) -> Value {
        let coming = self.running(id).and_then(|action| match action.change {
            Change::Attach(droplet) if at_accept && !action.fails => Some(droplet),
            _ => None,
        });
        let droplet = volume.droplet.or(coming);
        json!({
            "id": id, "name": volume.name, "region": region(&volume.region),
            "size_gigabytes": volume.size, "description": volume.description,
            "droplet_ids": droplet.into_iter().collect::<Vec<_>>(),
            "created_at": volume.created_at, "tags": volume.tags,
            "filesystem_type": volume.filesystem.0, "filesystem_label": volume.filesystem.1,
        })
    }

    pub(super) fn droplet(&self, id: u64, droplet: &Droplet) -> Value {
        let volumes = self.volumes.iter();
        let volumes = volumes.filter(|(_, volume)| volume.droplet == Some(id));
        json!({
            "id": id, "name": droplet.name, "region": region(&droplet.region),
            "status": if droplet.is_on { "active" } else { "off" },
            "volume_ids": volumes.map(|(id, _)| id).collect::<Vec<_>>(),
        })
    }
}

pub(super) fn action(id: u64, action: &Action) -> Value {
    json!({
        "id": id, "status": action.status.name(), "type": action.change.name(),
        "started_at": action.started_at,
        "completed_at": match action.status {
            Status::Running => Value::Null,
            _ => json!(action.completed_at),
        },
        "resource_id": null, "resource_type": "volume",
        "region": region(&action.region), "region_slug": action.region,
    })
}

pub(super) fn snapshot(id: &str, snapshot: &Snapshot) -> Value {
    json!({
        "id": id, "name": snapshot.name, "resource_id": snapshot.volume,
        "resource_type": "volume", "regions": [snapshot.region],
        "min_disk_size": snapshot.size, "size_gigabytes": 0.5,
        "created_at": snapshot.created_at, "tags": snapshot.tags,
    })
}

/// Returns a page of a list, with links to the other pages. The links keep the filters of the
/// request.
pub(super) fn page(request: &Request, key: &str, all: Vec<Value>) -> Response {
    let number = |name, default| {
        let asked = request.asked(name).and_then(|text| text.parse().ok());
        asked.filter(|number| *number > 0).unwrap_or(default)
    };
    let per_page = number("per_page", PER_PAGE).min(PER_PAGE_MAX);
    let page = number("page", 1);
    let (total, last) = (all.len(), all.len().div_ceil(per_page).max(1));
    let first = (page - 1).saturating_mul(per_page);
    let some: Vec<_> = all.into_iter().skip(first).take(per_page).collect();
    let host = request.header("host").unwrap_or_default();
    let filters = request.query.iter();
    let filters = filters.filter(|(name, _)| name != "page" && name != "per_page");
    let filters: String = filters
        .map(|(name, value)| format!("{name}={value}&"))
        .collect();
    let link = |page: usize| {
        let path = &request.path;
        format!("http://{host}{path}?{filters}page={page}&per_page={per_page}")
    };
    let mut pages = serde_json::Map::new();
    if page > 1 {
        pages.insert("first".to_owned(), link(1).into());
        pages.insert("prev".to_owned(), link(page.min(last + 1) - 1).into());
    }
    if page < last {
        pages.insert("next".to_owned(), link(page + 1).into());
        pages.insert("last".to_owned(), link(last).into());
    }
    let links = match pages.is_empty() {
        true => json!({}),
        false => json!({ "pages": pages }),
    };
    Response::json(
        200,
        &json!({ key: some, "links": links, "meta": { "total": total } }),
    )
}
