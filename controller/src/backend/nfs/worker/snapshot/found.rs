//! Finds the archive of a snapshot, and reads it.

use super::super::super::call::{Archived, SnapshotSeen};
use super::super::super::path::Dir;
use super::super::claims::{Claims, Occupancy};
use super::super::error::at;
use super::super::own::is_missing;
use super::super::tar::{Flaw, Reader};
use super::super::tree::{self, Tree};
use super::mark::Mark;
use belay_server::call::{Failure, Kind};
use flate2::bufread::MultiGzDecoder;
use rustix::fs::{FileType, Stat};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};
use std::os::fd::OwnedFd;

/// The suffixes of an archive after the name of the volume. csi-driver-nfs writes either suffix,
/// and reads the file with the first suffix if both files exist.
pub(super) const SUFFIXES: [&str; 2] = [".tar.gz", ".tar"];
/// Number of bytes of the file that are read at once.
const BUFFER_BYTES: usize = 1 << 20;

/// An existing snapshot whose archive is open.
pub(in super::super) struct Snapshot {
    file: File,
    stat: Stat,
    /// The ID of the snapshot.
    pub(super) id: String,
    is_compressed: bool,
    /// The mark that Belay writes to the gzip header of its archives. `None` if another program has
    /// created the archive.
    pub(super) mark: Option<Mark>,
}

/// The content of the file of a snapshot.
pub(super) enum Archive {
    Compressed(Box<MultiGzDecoder<BufReader<File>>>),
    Plain(BufReader<File>),
}

impl Read for Archive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Compressed(archive) => archive.read(buffer),
            Self::Plain(archive) => archive.read(buffer),
        }
    }
}

impl Archive {
    /// Opens the archive at its beginning.
    pub(super) fn open(found: &Snapshot) -> Result<Self, Failure> {
        let file = found.file.try_clone().and_then(|mut file| {
            file.rewind()?;
            Ok(file)
        });
        let file = file.map_err(|error| found.failure(Flaw::Unread(error)))?;
        let file = BufReader::with_capacity(BUFFER_BYTES, file);
        Ok(match found.is_compressed {
            true => Self::Compressed(Box::new(MultiGzDecoder::new(file))),
            false => Self::Plain(file),
        })
    }
}

impl Snapshot {
    /// Finds a snapshot, or returns `None` if it does not exist.
    ///
    /// # Errors
    /// Returns `Precondition` if the archive is not a regular file; the errors of the server.
    pub(in super::super) fn find(
        tree: &Tree,
        snapshot: &Archived,
    ) -> Result<Option<Self>, Failure> {
        let Some(directory) = directory(tree, snapshot)? else {
            return Ok(None);
        };
        for suffix in SUFFIXES {
            let name = format!("{}{suffix}", snapshot.source);
            let shown = format!("{}/{name}", snapshot.dir);
            let Some(file) = tree::open_file(&directory, &name, &shown)? else {
                continue;
            };
            let stat = rustix::fs::fstat(&file).map_err(at("fstat", &shown));
            let stat = stat.map_err(Failure::from)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(Failure::precondition(format!(
                    "snapshot {}: {shown} is no file; move it away, and repeat the call",
                    snapshot.id
                )));
            }
            let mut found = Self {
                file: File::from(file),
                stat,
                id: snapshot.id.clone(),
                is_compressed: suffix == SUFFIXES[0],
                mark: None,
            };
            if let Archive::Compressed(mut archive) = Archive::open(&found)? {
                found.mark = match archive.header() {
                    Some(header) => Mark::of(header),
                    // The archive has no header, or the server has not responded.
                    None => match archive.read(&mut [0]) {
                        Err(error) if error.raw_os_error().is_some() => {
                            return Err(found.failure(Flaw::Unread(error)));
                        }
                        _ => None,
                    },
                };
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Returns the description of the snapshot for the controller.
    pub(in super::super) fn seen(&self) -> SnapshotSeen {
        let created = match &self.mark {
            Some(mark) => i64::from(mark.created),
            None => self.stat.st_mtime,
        };
        SnapshotSeen {
            bytes: u64::try_from(self.stat.st_size).unwrap_or_default(),
            created,
            volume: self.mark.as_ref().and_then(Mark::volume).map(str::to_owned),
        }
    }

    /// Checks that an archive of another program is complete, by reading it to its end: a process
    /// that was killed may have left it incomplete.
    ///
    /// # Errors
    /// Returns `Precondition` if the archive is not complete; the errors of `beat` and of the
    /// server.
    pub(super) fn verify(
        &self,
        mut beat: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut reader = Reader::new(Archive::open(self)?);
        let mut buffer = vec![0; BUFFER_BYTES];
        while reader
            .next()
            .map_err(|wrong| self.failure(wrong))?
            .is_some()
        {
            beat()?;
            while reader
                .read(&mut buffer)
                .map_err(|wrong| self.failure(wrong))?
                > 0
            {
                beat()?;
            }
        }
        reader.end().map_err(|wrong| self.failure(wrong))
    }

    /// Returns the error for an archive that is unusable for this reason.
    pub(super) fn failure(&self, wrong: Flaw) -> Failure {
        match wrong {
            Flaw::Refused(why) => self.refused(&why),
            Flaw::Damaged(why) => Failure::precondition(format!(
                "snapshot {}: its archive is damaged or not complete: {why}; delete the snapshot, \
                 or replace the archive by a good one",
                self.id
            )),
            Flaw::Unread(error) => Failure::new(
                Kind::Unreachable,
                format!(
                    "snapshot {}: read of its archive: {error}; the server does not answer, or the \
                     snapshot was deleted meanwhile; repeat the call",
                    self.id
                ),
            ),
        }
    }

    /// Returns the error for an archive that Belay refuses to restore.
    pub(super) fn refused(&self, why: &str) -> Failure {
        Failure::precondition(format!(
            "snapshot {}: its archive is refused: {why}; restore it by hand if you trust it",
            self.id
        ))
    }
}

/// Opens the directory of a snapshot. Returns `None` if the directory does not exist or belongs to
/// a volume.
pub(super) fn directory(tree: &Tree, snapshot: &Archived) -> Result<Option<OwnedFd>, Failure> {
    if of_volume(tree, &snapshot.dir)?.is_some() {
        return Ok(None);
    }
    opened(tree, &snapshot.dir)
}

/// Opens a directory. Returns `None` if the directory does not exist, or if a file or a link has
/// its name.
fn opened(tree: &Tree, dir: &Dir) -> Result<Option<OwnedFd>, Failure> {
    match tree.open_directory(dir) {
        Err(error) if is_missing(error.errno) => Ok(None),
        result => Ok(result?),
    }
}

/// Describes the volume that has claimed a directory. Returns `None` if no volume has claimed the
/// directory.
pub(super) fn of_volume(tree: &Tree, dir: &Dir) -> Result<Option<String>, Failure> {
    let Some(claims) = Claims::find(tree)? else {
        return Ok(None);
    };
    match claims.read(dir)? {
        Occupancy::By(claim) if !claims.is_void(tree, dir, &claim)? => {
            Ok(Some(claim.describe().to_string()))
        }
        _ => Ok(None),
    }
}
