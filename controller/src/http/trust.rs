//! The certificate authorities that the client trusts, from a PEM file or from the system, and the
//! client's own certificate. The files are read again after they have changed. Opens no connection.

use belay_server::file;
use belay_server::lock::Lock;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// Files with the certificates of public authorities, in the distributions and in Belay's images.
const SYSTEM_BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// The maximum size of a file, in bytes. A bundle of all public authorities takes a quarter of a
/// MiB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The error for a file whose certificates or key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {why}")]
pub struct BadCertificates {
    file: PathBuf,
    why: String,
}

/// The PEM files of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The file with the trusted certificate authorities; `None` selects the system's file.
    pub authorities: Option<PathBuf>,
    /// The client certificate, for services that request one: the file with the certificate and its
    /// intermediate certificates, and the file with the private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The certificate authorities and the client certificate for new connections of a client.
pub struct Trust(Lock<Known>);

struct Known {
    /// The files that were read, each with a fingerprint of its content.
    from: Vec<(PathBuf, Content)>,
    tls: TlsConnector,
}

/// The fingerprint of a file, from its metadata. The fingerprint changes when the file is written
/// or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Content {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Trust {
    /// Reads the files. Blocks the calling thread.
    pub(super) fn new(files: &TlsFiles) -> Result<Self, BadCertificates> {
        Known::read(files).map(|known| Self(Lock::new(known)))
    }

    /// Reads the files again if a file has changed, or if the paths differ from the previous paths.
    /// Returns whether the files were read. Existing connections are not affected. This method
    /// blocks the calling thread.
    ///
    /// # Errors
    /// Fails if a file contains no usable certificate or key. After an error, the earlier
    /// certificates remain in use.
    pub fn refresh(&self, files: &TlsFiles) -> Result<bool, BadCertificates> {
        let now = files.contents()?;
        if self.0.lock().from == now {
            return Ok(false);
        }
        let new = Known::read(files)?;
        *self.0.lock() = new;
        Ok(true)
    }

    pub(super) fn tls(&self) -> TlsConnector {
        self.0.lock().tls.clone()
    }
}

impl TlsFiles {
    /// Returns the paths of all files, each with the current fingerprint.
    fn contents(&self) -> Result<Vec<(PathBuf, Content)>, BadCertificates> {
        let identity = self.identity.iter().flat_map(|(chain, key)| [chain, key]);
        let files = self.authorities().into_iter();
        let files = files.chain(identity.map(PathBuf::as_path));
        let of = |file: &Path| {
            let metadata = std::fs::metadata(file).map_err(|error| bad(file, &error))?;
            Ok((file.to_owned(), Content::of(&metadata)))
        };
        files.map(of).collect()
    }

    /// Returns the configured file of certificate authorities; if none is configured, the system's
    /// file. Returns `None` if the system has no such file.
    fn authorities(&self) -> Option<&Path> {
        let bundles = || SYSTEM_BUNDLES.iter().map(Path::new);
        let own = self.authorities.as_deref();
        own.or_else(|| bundles().find(|file| file.exists()))
    }
}

impl Known {
    fn read(files: &TlsFiles) -> Result<Self, BadCertificates> {
        // Take the fingerprints before reading, so that the next refresh notices a change that
        // happened during the read.
        let from = files.contents()?;
        let roots = match files.authorities() {
            None => RootCertStore::empty(),
            Some(file) => roots(file)?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(Path::new("TLS"), &error))?
            .with_root_certificates(roots);
        let config = match &files.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let certificates = certificates(chain)?;
                let key_of = PrivateKeyDer::from_pem_slice(&read(key)?);
                let key_of = key_of.map_err(|error| bad(key, &error))?;
                let config = builder.with_client_auth_cert(certificates, key_of);
                config.map_err(|error| bad(chain, &error))?
            }
        };
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Self { from, tls })
    }
}

