//! Claims: which volume a directory belongs to. Each is a file in `.belay/claims` of the share,
//! outside every volume, called by the SHA-256 of the directory's path. The first one of a path is
//! made by link(2), which decides between two controllers; only its volume changes it after that.
//!
//! The directories above a volume's are claimed too, so that none of them becomes a volume.

use super::super::class::OnDelete;
use super::super::path::{Dir, OWN};
use super::error::Result as Done;
use super::list;
use super::tree::{self, Tree};
use belay_server::call::Failure;
use ring::digest::{SHA256, digest};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::os::fd::OwnedFd;

const CLAIMS: &str = "claims";
/// Where claims are written, before they get their names.
const TEMPORARY: &str = "tmp";
/// The longest claim, in bytes: a path, a name, and room for the escapes of JSON.
const BYTES_MAX: usize = 64 << 10;

/// What is known of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Claim {
    /// Which.
    pub(super) dir: String,
    /// The name of its volume; empty where there is none.
    pub(super) name: String,
    pub(super) state: State,
    pub(super) on_delete: OnDelete,
    /// The size that was asked for.
    pub(super) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Volumes are below it.
    Above,
    /// No caller knows the volume.
    Creating,
    /// The volume exists.
    Ready,
    /// Its deletion was begun.
    Deleting,
}

/// The claims of a share.
pub(super) struct Claims {
    /// Belay's own directory.
    own: OwnedFd,
    claims: OwnedFd,
}

impl Claims {
    /// Those of the share, for a volume that is created.
    pub(super) fn open(tree: &Tree) -> Done<Self> {
        let own = tree::own(tree.root(), OWN, OWN)?;
        let claims = tree::own(&own, CLAIMS, ".belay/claims")?;
        Ok(Self { own, claims })
    }

    /// Those of the share; none if no volume was created there.
    pub(super) fn find(tree: &Tree) -> Done<Option<Self>> {
        let found = tree::open(tree.root(), OWN, OWN).and_then(|own| {
            let claims = tree::open(&own, CLAIMS, ".belay/claims")?;
            Ok(Self { own, claims })
        });
        match found {
            Ok(claims) => Ok(Some(claims)),
            Err(error) if error.errno == Errno::NOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The claim on a directory.
    ///
    /// # Errors
    /// `Precondition` if its file is damaged.
    pub(super) fn read(&self, dir: &Dir) -> Result<Option<Claim>, Failure> {
        let shown = shown(dir);
        let Some(file) = tree::open_file(&self.claims, &file_name(dir), &shown)? else {
            return Ok(None);
        };
        let content = tree::read(&file, BYTES_MAX, &shown)?;
        let claim: Option<Claim> =
            content.and_then(|content| serde_json::from_slice(&content).ok());
        match claim {
            Some(claim) if claim.dir == dir.to_string() => Ok(Some(claim)),
            _ => Err(Failure::precondition(format!(
                "{shown:?} in the share: is no claim on {dir}; if no volume of Belay has that \
                 directory, remove the file"
            ))),
        }
    }

    /// Claims a directory, unless it is claimed, for the volume with the directory `of`.
    ///
    /// # Errors
    /// Those of the server, EEXIST excepted.
    pub(super) fn make(&self, dir: &Dir, of: &Dir, claim: &Claim) -> Result<(), Failure> {
        let (temporary, name) = self.written(of, claim)?;
        let to = (&self.claims, file_name(dir));
        let linked = tree::link((&temporary, &name), (to.0, &to.1), &shown(dir));
        let dropped = tree::unlink(&temporary, &name, &shown(dir));
        match linked {
            Err(error) if error.errno == Errno::EXIST => Ok(dropped?),
            result => Ok(result.and(dropped)?),
        }
    }

    /// Changes the claim of this volume.
    pub(super) fn replace(&self, dir: &Dir, claim: &Claim) -> Result<(), Failure> {
        let (temporary, name) = self.written(dir, claim)?;
        let to = (&self.claims, file_name(dir));
        Ok(tree::rename(
            (&temporary, &name),
            (to.0, &to.1),
            &shown(dir),
        )?)
    }

    /// Removes the claim of this volume, and what calls that were killed have written for it.
    pub(super) fn remove(&self, dir: &Dir) -> Done<()> {
        tree::unlink(&self.claims, &file_name(dir), &shown(dir))?;
        let temporary = match tree::open(&self.own, TEMPORARY, TEMPORARY) {
            Err(error) if error.errno == Errno::NOENT => return Ok(()),
            result => result?,
        };
        let prefix = format!("{}.", file_name(dir));
        for entry in list::entries(&temporary, TEMPORARY)? {
            match entry.name.to_str() {
                Ok(name) if name.starts_with(&prefix) => {
                    tree::unlink(&temporary, name, &shown(dir))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Claims the directories above a volume's.
    ///
    /// # Errors
    /// `Incompatible` if one of them is a volume's.
    pub(super) fn hold_above(&self, dir: &Dir) -> Result<(), Failure> {
        for above in dir.above() {
            let claim = match self.read(&above)? {
                Some(claim) => Some(claim),
                None => {
                    self.make(&above, dir, &Claim::above(&above))?;
                    self.read(&above)?
                }
            };
            match claim {
                Some(claim) if claim.state != State::Above => {
                    return Err(Failure::incompatible(format!(
                        "subDir {dir}: is inside {above}, the directory of volume {:?}; choose \
                         another directory",
                        claim.name
                    )));
                }
                // Removed meanwhile, with the last volume below it.
                _ => {}
            }
        }
        Ok(())
    }

    /// A new file with a claim for the volume with the directory `of`: its directory and its name.
    fn written(&self, of: &Dir, claim: &Claim) -> Result<(OwnedFd, String), Failure> {
        let name = format!("{}.{}", file_name(of), nonce()?);
        let content = serde_json::to_vec_pretty(claim);
        let content = content.map_err(|error| Failure::bug(error.to_string()))?;
        let temporary = tree::own(&self.own, TEMPORARY, TEMPORARY)?;
        tree::write_new(&temporary, &name, &content, &shown(of))?;
        Ok((temporary, name))
    }
}

impl Claim {
    fn above(dir: &Dir) -> Self {
        Self {
            dir: dir.to_string(),
            name: String::new(),
            state: State::Above,
            on_delete: OnDelete::Retain,
            bytes: 0,
        }
    }
}

/// The name of the file with the claim on a directory.
pub(super) fn file_name(dir: &Dir) -> String {
    let digest = digest(&SHA256, dir.to_string().as_bytes());
    hexadecimal(digest.as_ref())
}

/// 64 random bits, for names that no other process chooses.
///
/// # Errors
/// `System` if the kernel has none.
pub(super) fn nonce() -> Result<String, Failure> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new(
            belay_server::call::Kind::System,
            format!("getrandom: {error}"),
        )
    })?;
    Ok(hexadecimal(&bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A string takes all that is written to it.
        write!(text, "{byte:02x}").ok();
        text
    })
}

fn shown(dir: &Dir) -> String {
    format!(".belay/claims/{}", file_name(dir))
}
