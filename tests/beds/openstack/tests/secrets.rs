//! No password, secret or token is shown, and changed credentials are used without a restart.

use std::fs;

use belay_bed::programs::Running;
use belay_bed::requests;
use belay_openstack::{Bed, Cloud, send};
use serde_json::{Value, json};
use tonic::Code;

use crate::site::{
    Site, assert_refused, attached, block, by_credential, by_password, created, deleted, detached,
    opened, unique,
};

/// The beginning of a Fernet token: its version and the upper bytes of its time.
const TOKEN: &str = "gAAAAA";

/// An application credential that can be deleted: its URL, ID and secret.
struct Credential {
    cloud: Cloud,
    path: String,
    id: String,
    secret: String,
}

impl Credential {
    fn new(cloud: &Cloud, user: &str) -> Self {
        let secret = unique("canary");
        let path = format!("/users/{user}/application_credentials");
        let order = json!({"application_credential": {
            "name": unique("belay"), "secret": secret, "roles": [{"name": "member"}]}});
        let body = cloud.expect(201, "identity", ("POST", &path), &order);
        let id = body["application_credential"]["id"].as_str().unwrap();
        Self {
            cloud: cloud.clone(),
            path: format!("{path}/{id}"),
            id: id.to_owned(),
            secret,
        }
    }

    fn revoke(&self) {
        let call = ("DELETE", self.path.as_str());
        let _none = self.cloud.expect(204, "identity", call, &Value::Null);
    }
}

/// The ID of the driver's user, as its own login shows it.
fn user(bed: &Bed) -> String {
    let domain = json!({"name": bed.text("/domain")});
    let user = json!({"name": bed.text("/username"), "password": bed.text("/password"),
                      "domain": domain});
    let identity = json!({"methods": ["password"], "password": {"user": user}});
    let url = format!("{}/auth/tokens", bed.text("/auth_url"));
    let json = [("Content-Type", "application/json")];
    let body = json!({"auth": {"identity": identity}});
    let answer = send("POST", &url, &json, Some(&body)).unwrap();
    answer.body["token"]["user"]["id"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Returns the command line and environment of the process, which others can read.
fn arguments(controller: &Running) -> String {
    let of = |name| fs::read(format!("/proc/{}/{name}", controller.id())).unwrap();
    let bytes = [of("cmdline"), of("environ")].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn no_secret_is_shown_whatever_fails() {
    let (bed, cloud) = opened();
    let server = cloud.server("az-a");
    let (password, secret) = (
        bed.text("/password"),
        bed.text("/application_credential/secret"),
    );
    let id = bed.text("/application_credential/id");
    for (conf, own) in [
        (by_password(&bed), password),
        (by_credential(&bed, id, secret), secret),
    ] {
        let site = Site::new(&conf);
        let controller = site.start();
        let client = &mut site.client().await;
        let volume = created(client, &unique("secret")).await.volume_id;
        let mut errors = Vec::new();
        for rule in [
            json!({"action": "cut_after", "service": "cinder", "times": 9}),
            json!({"action": "truncate", "service": "cinder", "times": 9}),
            json!({"action": "answer", "status": 401, "times": 2, "service": "cinder",
                   "body": format!("{{\"error\": {{\"message\": \"{own}\"}}}}")}),
        ] {
            let fronts = bed.fronts();
            fronts.obey(&json!([rule]));
            let request = requests::attach(&volume, &server.id, block());
            if let Err(status) = client.controller_publish_volume(request).await {
                errors.push(status.to_string());
            }
            assert!(fronts.applied()[0] > 0, "{rule}");
        }
        assert!(!errors.is_empty());
        let _context = attached(client, &volume, &server.id).await;
        detached(client, &volume, &server.id).await;
        deleted(client, &volume).await;
        // Keystone's own words about a login that it refuses.
        let wrong = Site::new(
            &conf
                .replace(secret, "wrong-canary")
                .replace(password, "wrong-canary"),
        );
        let refused = wrong.start();
        let status = wrong
            .client()
            .await
            .create_volume(crate::site::create("refused", 1))
            .await;
        errors.push(status.as_ref().unwrap_err().to_string());
        assert_refused(status, Code::Aborted, "401");
        errors.extend([&site, &wrong].map(|site| site.log() + &site.metrics()));
        errors.extend([arguments(&controller), arguments(&refused)]);
        for shown in errors {
            for canary in [password, secret, "wrong-canary", TOKEN] {
                assert!(!shown.contains(canary), "{canary} in\n{shown}");
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn changed_credentials_are_used_without_a_restart() {
    let (bed, cloud) = opened();
    let user = user(&bed);
    let (old, new) = (
        Credential::new(&cloud, &user),
        Credential::new(&cloud, &user),
    );
    let site = Site::new(&by_credential(&bed, &old.id, &old.secret));
    let _controller = site.start();
    let client = &mut site.client().await;
    let fronts = bed.fronts();
    let logins = || fronts.count("keystone", "POST", "/v3/auth/tokens");
    let volume = created(client, &unique("renewed")).await.volume_id;
    let before = logins();
    site.configure(&by_credential(&bed, &new.id, &new.secret));
    while logins() == before {
        client
            .controller_get_volume(requests::get(&volume))
            .await
            .unwrap();
    }
    // Its tokens are revoked with it.
    old.revoke();
    for _ in 0..20 {
        client
            .controller_get_volume(requests::get(&volume))
            .await
            .unwrap();
    }
    assert_eq!(logins(), before + 1);
    deleted(client, &volume).await;
    new.revoke();
}

/// Returns a `clouds.yaml` with that application credential.
fn clouds_yaml(bed: &Bed, id: &str, secret: &str) -> String {
    format!(
        "clouds:\n  other: {{}}\n  production:\n    \
         auth_type: v3applicationcredential\n    auth:\n      \
         auth_url: {}\n      application_credential_id: {id}\n      \
         application_credential_secret: {secret}\n    region_name: {}\n",
        bed.text("/auth_url"),
        bed.text("/region")
    )
}

#[tokio::test]
#[ignore = "needs a bed: make openstack"]
async fn an_account_of_clouds_yaml_is_used_and_so_is_its_change() {
    let (bed, cloud) = opened();
    let user = user(&bed);
    let (old, new) = (
        Credential::new(&cloud, &user),
        Credential::new(&cloud, &user),
    );
    let site = Site::new("");
    let file = site.dir().join("clouds.yaml");
    let conf = |name: &str| {
        let file = file.display();
        format!("[Global]\nuse-clouds = true\nclouds-file = {file}\ncloud = {name}\n")
    };
    site.configure(&conf("production"));
    let write = |credential: &Credential| {
        let text = clouds_yaml(&bed, &credential.id, &credential.secret);
        fs::write(&file, text).unwrap();
    };
    write(&old);
    let _controller = site.start();
    let client = &mut site.client().await;
    let volume = created(client, &unique("yaml")).await.volume_id;
    let fronts = bed.fronts();
    let logins = || fronts.count("keystone", "POST", "/v3/auth/tokens");
    let before = logins();
    write(&new);
    while logins() == before {
        let get = client.controller_get_volume(requests::get(&volume));
        get.await.unwrap();
    }
    old.revoke();
    deleted(client, &volume).await;
    for shown in [site.log(), site.metrics()] {
        for secret in [&old.secret, &new.secret] {
            assert!(!shown.contains(secret), "a secret in\n{shown}");
        }
    }
    new.revoke();
}
