//! The authorities whose certificates are trusted: those in a PEM file, or those of the system. The
//! file is read again when it has changed. Knows no connection.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_rustls::TlsConnector;

/// Where distributions, and our images, have the certificates of public authorities.
const SYSTEM_BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// The certificates of a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {why}")]
pub struct BadCertificates {
    file: PathBuf,
    why: String,
}

/// The authorities of all connections of a client.
pub struct Trust(Mutex<Known>);

struct Known {
    /// The file, and what identifies its content; none = there is no file.
    from: Option<(PathBuf, Content)>,
    tls: TlsConnector,
}

/// A file that is written or replaced has another one.
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
    /// Trusts the authorities in that PEM file, or those of the system. Blocks.
    pub(super) fn new(ca_file: Option<&Path>) -> Result<Self, BadCertificates> {
        Known::read(path(ca_file)).map(|known| Self(Mutex::new(known)))
    }

    /// Reads the file again if it has changed or another one is named; true if it did. Connections
    /// that exist are kept. Blocks.
    ///
    /// # Errors
    /// A file without a certificate; the authorities stay as they were.
    pub fn refresh(&self, ca_file: Option<&Path>) -> Result<bool, BadCertificates> {
        let file = path(ca_file);
        let now = match file {
            None => None,
            Some(file) => {
                let metadata = std::fs::metadata(file).map_err(|error| bad(file, &error))?;
                Some((file, Content::of(&metadata)))
            }
        };
        let known = self.known();
        let before = known.from.as_ref();
        if before.map(|(file, content)| (file.as_path(), *content)) == now {
            return Ok(false);
        }
        drop(known);
        let new = Known::read(file)?;
        *self.known() = new;
        Ok(true)
    }

    pub(super) fn tls(&self) -> TlsConnector {
        self.known().tls.clone()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn read(file: Option<&Path>) -> Result<Self, BadCertificates> {
        let (from, roots) = match file {
            None => (None, RootCertStore::empty()),
            Some(file) => {
                let (content, roots) = roots(file)?;
                (Some((file.to_owned(), content)), roots)
            }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(Path::new("TLS"), &error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Self { from, tls })
    }
}

/// That file, or the system's; none if the system has none.
fn path(ca_file: Option<&Path>) -> Option<&Path> {
    let bundles = || SYSTEM_BUNDLES.iter().map(Path::new);
    ca_file.or_else(|| bundles().find(|file| file.exists()))
}

fn bad(file: &Path, why: &dyn std::fmt::Display) -> BadCertificates {
    BadCertificates {
        file: file.to_owned(),
        why: why.to_string(),
    }
}

fn roots(path: &Path) -> Result<(Content, RootCertStore), BadCertificates> {
    let opened = File::open(path).and_then(|file| Ok((Content::of(&file.metadata()?), file)));
    // Before the content is read: if it changes meanwhile, it is read again.
    let (content, file) = opened.map_err(|error| bad(path, &error))?;
    let certificates = CertificateDer::pem_reader_iter(io::BufReader::new(file));
    let certificates: Vec<_> = certificates
        .collect::<Result<_, _>>()
        .map_err(|error| bad(path, &error))?;
    let mut roots = RootCertStore::empty();
    // A bundle may have one that is too old to be understood.
    let (added, _) = roots.add_parsable_certificates(certificates);
    match added {
        0 => Err(bad(path, &"has no certificate in PEM that can be used")),
        _ => Ok((content, roots)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const AUTHORITY: &[u8] = include_bytes!("../../tests/openstack_twin/tls/authority.pem");

    #[test]
    fn a_file_is_read_again_only_if_it_has_changed_and_a_bad_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (file, new) = (dir.path().join("ca.crt"), dir.path().join("new"));
        let replace = |content: &[u8]| {
            fs::write(&new, content).unwrap();
            fs::rename(&new, &file).unwrap();
        };
        replace(AUTHORITY);
        let trust = Trust::new(Some(&file)).unwrap();
        let authorities = || Arc::as_ptr(trust.tls().config());
        let first = authorities();
        assert!(!trust.refresh(Some(&file)).unwrap());
        assert_eq!(authorities(), first);
        replace(AUTHORITY);
        assert!(trust.refresh(Some(&file)).unwrap());
        let second = authorities();
        assert_ne!(second, first);
        replace(b"half of a certificate");
        for _ in 0..2 {
            let refused = trust.refresh(Some(&file)).unwrap_err();
            assert!(refused.to_string().contains("ca.crt: "), "{refused}");
        }
        fs::remove_file(&file).unwrap();
        assert!(trust.refresh(Some(&file)).is_err());
        assert_eq!(authorities(), second);
        let other = dir.path().join("other.crt");
        fs::write(&other, AUTHORITY).unwrap();
        assert!(trust.refresh(Some(&other)).unwrap());
        assert!(!trust.refresh(Some(&other)).unwrap());
        assert_ne!(authorities(), second);
    }
}