fn bad(file: &Path, why: &dyn std::fmt::Display) -> BadCertificates {
    BadCertificates {
        file: file.to_owned(),
        why: why.to_string(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, BadCertificates> {
    file::read(path, FILE_BYTES_MAX).map_err(|error| bad(path, &error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, BadCertificates> {
    let pem = read(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let read = read.map_err(|error| bad(path, &error))?;
    match read.is_empty() {
        true => Err(bad(path, &"has no certificate in PEM that can be used")),
        false => Ok(read),
    }
}

fn roots(path: &Path) -> Result<RootCertStore, BadCertificates> {
    let mut roots = RootCertStore::empty();
    // A bundle may contain certificates that are too old to be parsed; ignore them.
    let (added, _) = roots.add_parsable_certificates(certificates(path)?);
    match added {
        0 => Err(bad(path, &"has no certificate in PEM that can be used")),
        _ => Ok(roots),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const AUTHORITY: &[u8] = include_bytes!("../../tests/openstack_twin/tls/authority.pem");

    fn named(authorities: &Path) -> TlsFiles {
        TlsFiles {
            authorities: Some(authorities.to_owned()),
            identity: None,
        }
    }

    #[test]
    fn an_identity_is_read_again_and_needs_a_certificate_and_its_key() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openstack_twin/tls");
        let dir = tempfile::tempdir().unwrap();
        let (chain, key) = (dir.path().join("client.pem"), dir.path().join("client.key"));
        let files = TlsFiles {
            authorities: Some(tests.join("authority.pem")),
            identity: Some((chain.clone(), key.clone())),
        };
        let refused = |why: &str| {
            let refused = Trust::new(&files).err().unwrap().to_string();
            assert!(refused.contains(why), "{why}: {refused}");
        };
        let copy = |from: &str, to: &Path| fs::copy(tests.join(from), to).unwrap();
        refused("client.pem: ");
        copy("client.pem", &chain);
        refused("client.key: ");
        copy("client.pem", &key);
        refused("client.key: ");
        copy("server.key", &key);
        refused("client.pem: ");
        copy("client.key", &key);
        let trust = Trust::new(&files).unwrap();
        assert!(trust.tls().config().client_auth_cert_resolver.has_certs());
        assert!(!trust.refresh(&files).unwrap());
        let new = dir.path().join("new");
        copy("client.key", &new);
        fs::rename(&new, &key).unwrap();
        assert!(trust.refresh(&files).unwrap());
        let alone = TlsFiles {
            identity: None,
            ..files
        };
        assert!(trust.refresh(&alone).unwrap());
        assert!(!trust.tls().config().client_auth_cert_resolver.has_certs());
    }

    #[test]
    fn a_file_is_read_again_only_if_it_has_changed_and_a_bad_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (file, new) = (dir.path().join("ca.crt"), dir.path().join("new"));
        let replace = |content: &[u8]| {
            fs::write(&new, content).unwrap();
            fs::rename(&new, &file).unwrap();
        };
        replace(AUTHORITY);
        let trust = Trust::new(&named(&file)).unwrap();
        let authorities = || Arc::as_ptr(trust.tls().config());
        let first = authorities();
        assert!(!trust.refresh(&named(&file)).unwrap());
        assert_eq!(authorities(), first);
        replace(AUTHORITY);
        assert!(trust.refresh(&named(&file)).unwrap());
        let second = authorities();
        assert_ne!(second, first);
        replace(b"half of a certificate");
        for _ in 0..2 {
            let refused = trust.refresh(&named(&file)).unwrap_err();
            assert!(refused.to_string().contains("ca.crt: "), "{refused}");
        }
        fs::remove_file(&file).unwrap();
        assert!(trust.refresh(&named(&file)).is_err());
        assert_eq!(authorities(), second);
        let other = dir.path().join("other.crt");
        fs::write(&other, AUTHORITY).unwrap();
        assert!(trust.refresh(&named(&other)).unwrap());
        assert!(!trust.refresh(&named(&other)).unwrap());
        assert_ne!(authorities(), second);
    }
}
