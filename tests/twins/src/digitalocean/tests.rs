//! Tests of the twin's API itself. `tests/twins/godo` tests how the vendor's Go client interprets
//! this API.

use super::*;

const NAME: &str = "pvc-1";

struct Bed(DigitalOcean);

impl Bed {
    fn new() -> Self {
        Self(DigitalOcean::new(&["nyc1", "fra1"], &[7, 8]))
    }

    fn call(&self, method: &str, target: &str, body: &Value) -> Response {
        self.with_token(&format!("bearer {TOKEN}"), method, target, body)
    }

    fn with_token(&self, token: &str, method: &str, target: &str, body: &Value) -> Response {
        let body = body.to_string();
        let text = format!(
            "{method} {target} HTTP/1.1\r\nHost: twin\r\nAuthorization: {token}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let request = Request::read(&mut text.as_bytes()).unwrap().unwrap();
        self.0.answer(&request)
    }

    fn done(&self, method: &str, target: &str, body: &Value) -> Value {
        let response = self.call(method, target, body);
        assert!(response.status < 300, "{target}: {response:?}");
        serde_json::from_str(&response.body).unwrap_or(Value::Null)
    }

    fn refused(&self, method: &str, target: &str, body: &Value) -> (u16, String) {
        let response = self.call(method, target, body);
        let body: Value = serde_json::from_str(&response.body).unwrap();
        let message = body["message"].as_str().unwrap();
        (response.status, message.to_owned())
    }

    fn created(&self, name: &str) -> String {
        let asked = json!({"name": name, "region": "nyc1", "size_gigabytes": 1});
        let made = self.done("POST", "/v2/volumes", &asked);
        made["volume"]["id"].as_str().unwrap().to_owned()
    }
}

#[test]
fn the_token_is_required_and_every_response_has_the_rate() {
    let bed = Bed::new();
    let refused = bed.with_token("Bearer guess", "GET", "/v2/account", &Value::Null);
    assert_eq!(refused.status, 401);
    bed.0
        .limit((3, Duration::from_secs(60)), (9, Duration::from_secs(3600)));
    let statuses: Vec<_> = (0..4)
        .map(|_| {
            let response = bed.call("GET", "/v2/account", &Value::Null);
            let names: Vec<_> = response.headers.iter().map(|(name, _)| *name).collect();
            assert!(names.contains(&"ratelimit-reset"), "{names:?}");
            let is_early = names.contains(&"retry-after");
            assert_eq!(is_early, response.status == 429);
            response.status
        })
        .collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
}

#[test]
fn a_volume_has_a_name_of_the_documented_form_that_is_unique_in_its_region() {
    let bed = Bed::new();
    let asked =
        |name: &str, region: &str| json!({"name": name, "region": region, "size_gigabytes": 1});
    let longest = "a".repeat(64);
    for name in ["a", "pvc-1", &longest] {
        bed.created(name);
        let refused = bed.refused("POST", "/v2/volumes", &asked(name, "nyc1"));
        assert_eq!(refused.0, 409, "{name}");
        bed.done("POST", "/v2/volumes", &asked(name, "fra1"));
    }
    let longer = "a".repeat(65);
    for name in [
        "", "1a", "-a", "A", "aB", "a_b", "a.b", "a b", "\u{e4}", &longer,
    ] {
        let (status, words) = bed.refused("POST", "/v2/volumes", &asked(name, "nyc1"));
        assert_eq!(status, 422, "{name}");
        assert!(words.contains("invalid volume name"), "{words}");
    }
}

#[test]
fn a_droplet_has_one_event_at_a_time_and_both_sides_change_together() {
    let bed = Bed::new();
    bed.0.settings().delay = Duration::from_secs(3600);
    let (first, second) = (bed.created(NAME), bed.created("pvc-2"));
    let actions = |id: &str| format!("/v2/volumes/{id}/actions");
    let attach = json!({"type": "attach", "droplet_id": 7});
    let begun = bed.done("POST", &actions(&first), &attach);
    assert_eq!(begun["action"]["status"], "in-progress");
    assert_eq!(begun["action"]["completed_at"], Value::Null);
    for (id, body, message) in [
        (&second, &attach, "Droplet already has a pending event."),
        (&first, &attach, "This volume is already attached"),
        (
            &second,
            &json!({"type": "detach", "droplet_id": 8}),
            "Attachment not found",
        ),
    ] {
        let refused = bed.refused("POST", &actions(id), body);
        assert_eq!(refused, (422, message.to_owned()));
    }
    let droplets = || {
        let volume = bed.done("GET", &format!("/v2/volumes/{first}"), &Value::Null);
        let droplet = bed.done("GET", "/v2/droplets/7", &Value::Null);
        let volumes = droplet["droplet"]["volume_ids"].clone();
        (volume["volume"]["droplet_ids"].clone(), volumes)
    };
    assert_eq!(droplets(), (json!([]), json!([])));
    bed.0.settings().shows_at_accept = true;
    assert_eq!(droplets().0, json!([7]));
    bed.0.end_actions();
    assert_eq!(droplets(), (json!([7]), json!([first])));
    let refused = bed.refused("DELETE", &format!("/v2/volumes/{first}"), &Value::Null);
    assert_eq!(
        refused,
        (409, "attached volume cannot be deleted".to_owned())
    );
}

#[test]
fn a_list_has_pages_with_links_that_keep_its_filters() {
    let bed = Bed::new();
    bed.0.fill(5);
    let target = "/v2/volumes?region=nyc1&page=2&per_page=2";
    let page = bed.done("GET", target, &Value::Null);
    assert_eq!(page["volumes"].as_array().unwrap().len(), 2);
    assert_eq!(page["meta"]["total"], 5);
    let pages = &page["links"]["pages"];
    let link = |n| format!("http://twin/v2/volumes?region=nyc1&page={n}&per_page=2");
    for (name, n) in [("first", 1), ("prev", 1), ("next", 3), ("last", 3)] {
        assert_eq!(pages[name], link(n), "{name}");
    }
    let whole = bed.done("GET", "/v2/volumes?name=other-1", &Value::Null);
    assert_eq!(
        (whole["links"].clone(), whole["meta"]["total"].clone()),
        (json!({}), json!(1))
    );
    let part = bed.done("GET", "/v2/volumes?name=other", &Value::Null);
    assert_eq!(part["meta"]["total"], 0);
}

#[test]
fn a_droplet_learns_its_id_and_region() {
    assert_eq!(metadata(7, "nyc1", "/metadata/v1/id").unwrap(), "7");
    assert_eq!(metadata(7, "nyc1", "/metadata/v1/region").unwrap(), "nyc1");
    let all = metadata(7, "nyc1", "/metadata/v1.json").unwrap();
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!(
        (&all["droplet_id"], &all["region"]),
        (&json!(7), &json!("nyc1"))
    );
    assert_eq!(metadata(7, "nyc1", "/metadata/v1/"), None);
}

#[test]
fn a_volume_with_a_disk_is_a_file_and_an_action_ends_with_what_became_of_its_disk() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("socket");
    let hypervisor = crate::Hypervisor::new(nowhere, dir.path().to_owned(), MODEL);
    let bed = Bed(DigitalOcean::new(&["nyc1"], &[7]).with_disks(hypervisor));
    let id = bed.created(NAME);
    let bytes = |id: &str| std::fs::metadata(dir.path().join(id)).map_or(0, |file| file.len());
    assert_eq!(bytes(&id), 1 << 30);
    let cut = bed.done(
        "POST",
        &format!("/v2/volumes/{id}/snapshots"),
        &json!({"name": "s"}),
    );
    let cut = cut["snapshot"]["id"].as_str().unwrap();
    let ended = |id: &str, body: &Value| {
        let action = bed.done("POST", &format!("/v2/volumes/{id}/actions"), body);
        let path = format!("/v2/volumes/{id}/actions/{}", action["action"]["id"]);
        loop {
            let action = bed.done("GET", &path, &Value::Null);
            if action["action"]["status"] != "in-progress" {
                return action["action"]["status"].clone();
            }
            std::thread::yield_now();
        }
    };
    let grow = json!({"type": "resize", "size_gigabytes": 2});
    assert_eq!(ended(&id, &grow), "completed");
    assert_eq!(bytes(&id), 2 << 30);
    bed.0.settings().restores_larger = true;
    let restored = json!({"name": "pvc-2", "region": "nyc1", "size_gigabytes": 3,
                          "snapshot_id": cut});
    let restored = bed.done("POST", "/v2/volumes", &restored);
    let copy = restored["volume"]["id"].as_str().unwrap();
    assert_eq!((bytes(cut), bytes(copy)), (1 << 30, 3 << 30));
    // The attach fails, since nothing listens on the hypervisor's socket.
    let attach = json!({"type": "attach", "droplet_id": 7});
    assert_eq!(ended(&id, &attach), "errored");
    assert_eq!(bed.0.attached()[&id], None);
    for path in [
        format!("volumes/{id}"),
        format!("volumes/{copy}"),
        format!("snapshots/{cut}"),
    ] {
        bed.done("DELETE", &format!("/v2/{path}"), &Value::Null);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
