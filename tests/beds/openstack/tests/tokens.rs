//! A token of another login in `cloud.conf`.

use belay_bed::requests;
use belay_openstack::{Bed, send};
use serde_json::json;
use tonic::Code;

use crate::site::{Site, assert_refused, created, deleted, opened, unique};

/// A token of the driver's user in its project.
fn token(bed: &Bed) -> String {
    let text = |pointer| bed.text(pointer);
    let domain = json!({"name": text("/domain")});
    let user = json!({"name": text("/username"), "password": text("/password"), "domain": domain});
    let scope = json!({"project": {"name": text("/project"), "domain": domain}});
    let identity = json!({"methods": ["password"], "password": {"user": user}});
    let url = format!("{}/auth/tokens", text("/auth_url"));
    let order = json!({"auth": {"identity": identity, "scope": scope}});
    let content = [("Content-Type", "application/json")];
    let answer = send("POST", &url, &content, Some(&order)).unwrap();
    answer.header("x-subject-token").unwrap().to_owned()
}

fn revoke(bed: &Bed, token: &str) {
    let url = format!("{}/auth/tokens", bed.text("/auth_url"));
    let itself = [("X-Auth-Token", token), ("X-Subject-Token", token)];
    assert_eq!(send("DELETE", &url, &itself, None).unwrap().status, 204);
}

fn conf(bed: &Bed, token: &str) -> String {
    format!(
        "[Global]\nauth-url = {}\ntoken = {token}\ntenant-name = {}\ndomain-name = {}\n\
         region = {}\n",
        bed.text("/auth_url"),
        bed.text("/project"),
        bed.text("/domain"),
        bed.text("/region")
    )
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn a_token_is_enough_until_it_ends_and_then_another_one_is() {
    let (bed, _cloud) = opened();
    let (first, second) = (token(&bed), token(&bed));
    let site = Site::new(&conf(&bed, &first));
    let _controller = site.start();
    let client = &mut site.client().await;
    let volume = created(client, &unique("token")).await.volume_id;
    revoke(&bed, &first);
    // Cinder refuses the session's token, so there is a new login.
    let refusal = json!({"action": "answer", "status": 401, "times": 1, "service": "cinder",
                         "body": "{}"});
    let fronts = bed.fronts();
    fronts.obey(&json!([refusal]));
    let status = client.controller_get_volume(requests::get(&volume)).await;
    let why = "the token in cloud.conf has ended or was revoked";
    assert_refused(status, Code::Unauthenticated, why);
    site.configure(&conf(&bed, &second));
    let logins = || fronts.count("keystone", "POST", "/v3/auth/tokens");
    let before = logins();
    while logins() == before {
        let get = client.controller_get_volume(requests::get(&volume));
        get.await.unwrap();
    }
    deleted(client, &volume).await;
    let log = site.log();
    assert!(log.contains("the token in cloud.conf ends"), "{log}");
    for shown in [log, site.metrics()] {
        for token in [&first, &second] {
            assert!(!shown.contains(token), "a token in\n{shown}");
        }
    }
}
