//! HTTPS with an authority that `ca-file` names.

use crate::certificates::{self, file};
use crate::site::{Site, created, deleted};
use crate::wire::Cloud;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

/// Starts a cloud with the certificate in this file.
fn cloud(certificate: &str) -> Cloud {
    let acceptor = TlsAcceptor::from(certificates::server(certificate));
    Cloud::start(Duration::ZERO, Some(acceptor))
}

/// Returns the configuration of a server that only accepts clients with a certificate of the
/// authority in this file.
fn server_of_clients(authority: &str) -> ServerConfig {
    let [authority, chain] =
        [authority, "server.pem"].map(|name| CertificateDer::from_pem_file(file(name)).unwrap());
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(vec![chain], key)
        .unwrap()
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
    // The replacement is atomic, as the kubelet replaces a Secret.
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

#[tokio::test]
async fn a_client_certificate_is_shown_to_services_that_ask_for_it() {
    let tls = TlsAcceptor::from(Arc::new(server_of_clients("clients.pem")));
    let cloud = Cloud::start(Duration::ZERO, Some(tls));
    let dir = tempfile::tempdir().unwrap();
    let [chain, key] = ["client.pem", "client.key"].map(|name| dir.path().join(name));
    let copied = |from: &str, to: &Path| {
        let new = dir.path().join("new");
        fs::copy(file(from), &new).unwrap();
        fs::rename(new, to).unwrap();
    };
    // The certificate is from another authority.
    copied("elsewhere.pem", &chain);
    copied("server.key", &key);
    let identity = format!(
        "{}\ncert-file={}\nkey-file={}",
        trusting("authority.pem"),
        chain.display(),
        key.display()
    );
    let site = Site::new(&cloud.url(), &identity);
    let _running = site.start();
    let client = &mut site.client().await;
    created(client, "pvc-1").await.unwrap_err();
    assert_eq!(cloud.twin().count(), 0, "a request was served");
    copied("client.key", &key);
    copied("client.pem", &chain);
    let id = created(client, "pvc-1").await.unwrap();
    deleted(client, &id).await.unwrap();
}
