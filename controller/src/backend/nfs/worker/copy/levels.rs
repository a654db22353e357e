//! The open directories of a copy: the parents of the file that is being created. Each name is
//! looked up in an open directory, without following symbolic links. Therefore a hostile archive
//! cannot create links that lead out of the volume and then write through them. The attributes of a
//! directory are set after all files in it are created: creating a file changes the times of its
//! directory, and the mode of the directory may forbid creating files.

use super::super::error::{Error, at};
use super::super::tar::{Entry, Type};
use super::super::tree;
use super::attributes::{self, Attribute, Extended};
use super::{DEPTH_MAX, Stop};
use belay_server::call::{Failure, Kind};
use rustix::fs::Mode;
use rustix::io::{Errno, retry_on_intr};
use std::ffi::CString;
use std::os::fd::OwnedFd;

/// The mode of a directory for which the source contains no mode.
const DIRECTORY: Mode = Mode::from_bits_retain(0o755);

/// The open directories, outermost first. The first directory is the root of the volume.
pub(super) struct Levels(Vec<Level>);

struct Level {
    name: CString,
    directory: OwnedFd,
    shown: String,
    /// The attributes to set when the directory is complete, or `None` to keep the attributes of a
    /// new directory. The list of extended attributes contains only access control lists, to limit
    /// the memory for all open directories.
    attributes: Option<(Entry, Vec<Attribute>)>,
}

impl Levels {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self(vec![Level {
            name: CString::default(),
            directory: root,
            shown: ".".to_owned(),
            attributes: None,
        }])
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.0[0].directory
    }

    /// Opens a directory, which is created if it is missing, and records its attributes.
    pub(super) fn describe(
        &mut self,
        names: &[CString],
        entry: &Entry,
        extended: Extended<'_>,
        shown: &str,
    ) -> Result<(), Stop> {
        self.enter(names)?;
        let level = self.last()?;
        let lists = attributes::apply_early(&level.directory, extended, shown)?;
        let entry = Entry {
            path: Vec::new(),
            attributes: Vec::new(),
            ..entry.clone()
        };
        level.attributes = Some((entry, lists));
        shown.trim_end_matches('/').clone_into(&mut level.shown);
        Ok(())
    }

    /// Opens the directory with this path, which is created if it is missing.
    pub(super) fn above(&mut self, names: &[CString]) -> Result<OwnedFd, Stop> {
        self.enter(names)?;
        let here = self.last()?.directory.try_clone();
        here.map_err(|error| Failure::new(Kind::System, format!("fcntl: {error}")).into())
    }

    fn enter(&mut self, names: &[CString]) -> Result<(), Stop> {
        if names.len() > DEPTH_MAX {
            return Err(Stop::refused("is too many directories deep"));
        }
        let same = self.entered(names);
        while self.0.len() > same + 1 {
            self.leave()?;
        }
        for name in &names[same..] {
            let above = self.last()?;
            let shown = format!("{}/{}", above.shown, name.to_string_lossy());
            let is_new = match tree::mkdir(&above.directory, &**name, DIRECTORY, &shown) {
                Ok(()) => true,
                Err(error) if error.errno == Errno::EXIST => false,
                Err(error) => return Err(out(error)),
            };
            let directory = tree::open(&above.directory, &**name, &shown).map_err(out)?;
            let attributes = match is_new {
                true => None,
                // An existing directory keeps its attributes: creating another file in it would
                // change its times.
                false => {
                    let stat = retry_on_intr(|| rustix::fs::fstat(&directory));
                    let stat = stat.map_err(at("fstat", &shown)).map_err(out)?;
                    let entry = attributes::entry(b"", Type::Directory, &stat);
                    Some((entry, Vec::new()))
                }
            };
            self.0.push(Level {
                name: name.clone(),
                directory,
                shown,
                attributes,
            });
        }
        Ok(())
    }

    /// Compares the path `names` with the path of the open directories, name by name from the root.
    /// Returns the number of names before the first difference.
    fn entered(&self, names: &[CString]) -> usize {
        let open = self.0[1..].iter().zip(names);
        open.take_while(|(level, name)| level.name == **name)
            .count()
    }

    fn last(&mut self) -> Result<&mut Level, Failure> {
        self.0.last_mut().ok_or_else(|| Failure::bug("no root"))
    }

    fn leave(&mut self) -> Result<(), Stop> {
        let Some(level) = self.0.pop() else {
            return Ok(());
        };
        if let Some((entry, lists)) = &level.attributes {
            let extended = Extended::Listed(lists);
            attributes::apply(&level.directory, entry, extended, &level.shown)?;
        }
        Ok(tree::sync(&level.directory, &level.shown)?)
    }

    /// Closes a directory and its subdirectories without setting their attributes. Does nothing if
    /// the directory is not open.
    pub(super) fn abandon(&mut self, names: &[CString]) {
        if self.entered(names) == names.len() {
            self.0.truncate(names.len().max(1));
        }
    }

    /// Sets the attributes of all open directories, and closes the directories.
    pub(super) fn end(mut self) -> Result<(), Stop> {
        if self.0[0].attributes.is_none() {
            // The archive contains no mode for the volume's directory; csi-driver-nfs uses this
            // mode.
            tree::chmod(self.root(), DIRECTORY.bits(), ".")?;
        }
        while !self.0.is_empty() {
            self.leave()?;
        }
        Ok(())
    }
}

/// Converts a failed lookup. A path that leads through a link or a file, which the archive may have
/// created before, is refused.
pub(super) fn out(error: Error) -> Stop {
    match error.errno {
        Errno::LOOP | Errno::NOTDIR => Stop::refused("leads through a link or a file"),
        _ => error.into(),
    }
}

/// Splits a path below the root of the volume into its names. Refuses a path that leads out of the
/// volume.
pub(super) fn names(path: &[u8]) -> Result<Vec<CString>, Stop> {
    if path.first() == Some(&b'/') {
        return Err(Stop::refused("is an absolute path"));
    }
    let parts = path.split(|byte| *byte == b'/');
    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
    let named = parts.map(|part| match part {
        b".." => Err(Stop::refused("leads out of the volume (\"..\")")),
        part if part.len() > 255 => Err(Stop::refused("has a name of more than 255 bytes")),
        part => CString::new(part).map_err(|_| Stop::refused("has a zero byte in its name")),
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_directory_that_is_not_open_is_abandoned_without_harm_to_the_one_that_is() {
        for (abandoned, mode) in [
            ("a/b", 0o700),
            ("a/c", 0o755),
            ("d", 0o700),
            ("a/c/e", 0o700),
        ] {
            let top = tempfile::tempdir().unwrap();
            let source = fs::File::open(top.path()).unwrap();
            let stat = rustix::fs::fstat(&source).unwrap();
            let private = Entry {
                mode: 0o700,
                ..attributes::entry(b"", Type::Directory, &stat)
            };
            let mut levels = Levels::new(source.into());
            let inner = names(b"a/c").ok().unwrap();
            levels
                .describe(&inner, &private, Extended::Listed(&[]), "a/c")
                .ok()
                .unwrap();
            levels.abandon(&names(abandoned.as_bytes()).ok().unwrap());
            levels.end().ok().unwrap();
            let made = fs::metadata(top.path().join("a/c")).unwrap();
            assert_eq!(made.permissions().mode() & 0o777, mode, "{abandoned}");
        }
    }
}
