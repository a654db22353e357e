//! The certificates of servers in tests, described in `openstack_twin/tls/README.md`.

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns the path of a file of the authority.
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/openstack_twin/tls")
        .join(name)
}

/// Returns the configuration of a server with the certificate in this file.
pub(crate) fn server(certificate: &str) -> Arc<ServerConfig> {
    let chain = CertificateDer::from_pem_file(file(certificate)).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    Arc::new(config)
}
