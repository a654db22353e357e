//! HTTPS, with an authority that `ca-file` names.

use crate::certificates::{self, file};
use crate::site::{Site, created, deleted};
use crate::wire::Cloud;
use std::fs;
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

/// A cloud with the certificate in that file.
fn cloud(certificate: &str) -> Cloud {
    let acceptor = TlsAcceptor::from(certificates::server(certificate));
    Cloud::start(Duration::ZERO, Some(acceptor))
}

fn trusting(authority: &str) -> String {
    format!("ca-file={}", file(authority).display())
}

#[tokio::test]
async fn all_services_are_called_by_https_with_the_authority_of_the_ca_file() {
    let cloud = cloud("server.pem");
    let site = Site::new(&cloud.url(), &trusting("authority.pem"));
    let _running = site.start();
    let client = &mut site.client().await;
    let id = created(client, "pvc-1").await.unwrap();
    deleted(client, &id).await.unwrap();
    assert!(cloud.twin().count() > 3);
}

#[tokio::test]
async fn a_certificate_of_another_authority_or_host_is_refused_before_a_secret_is_sent() {
    for (certificate, authority, why) in [
        ("server.pem", "", "UnknownIssuer"),
        (
            "elsewhere.pem",
            &trusting("authority.pem"),
            "not valid for name",
        ),
    ] {
        let cloud = cloud(certificate);
        let site = Site::new(&cloud.url(), authority);
        let _running = site.start();
        let client = &mut site.client().await;
        let refused = created(client, "pvc-1").await.unwrap_err();
        assert!(refused.message().contains(why), "{refused}");
        assert_eq!(cloud.twin().count(), 0, "a request was sent");
    }
}

#[tokio::test]
async fn authorities_that_were_replaced_are_trusted_without_a_restart() {
    let cloud = cloud("server.pem");
    let dir = tempfile::tempdir().unwrap();
    let (authorities, new) = (dir.path().join("ca.crt"), dir.path().join("new"));
    // In one step, as the kubelet replaces a Secret.
    let replace = |certificate: &str| {
        fs::copy(file(certificate), &new).unwrap();
        fs::rename(&new, &authorities).unwrap();
    };
    replace("elsewhere.pem");
    let ca_file = format!("ca-file={}", authorities.display());
    let site = Site::new(&cloud.url(), &ca_file);
    let _running = site.start();
    let client = &mut site.client().await;
    let refused = created(client, "pvc-1").await.unwrap_err();
    assert!(refused.message().contains("UnknownIssuer"), "{refused}");
    replace("authority.pem");
    let id = created(client, "pvc-1").await.unwrap();
    deleted(client, &id).await.unwrap();
}

#[tokio::test]
async fn a_server_without_tls_gets_no_request() {
    let plain = Cloud::start(Duration::ZERO, None);
    let url = plain.url().replace("http://", "https://");
    let site = Site::new(&url, &trusting("authority.pem"));
    let _running = site.start();
    let client = &mut site.client().await;
    created(client, "pvc-1").await.unwrap_err();
    assert_eq!(plain.twin().count(), 0, "a request was sent");
}
