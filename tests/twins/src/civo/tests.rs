//! Tests the twin against the facts about Civo's API, row by row; the table is in the crate's
//! README.

use super::*;

/// A twin, and a client that calls it.
struct Client(Civo);

impl Client {
    fn new() -> Self {
        Self(Civo::new(Duration::ZERO, 3))
    }

    /// Creates a twin in which changes take a long time.
    fn slow() -> Self {
        Self(Civo::new(Duration::from_secs(3600), 2))
    }

    fn raw(&self, request: &Request) -> (u16, Value) {
        let response = self.0.answer(request);
        let body = serde_json::from_str(&response.body);
        (response.status, body.unwrap())
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let query = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        self.raw(&Request {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.collect(),
            headers: vec![("authorization".to_owned(), format!("bearer {KEY}"))],
            body: body.to_string().into(),
        })
    }

    fn get(&self, path: &str) -> Value {
        let (status, body) = self.call("GET", path, &Value::Null);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    fn done(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.call(method, path, body);
        assert_eq!(status, 200, "{method} {path}: {answer}");
        answer
    }

    fn refused(&self, method: &str, path: &str, body: &Value) -> String {
        let (status, answer) = self.call(method, path, body);
        assert!(status >= 300, "{method} {path}: {status} {answer}");
        assert!(answer["reason"].is_string(), "{answer}");
        answer["code"].as_str().unwrap().to_owned()
    }

    fn create(&self, name: &str, gib: u64) -> String {
        let body = json!({"name": name, "size_gb": gib, "cluster_id": CLUSTER, "network_id": "",
                          "region": REGION, "bootable": false, "volume_type": ""});
        let made = self.done("POST", "/v2/volumes", &body);
        made["id"].as_str().unwrap().to_owned()
    }

    fn attached(&self, id: &str, instance: &str) {
        let body = json!({"instance_id": instance, "attach_at_boot": false, "region": REGION});
        let done = self.done("PUT", &format!("/v2/volumes/{id}/attach"), &body);
        assert_eq!(done, json!({"result": "success"}));
    }

    fn instance(&self, at: usize) -> String {
        let all = self.get(&format!("/v2/kubernetes/clusters/{CLUSTER}/instances"));
        all[at]["id"].as_str().unwrap().to_owned()
    }
}

#[test]
fn only_the_key_is_accepted_and_the_scheme_has_no_case() {
    let client = Client::new();
    let with = |authorization: &str| {
        client.raw(&Request {
            method: "GET".to_owned(),
            path: "/v2/ping".to_owned(),
            headers: vec![("authorization".to_owned(), authorization.to_owned())],
            ..Request::default()
        })
    };
    for scheme in ["bearer", "Bearer"] {
        assert_eq!(with(&format!("{scheme} {KEY}")).0, 200);
    }
    let (status, body) = with("bearer wrong");
    assert_eq!(status, 401);
    assert_eq!(body["result"], "requires_authentication");
}

#[test]
fn a_header_that_announces_gzip_is_no_reason_to_unpack_a_plain_body() {
    let client = Client::new();
    let body = json!({"name": "pvc-1", "size_gb": 1, "cluster_id": CLUSTER});
    let headers = [
        ("authorization", format!("bearer {KEY}")),
        ("content-encoding", "gzip".to_owned()),
    ];
    let (status, made) = client.raw(&Request {
        method: "POST".to_owned(),
        path: "/v2/volumes".to_owned(),
        headers: headers
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec(),
        body: body.to_string().into(),
        ..Request::default()
    });
    assert_eq!((status, made["name"].as_str()), (200, Some("pvc-1")));
}

#[test]
fn a_region_has_its_own_volumes_and_without_one_the_default_is_meant() {
    let client = Client::new();
    let id = client.create("pvc-1", 1);
    let elsewhere = format!("?region={OTHER_REGION}");
    assert_eq!(client.get("/v2/volumes").as_array().unwrap().len(), 1);
    assert_eq!(client.get(&format!("/v2/volumes{elsewhere}")), json!([]));
    let path = format!("/v2/volumes/{id}{elsewhere}");
    let code = client.refused("GET", &path, &Value::Null);
    assert_eq!(code, "database_volume_not_found");
    client.get(&format!("/v2/volumes/{id}?region={REGION}"));
    // A volume in a different region may have the same name.
    let body = json!({"name": "pvc-1", "size_gb": 1, "network_id": "n-2"});
    client.done("POST", &format!("/v2/volumes{elsewhere}"), &body);
}

#[test]
fn lists_are_bare_arrays() {
    let client = Client::new();
    for path in [
        "/v2/volumes",
        "/v2/snapshots?resource_type=volume",
        "/v2/volumetypes",
        "/v2/regions",
        &format!("/v2/kubernetes/clusters/{CLUSTER}/instances"),
    ] {
        assert!(client.get(path).is_array(), "{path}");
    }
}

#[test]
fn a_volume_has_its_members_and_free_ones_are_empty_or_null() {
    let client = Client::new();
    let id = client.create("pvc-1", 10);
    let volume = client.get(&format!("/v2/volumes/{id}"));
    assert_eq!(
        (&volume["size_gb"], &volume["bootable"]),
        (&json!(10), &json!(false))
    );
    assert_eq!(volume["status"], "available");
    assert_eq!(volume["cluster_id"], CLUSTER);
    assert_eq!(volume["network_id"], "n-1", "that of the cluster");
    assert_eq!(volume["volume_type"], VOLUME_TYPE);
    assert!(volume["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(
        (&volume["instance_id"], &volume["mountpoint"]),
        (&json!(""), &json!(""))
    );
    client.0.twin().settings.has_nulls = true;
    let volume = client.get(&format!("/v2/volumes/{id}"));
    assert_eq!(
        (&volume["instance_id"], &volume["mountpoint"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn the_answer_to_a_creation_has_an_id_and_perhaps_nothing_else() {
    let client = Client::slow();
    let body = json!({"name": "pvc-1", "size_gb": 1, "cluster_id": CLUSTER});
    let made = client.done("POST", "/v2/volumes", &body);
    assert_eq!(
        (&made["result"], &made["status"]),
        (&json!(""), &Value::Null)
    );
    let id = made["id"].as_str().unwrap();
    assert_eq!(
        client.get(&format!("/v2/volumes/{id}"))["status"],
        "creating"
    );
}

#[test]
fn a_creation_is_refused_by_code() {
    let client = Client::new();
    client.create("pvc-1", 1);
    client.0.twin().settings.quota = Quota {
        gib: 5,
        volumes: 2,
        snapshots: 9,
    };
    let refused = |name: &str, size: Value, cluster: &str| {
        let body = json!({"name": name, "size_gb": size, "cluster_id": cluster});
        client.refused("POST", "/v2/volumes", &body)
    };
    for (name, size, cluster, code) in [
        ("pvc-1", json!(1), CLUSTER, "database_volume_duplicate_name"),
        ("pvc-2", json!(0), CLUSTER, "volume_invalid_size"),
        ("pvc-2", Value::Null, CLUSTER, "parameter_size_missing"),
        ("pvc-2", json!(5), CLUSTER, "quota_limit_reached"),
        ("pvc 2", json!(1), CLUSTER, "parameter_name_invalid"),
        // A request that names no cluster must name a network.
        (
            "pvc-2",
            json!(1),
            "",
            "database_kubernetes_cluster_not_found",
        ),
    ] {
        assert_eq!(refused(name, size, cluster), code, "{name} {cluster}");
    }
    client.create("pvc-2", 4);
    assert_eq!(refused("pvc-3", json!(1), CLUSTER), "quota_limit_reached");
}

#[test]
fn a_volume_is_attached_to_one_instance_some_time_after_the_answer() {
    let client = Client::slow();
    let (first, second) = (client.instance(0), client.instance(1));
    let id = client.0.twin().change().add("pvc-1", 1);
    client.attached(&id, &first);
    let path = format!("/v2/volumes/{id}");
    let volume = client.get(&path);
    assert_eq!(
        (&volume["status"], &volume["instance_id"]),
        (&json!("attaching"), &json!(first))
    );
    let again = json!({"instance_id": second});
    let code = client.refused("PUT", &format!("{path}/attach"), &again);
    assert_eq!(code, "database_volume_cannot_multiple_attach");
    let code = client.refused("PUT", &format!("{path}/detach"), &json!({}));
    assert_eq!(code, "database_volume_not_attached", "not yet");
}

#[test]
fn a_volume_keeps_its_instance_until_it_is_detached_from_whatever_it_is_on() {
    let client = Client::new();
    let id = client.create("pvc-1", 1);
    let path = format!("/v2/volumes/{id}");
    let code = client.refused(
        "PUT",
        &format!("{path}/attach"),
        &json!({"instance_id": "none"}),
    );
    assert_eq!(code, "database_instance_find");
    let first = client.instance(0);
    client.attached(&id, &first);
    assert_eq!(client.get(&path)["status"], "attached");
    let shown = client.get(&format!("/v2/instances/{first}"));
    assert_eq!(shown["attached_volumes"], json!([{"id": id}]));
    client.0.twin().settings.delay = Duration::from_secs(3600);
    client.done("PUT", &format!("{path}/detach"), &json!({"region": REGION}));
    let volume = client.get(&path);
    assert_eq!(
        (&volume["status"], &volume["instance_id"]),
        (&json!("detaching"), &json!(first))
    );
    let code = client.refused("PUT", &format!("{path}/detach"), &json!({}));
    assert_eq!(code, "database_volume_not_attached");
}

#[test]
fn a_volume_grows_only_while_it_is_detached_and_never_shrinks() {
    let client = Client::new();
    let id = client.create("pvc-1", 2);
    let path = format!("/v2/volumes/{id}/resize");
    let refused = |gib: u64| client.refused("PUT", &path, &json!({"size_gb": gib}));
    assert_eq!(refused(2), "parameter_volume_size_must_increase");
    client.0.twin().settings.quota.gib = 5;
    assert_eq!(refused(6), "quota_limit_reached");
    client.done("PUT", &path, &json!({"size_gb": 5, "region": REGION}));
    let shown = client.get(&format!("/v2/volumes/{id}"));
    assert_eq!(
        (&shown["size_gb"], &shown["status"]),
        (&json!(5), &json!("available"))
    );
    client.attached(&id, &client.instance(0));
    assert_eq!(refused(9), "database_volume_still_attached_cannot_resize");
}

#[test]
fn an_attached_volume_is_not_deleted_and_a_deleted_one_is_not_found() {
    let client = Client::new();
    let id = client.create("pvc-1", 1);
    let path = format!("/v2/volumes/{id}");
    client.attached(&id, &client.instance(0));
    let code = client.refused("DELETE", &path, &Value::Null);
    assert_eq!(code, "database_volume_delete_failed");
    client.done("PUT", &format!("{path}/detach"), &json!({}));
    client.done("DELETE", &path, &Value::Null);
    let code = client.refused("DELETE", &path, &Value::Null);
    assert_eq!(code, "database_volume_not_found");
    let code = client.refused("GET", "/v2/volumes/none", &Value::Null);
    assert_eq!(code, "database_volume_id_invalid");
}

#[test]
fn a_snapshot_has_the_size_of_its_volume_at_the_cut_and_states_of_two_spellings() {
    let client = Client::new();
    let id = client.create("pvc-1", 3);
    let path = format!("/v2/volumes/{id}/snapshots");
    let cut = |name: &str| {
        let body = json!({"name": name, "description": "d", "region": REGION});
        client.done("POST", &path, &body)["snapshot_id"].clone()
    };
    let made = [cut("a"), cut("a")];
    assert_ne!(made[0], made[1], "names may repeat");
    client.done(
        "PUT",
        &format!("/v2/volumes/{id}/resize"),
        &json!({"size_gb": 9}),
    );
    let mut states = Vec::new();
    for snapshot in &made {
        let sid = snapshot.as_str().unwrap();
        let shown = client.get(&format!("/v2/snapshots/{sid}?resource_type=volume"));
        assert_eq!(shown, client.get(&format!("{path}/{sid}")));
        assert_eq!(
            (&shown["restore_size"], &shown["volume_id"]),
            (&json!(3), &json!(id))
        );
        assert_eq!(shown["source_volume_name"], "pvc-1");
        states.push(shown["state"].clone());
    }
    assert_eq!(states, ["Ready", "available"]);
    assert_eq!(client.get("/v2/snapshots"), json!([]), "those of instances");
    let restored = json!({"name": "pvc-2", "size_gb": 2, "cluster_id": CLUSTER,
                          "snapshot_id": made[0]});
    let code = client.refused("POST", "/v2/volumes", &restored);
    assert_eq!(code, "volume_invalid_size", "smaller than its source");
    let sid = made[0].as_str().unwrap();
    client.done("DELETE", &format!("/v2/snapshots/{sid}"), &Value::Null);
    let code = client.refused("DELETE", &format!("/v2/snapshots/{sid}"), &Value::Null);
    assert_eq!(code, "database_snapshot_not_found");
}

#[test]
fn one_snapshot_of_a_volume_is_made_at_a_time_and_one_in_use_stays() {
    let client = Client::slow();
    let id = client.0.twin().change().add("pvc-1", 1);
    let path = format!("/v2/volumes/{id}/snapshots");
    let made = client.done("POST", &path, &json!({"name": "a"}));
    let code = client.refused("POST", &path, &json!({"name": "b"}));
    assert_eq!(code, "database_snapshot_create_already_in_process");
    let sid = made["snapshot_id"].as_str().unwrap();
    let body = json!({"name": "pvc-2", "size_gb": 1, "cluster_id": CLUSTER, "snapshot_id": sid});
    client.done("POST", "/v2/volumes", &body);
    let code = client.refused("DELETE", &format!("/v2/snapshots/{sid}"), &Value::Null);
    assert_eq!(code, "database_snapshot_cannot_delete_in_use");
}

#[test]
fn the_quota_counts_all_regions_and_may_lag() {
    let client = Client::new();
    client.create("pvc-1", 3);
    let body = json!({"name": "pvc-2", "size_gb": 4, "network_id": "n-2"});
    client.done("POST", &format!("/v2/volumes?region={OTHER_REGION}"), &body);
    let quota = client.get("/v2/quota");
    assert_eq!(
        (&quota["disk_gb_usage"], &quota["disk_volume_count_usage"]),
        (&json!(7), &json!(2))
    );
    client.0.twin().settings.usage_seen = Some(Quota {
        gib: 0,
        volumes: 0,
        snapshots: 0,
    });
    assert_eq!(client.get("/v2/quota")["disk_gb_usage"], 0);
}

#[test]
fn the_cluster_has_a_volume_type_and_instances_with_host_names() {
    let client = Client::new();
    let cluster = client.get(&format!("/v2/kubernetes/clusters/{CLUSTER}"));
    assert_eq!(cluster["volume_type"], VOLUME_TYPE);
    assert_eq!(cluster["instances"][0]["hostname"], "k3s-twin-node-pool-1");
    let code = client.refused("GET", "/v2/kubernetes/clusters/none", &Value::Null);
    assert_eq!(code, "database_kubernetes_cluster_not_found");
}

#[test]
fn clusters_come_in_pages_and_each_has_its_own_instances() {
    let client = Client::new();
    {
        let mut twin = client.0.twin();
        let state = twin.change();
        let first = state.instances.keys().next().unwrap().clone();
        state.other_clusters.insert("b".to_owned(), vec![first]);
    }
    let page = |n: usize| client.get(&format!("/v2/kubernetes/clusters?page={n}&per_page=1"));
    assert_eq!(page(1)["pages"], 2);
    let ids = [1, 2].map(|n| page(n)["items"][0]["id"].clone());
    assert_eq!(ids, [json!("b"), json!(CLUSTER)]);
    let all = client.get("/v2/kubernetes/clusters");
    assert_eq!(all["items"].as_array().unwrap().len(), 2);
    assert_eq!(
        page(1)["items"][0]["instances"],
        client.get("/v2/kubernetes/clusters/b/instances")
    );
    let instances = client.get("/v2/kubernetes/clusters/b/instances");
    assert_eq!(instances[0]["hostname"], "k3s-twin-node-pool-1");
    assert_eq!(instances.as_array().unwrap().len(), 1);
}

#[test]
fn an_instance_of_a_cluster_may_be_shown_only_with_its_cluster() {
    let client = Client::new();
    let ids = [0, 1, 2].map(|n| client.instance(n));
    {
        let mut twin = client.0.twin();
        twin.settings.hides_instances_of_clusters = true;
        let state = twin.change();
        for id in &ids[1..] {
            state.instances.get_mut(id).unwrap().is_in_cluster = false;
        }
        let other = vec![ids[1].clone()];
        state.other_clusters.insert("b".to_owned(), other);
    }
    for id in &ids[..2] {
        let code = client.refused("GET", &format!("/v2/instances/{id}"), &Value::Null);
        assert_eq!(code, "database_instance_find");
    }
    let shown = client.get(&format!("/v2/instances/{}", ids[2]));
    assert_eq!(shown["id"], json!(ids[2]));
    client.0.twin().settings.hides_instances_of_clusters = false;
    for id in &ids {
        assert_eq!(client.get(&format!("/v2/instances/{id}"))["id"], json!(id));
    }
}

#[test]
fn a_disk_is_smaller_than_its_gib_to_the_byte_that_was_seen() {
    let volume = Volume {
        gib: 10,
        ..Volume::default()
    };
    assert_eq!(volume.disk_bytes(), 10_146_860_544);
}

#[test]
fn readers_see_a_change_late_and_decisions_do_not() {
    let client = Client::new();
    client.0.twin().lag(Duration::from_secs(3600));
    let id = client.create("pvc-1", 1);
    let code = client.refused("GET", &format!("/v2/volumes/{id}"), &Value::Null);
    assert_eq!(code, "database_volume_not_found");
    let body = json!({"name": "pvc-1", "size_gb": 1, "cluster_id": CLUSTER});
    let code = client.refused("POST", "/v2/volumes", &body);
    assert_eq!(code, "database_volume_duplicate_name");
}

#[test]
fn calls_over_the_rate_are_refused_with_a_time_to_wait() {
    let client = Client::new();
    client.0.twin().settings.calls_per_second = Some(0);
    let (status, body) = client.call("GET", "/v2/ping", &Value::Null);
    assert_eq!(
        (status, body["code"].as_str()),
        (429, Some("too_many_requests"))
    );
}

#[test]
fn a_deleted_volume_that_a_caller_has_is_reported() {
    let client = Client::new();
    let id = client.create("pvc-1", 1);
    client.0.twin().kept.insert(id.clone());
    client.done("DELETE", &format!("/v2/volumes/{id}"), &Value::Null);
    assert_eq!(client.0.twin().broken.len(), 1);
}
